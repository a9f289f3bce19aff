"""Backends, servers and connections that break: no message may be lost."""
