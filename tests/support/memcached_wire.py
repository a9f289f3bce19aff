"""Plain connections in memcached's protocol: what is sent, and when it leaves, is up to the test."""

import socket
from typing import NamedTuple

from tests.support.programs import Server
from tests.support.protocols import MEMCACHED, Wire, stored

# Sent after a request: its reply marks the end of all replies before.
_KEY = b"the-end-of-a-reply"
_ASK = b"set %b 0 0 0\r\n\r\nget %b\r\n" % (_KEY, _KEY)
_END = b"STORED\r\nVALUE %b 0 0\r\n\r\nEND\r\n" % _KEY


class MemcachedWire(Wire):
    """A `Wire` that is called with lines, maybe with a block, without their last line end."""

    def __init__(self, target: Server | int | socket.socket) -> None:
        super().__init__(MEMCACHED, target)

    def __call__(self, request: bytes) -> bytes:
        """Send a request and return the reply, both without their last line end."""
        return super().__call__(request + b"\r\n")

    def store(self, key: bytes, data: bytes, *, name: bytes = b"set", more: bytes = b"0 0") -> bytes:
        """Return the reply to set, or another storage command; `more` are flags and expiry."""
        self.send(stored(key, data, name=name, more=more))
        return self.reply()


class RefusedError(Exception):
    """An error reply; the text is its line."""


class Item(NamedTuple):
    """A message and its flags."""

    message: bytes
    flags: int = 0


class Kestrel(MemcachedWire):
    """A connection that reads messages with flags, and open reads."""

    def put_items(self, queue: str, *items: Item, expires: int = 0) -> None:
        """Put the items, oldest first. Raise AssertionError if the server refuses one."""
        for message, flags in items:
            assert self.store(queue.encode(), message, more=b"%d %d" % (flags, expires)) == b"STORED"

    def get_item(self, key: str) -> Item | None:
        """Return the message of `get key`, None if there is none. Raise RefusedError."""
        self.send_line(f"get {key}")
        return self.item()

    def drain(self, queue: str) -> list[Item]:
        """Take all messages of a queue."""
        return list(iter(lambda: self.get_item(queue), None))

    def stats(self) -> dict[str, str]:
        """Return the reply to stats."""
        lines = self(b"stats").decode().splitlines()
        return dict(line.removeprefix("STAT ").split(" ", 1) for line in lines if line != "END")

    def send_line(self, line: str) -> None:
        """Send a line, and read no reply."""
        self.send(line.encode() + b"\r\n")

    def item(self) -> Item | None:
        """Return the message in the next reply, None if there is none.

        Raise RefusedError, or ConnectionError if the server closes first.
        """
        reply = self.reply()
        if b"ERROR" in reply.split(b" ", 1)[0]:
            raise RefusedError(reply.decode())
        message = MEMCACHED.message_in(reply)
        return None if message is None else Item(message, int(reply.split(b" ", 3)[2]))


class ValuesWire(Wire):
    """A connection to memcached or to a server with values; requests and replies are bytes."""

    def __init__(self, target: int | str) -> None:
        super().__init__(MEMCACHED, target)

    def __call__(self, request: bytes) -> bytes:
        """Send requests to a server with values, and return all replies. Raises ConnectionError."""
        self.send(request + _ASK)
        return self.until(_END)[: -len(_END)]

    def line(self) -> bytes:
        """Return one line; nothing may come after it."""
        return self.until(b"\r\n")

    def until(self, end: bytes) -> bytes:
        """Return everything up to this end. Raises ConnectionError, or TimeoutError."""
        while not self._unread.endswith(end):
            self._receive_more()
        return self._take(len(self._unread))
