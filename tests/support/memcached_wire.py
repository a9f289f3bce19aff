"""A plain connection in memcached's protocol: what is sent, and when it leaves, is up to the test."""

from __future__ import annotations

import contextlib
import socket
import struct
from types import TracebackType

from tests.support.guards import port_of
from tests.support.programs import TIMEOUT, Server

# Replies that go on until END.
_WITH_MORE = (b"VALUE ", b"STAT ")


class MemcachedWire:
    """One client; it speaks over `connected`, or to the server's first listener for memcached."""

    def __init__(self, server: Server | None = None, *, connected: socket.socket | None = None) -> None:
        if connected is None:
            assert server is not None
            connected = socket.create_connection(("127.0.0.1", port_of(server, "memcached")), TIMEOUT)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(TIMEOUT)
        self.socket = connected
        self._replies = connected.makefile("rb")

    def __enter__(self) -> MemcachedWire:
        return self

    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def __call__(self, request: bytes) -> bytes:
        """Send a line, and maybe a block, without the last line end; the reply without its own."""
        self.send(request + b"\r\n")
        return self.reply()

    def store(self, key: bytes, data: bytes, *, name: bytes = b"set", more: bytes = b"0 0") -> bytes:
        """The reply to set, or another storage command; `more` are flags and expiry."""
        return self(b"%b %b %b %d\r\n%b" % (name, key, more, len(data), data))

    def take(self, key: bytes) -> bytes | None:
        """The message that get brings, if any."""
        head, _, rest = self(b"get " + key).partition(b"\r\n")
        assert head == b"END" or head.startswith(b"VALUE "), head
        return rest.removesuffix(b"\r\nEND") if rest else None

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> bytes:
        """The next reply without its last line end. Raises ConnectionError where the server has closed."""
        found = line = self._line()
        while line.startswith(_WITH_MORE):
            if line.startswith(b"VALUE "):
                found += self._replies.read(int(line.split()[3]) + 2)
            line = self._line()
            found += line
        return found.removesuffix(b"\r\n")

    def _line(self) -> bytes:
        line = self._replies.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        return line

    def rest(self) -> bytes:
        """All that comes until the server closes."""
        found: list[bytes] = []
        with contextlib.suppress(ConnectionError):
            while more := self._replies.read1(1 << 16):
                found.append(more)
        return b"".join(found)

    def reset(self) -> None:
        """Close the rude way: the server gets an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def half_close(self) -> None:
        """Say that nothing more will be sent, read to the end, and close."""
        with contextlib.suppress(OSError):  # where the server was faster
            self.socket.shutdown(socket.SHUT_WR)
        self.rest()
        self.close()

    def close(self) -> None:
        self._replies.close()
        self.socket.close()
