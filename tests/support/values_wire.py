"""Plain connections to memcached and to a server with values; requests and replies are bytes."""

from __future__ import annotations

import re
import socket
from types import TracebackType

from tests.support.programs import TIMEOUT, Server

# Sent after a request: its reply marks the end of all replies before.
_KEY = b"the-end-of-a-reply"
_ASK = b"set %b 0 0 0\r\n\r\nget %b\r\n" % (_KEY, _KEY)
_END = b"STORED\r\nVALUE %b 0 0\r\n\r\nEND\r\n" % _KEY


def port_of(server: Server, mode: str) -> int:
    """Return the port of the server's memcached listener in that mode."""
    found = re.search(rf"listening on memcached://127\.0\.0\.1:(\d+)\?mode={mode}", server.log)
    assert found, server.log
    return int(found[1])


class ValuesWire:
    """A connection to a port of this machine, or to the path of a unix socket."""

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
        """Send requests to a server with values, and return all replies. Raises ConnectionError."""
        self.socket.sendall(request + _ASK)
        replied = self.until(_END)
        return replied[: -len(_END)]

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)

    def line(self) -> bytes:
        """Return one line; nothing may come after it."""
        return self.until(b"\r\n")

    def until(self, end: bytes) -> bytes:
        """Return everything up to this end. Raises ConnectionError, or TimeoutError."""
        replied = bytearray()
        while not replied.endswith(end):
            received = self.socket.recv(1 << 20)
            if not received:
                raise ConnectionResetError(f"closed behind {bytes(replied[-1000:])!r}")
            replied += received
        return bytes(replied)

    def rest(self) -> bytes:
        """Return everything until the other side closes."""
        replied = b""
        while received := self.socket.recv(1 << 16):
            replied += received
        return replied
