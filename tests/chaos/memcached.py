"""A memcached client, and its parser of replies."""

from typing import Any, NamedTuple

from tests.chaos.caller import Caller, Reader
from tests.chaos.stand import Proxy
from tests.support.waiters import Words

_STORING = ("set", "add")
_ERRORS = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")


class Item(NamedTuple):
    """A message in a reply. `key` is the requested key. Flags of None are unknown."""

    key: str
    flags: int | None
    data: bytes


class MemcachedError(Exception):
    """An error reply."""


class MemcachedCaller(Caller):
    """A memcached client. A reply is a list of items, or a line.

    A command is the words of its line. A `set` or `add` ends with the data in place of its size.
    """

    def _new_reader(self) -> Reader:
        return MemcachedReader()

    def _packed(self, words: Words) -> bytes:
        if words[0] not in _STORING:
            return _line(words)
        *line, data = words
        assert isinstance(data, bytes)
        return _line((*line, len(data))) + data + b"\r\n"

    def _port(self, proxy: Proxy, *, relayed: bool) -> int:
        return proxy.memcached_relay_port if relayed else proxy.memcached_port


def _line(words: Words) -> bytes:
    return " ".join(map(str, words)).encode() + b"\r\n"


class MemcachedReader:
    """A parser of memcached replies. Raises ValueError on invalid data."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._items: list[Item] = []

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._unread += data

    def gets(self) -> Any:
        """Return the next reply; False if no reply is complete."""
        while (end := self._unread.find(b"\r\n")) >= 0:
            line = bytes(self._unread[:end])
            first = end + 2
            if not line.startswith(b"VALUE "):
                del self._unread[:first]
                return self._reply(line)
            _, key, flags, size = line.split(b" ")
            last = first + int(size)
            if len(self._unread) < last + 2:
                break
            if self._unread[last : last + 2] != b"\r\n":
                raise ValueError(f"no line end after the data of {line!r}")
            self._items.append(Item(key.decode(), int(flags), bytes(self._unread[first:last])))
            del self._unread[: last + 2]
        return False

    def _reply(self, line: bytes) -> Any:
        items, self._items = self._items, []
        if line == b"END":
            return items
        if items:
            raise ValueError(f"{line!r} after items")
        return MemcachedError(line.decode()) if line.split(b" ")[0] in _ERRORS else line
