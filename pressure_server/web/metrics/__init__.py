"""Metrics for Prometheus: collectors of the server's figures, and their text at /metrics."""
