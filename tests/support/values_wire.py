"""Plain connections to memcached, and to our server: bytes of requests, and all that is replied to them."""

from __future__ import annotations

import re
import socket
from types import TracebackType

from tests.support.programs import TIMEOUT, Server

# What is asked behind a request, so that its end is seen, whatever and how much it is replied.
_KEY = b"the-end-of-a-reply"
_ASK = b"set %b 0 0 0\r\n\r\nget %b\r\n" % (_KEY, _KEY)
_END = b"STORED\r\nVALUE %b 0 0\r\n\r\nEND\r\n" % _KEY


def port_of(server: Server, mode: str) -> int:
    """The port of its memcached listener in that mode."""
    found = re.search(rf"listening on memcached://127\.0\.0\.1:(\d+)\?mode={mode}", server.log)
    assert found, server.log
    return int(found[1])


class ValuesWire:
    """One connection, to a port of this machine or to a unix socket's path."""

    def __init__(self, address: int | str) -> None:
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(TIMEOUT)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection(("127.0.0.1", address), TIMEOUT)

    def __enter__(self) -> ValuesWire:
        return self

    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.socket.close()

    def __call__(self, request: bytes) -> bytes:
        """Send requests to a server with values; everything that is replied. Raises ConnectionError."""
        self.socket.sendall(request + _ASK)
        replied = self.until(_END)
        return replied[: -len(_END)]

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)

    def line(self) -> bytes:
        """One line, where nothing comes behind it."""
        return self.until(b"\r\n")

    def until(self, end: bytes) -> bytes:
        """All that comes, which is to end so. Raises ConnectionError, or TimeoutError."""
        replied = bytearray()
        while not replied.endswith(end):
            received = self.socket.recv(1 << 20)
            if not received:
                raise ConnectionResetError(f"closed behind {bytes(replied[-1000:])!r}")
            replied += received
        return bytes(replied)

    def rest(self) -> bytes:
        """All that comes until the other side closes."""
        replied = b""
        while received := self.socket.recv(1 << 16):
            replied += received
        return replied
