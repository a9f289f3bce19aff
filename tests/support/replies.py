"""Parsers of replies that arrive in pieces of any size. For RESP, tests use `hiredis.Reader`."""

from typing import Any, NamedTuple, Protocol

_MEMCACHED_ERRORS = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")
_WITH_DATA = (b"RESERVED", b"FOUND", b"OK")


class Reader(Protocol):
    """A parser of replies."""

    def feed(self, data: bytes) -> object:
        """Add received bytes."""

    def gets(self) -> Any:
        """Return the next reply, an error as an exception; False if no reply is complete."""


class _Unread:
    """The bytes that have been received and not been returned yet."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._unread += data

    def _line(self) -> bytes | None:
        """Return the first line without its end, None if it is not complete."""
        end = self._unread.find(b"\r\n")
        return None if end < 0 else bytes(self._unread[:end])

    def _take_line(self, line: bytes) -> None:
        del self._unread[: len(line) + 2]

    def _take_data(self, line: bytes, size: int) -> bytes | None:
        """Take the line and the data after it. Return the data, None if they are not complete."""
        first, last = len(line) + 2, len(line) + 2 + size
        if len(self._unread) < last + 2:
            return None
        if self._unread[last : last + 2] != b"\r\n":
            raise ValueError(f"no line end after the data of {line!r}")
        data = bytes(self._unread[first:last])
        del self._unread[: last + 2]
        return data


class BeanstalkReader(_Unread):
    """A parser of beanstalk replies: the words of the line, then the data if there are any."""

    def gets(self) -> Any:
        """Return the next reply; False if no reply is complete. Raises ValueError."""
        line = self._line()
        if line is None:
            return False
        words = line.split(b" ")
        if words[0] not in _WITH_DATA:
            self._take_line(line)
            return words
        data = self._take_data(line, int(words[-1]))
        return False if data is None else [*words, data]


class Item(NamedTuple):
    """A message in a reply of memcached. `key` is the requested key. Flags of None are unknown."""

    key: str
    flags: int | None
    data: bytes


class MemcachedError(Exception):
    """An error reply of memcached."""


class MemcachedReader(_Unread):
    """A parser of memcached replies: a list of items, or a line."""

    def __init__(self) -> None:
        super().__init__()
        self._items: list[Item] = []

    def gets(self) -> Any:
        """Return the next reply, an error as an exception; False if none is complete. Raises ValueError."""
        while (line := self._line()) is not None:
            if not line.startswith(b"VALUE "):
                self._take_line(line)
                return self._reply(line)
            _, key, flags, size = line.split(b" ")
            data = self._take_data(line, int(size))
            if data is None:
                break
            self._items.append(Item(key.decode(), int(flags), data))
        return False

    def _reply(self, line: bytes) -> Any:
        items, self._items = self._items, []
        if line == b"END":
            return items
        if items:
            raise ValueError(f"{line!r} after items")
        return MemcachedError(line.decode()) if line.split(b" ")[0] in _MEMCACHED_ERRORS else line
