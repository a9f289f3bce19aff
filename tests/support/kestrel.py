"""A kestrel client: a plain memcached connection that reads messages with flags, and open reads."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.memcached_wire import MemcachedWire
from tests.support.protocols import MEMCACHED, stored


class RefusedError(Exception):
    """An error reply; the text is its line."""


class Item(NamedTuple):
    """A message and its flags."""

    message: bytes
    flags: int = 0


class Kestrel(MemcachedWire):
    """A connection to a server's first memcached listener."""

    def put_items(self, queue: str, *items: Item, expires: int = 0) -> None:
        """Put the items, oldest first. Raise AssertionError if the server refuses one."""
        for message, flags in items:
            self.send(stored(queue.encode(), message, more=b"%d %d" % (flags, expires)))
            assert self.reply() == b"STORED"

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
