"""A plain memcached connection of a kestrel client: the test decides what it sends and how it leaves."""

from __future__ import annotations

import re
import select
import socket
import struct
from types import TracebackType
from typing import NamedTuple

from tests.support.programs import TIMEOUT, Server


class RefusedError(Exception):
    """An error reply; the text is its line."""


class Item(NamedTuple):
    """A message, with the flags that it was put with."""

    message: bytes
    flags: int = 0


def memcached_port(server: Server, options: str = "") -> int:
    """Return the port of the memcached listener with these URL options, which begin with a question mark."""
    found = re.search(r"listening on memcached://127\.0\.0\.1:(\d+)" + re.escape(options) + r"\s", server.log)
    assert found, server.log
    return int(found[1])


class Kestrel:
    """A connection to a server's memcached listener."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(("127.0.0.1", memcached_port(server)), TIMEOUT)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Kestrel:
        return self

    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def put(self, queue: str, *items: Item, expires: int = 0) -> None:
        """Put the items, oldest first. Raises RefusedError."""
        for message, flags in items:
            self.send(f"set {queue} {flags} {expires} {len(message)}")
            self.socket.sendall(message + b"\r\n")
            assert self.line() == b"STORED"

    def get(self, key: str) -> Item | None:
        """Return the message of `get key`, None if there is none. Raises RefusedError."""
        self.send(f"get {key}")
        return self.item()

    def drain(self, queue: str) -> list[Item]:
        """Take all messages of a queue."""
        return list(iter(lambda: self.get(queue), None))

    def stats(self) -> dict[str, str]:
        """Return the reply of stats."""
        self.send("stats")
        lines = iter(self.line, b"END")
        return dict(line.decode().removeprefix("STAT ").split(" ", 1) for line in lines)

    def send(self, line: str) -> None:
        """Send a line, and read no reply."""
        self.socket.sendall(line.encode() + b"\r\n")

    def item(self) -> Item | None:
        """Return the reply to a get of one message. Raises RefusedError, or ConnectionError at the end."""
        line = self.line()
        if line == b"END":
            return None
        _value, _key, flags, size = line.split()
        message = self._file.read(int(size) + 2)[:-2]
        assert self.line() == b"END"
        return Item(message, int(flags))

    def line(self) -> bytes:
        """Return the next line. Raises RefusedError if it is an error, ConnectionError at the end."""
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        if b"ERROR" in line.split(b" ", 1)[0]:
            raise RefusedError(line.decode().strip())
        return line[:-2]

    def has_reply(self) -> bool:
        """Return whether unread bytes have come."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def reset(self) -> None:
        """Close with an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def half_close(self) -> None:
        """Send no more (FIN), wait until the server closes, and close."""
        self.socket.shutdown(socket.SHUT_WR)
        assert self._file.read() == b""
        self.close()
