"""A plain connection in memcached's protocol: what is sent, and when it leaves, is up to the test."""

from __future__ import annotations

import socket

from tests.support.programs import Server
from tests.support.protocols import MEMCACHED, Wire, stored


class MemcachedWire(Wire):
    """A `Wire` that is called with lines, maybe with a block, without their last line end."""

    def __init__(self, server: Server | None = None, *, connected: socket.socket | None = None) -> None:
        super().__init__(MEMCACHED, server, connected=connected)

    def __call__(self, request: bytes) -> bytes:
        """Send a request and return the reply, both without their last line end."""
        return super().__call__(request + b"\r\n")

    def store(self, key: bytes, data: bytes, *, name: bytes = b"set", more: bytes = b"0 0") -> bytes:
        """Return the reply to set, or another storage command; `more` are flags and expiry."""
        self.send(stored(key, data, name=name, more=more))
        return self.reply()

    def take(self, key: bytes) -> bytes | None:
        """Return the message that get brings, if any."""
        return self.get(key)
