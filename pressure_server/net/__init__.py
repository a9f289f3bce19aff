"""A client's connection, whatever its wire protocol: listeners, TLS handshakes, backpressure, buffers.

Handlers and the application import it. It imports `auth` and `queues`.
"""
