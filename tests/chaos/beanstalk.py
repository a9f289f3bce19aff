"""A beanstalk client, and its parser of replies."""

from typing import Any, NamedTuple

from tests.chaos.caller import Caller, Reader
from tests.chaos.stand import Proxy
from tests.support.waiters import Words

_WITH_DATA = (b"RESERVED", b"FOUND")
# A server that is broken or full may send these.
_ERRORS = (b"INTERNAL_ERROR", b"OUT_OF_MEMORY", b"DRAINING")
# The clients send nothing that is malformed or too large.
_UNEXPECTED = (b"BAD_FORMAT", b"UNKNOWN_COMMAND", b"EXPECTED_CRLF", b"JOB_TOO_BIG", b"NOT_IGNORED")


class Job(NamedTuple):
    """A job in a reply, with its id."""

    id: int
    data: bytes


class BeanstalkError(Exception):
    """An error reply."""


class BeanstalkCaller(Caller):
    """A beanstalk client. A reply is a job, or a line without its end.

    A command is the words of its line. A `put` ends with the data in place of its size.
    """

    def _new_reader(self) -> Reader:
        return BeanstalkReader()

    def _packed(self, words: Words) -> bytes:
        return packed(words)

    def _port(self, proxy: Proxy, *, relayed: bool) -> int:
        return proxy.beanstalk_relay_port if relayed else proxy.beanstalk_port


def packed(words: Words) -> bytes:
    """Return the request for a command."""
    if words[0] != "put":
        return _line(words)
    *line, data = words
    assert isinstance(data, bytes)
    return _line((*line, len(data))) + data + b"\r\n"


def _line(words: Words) -> bytes:
    return " ".join(map(str, words)).encode() + b"\r\n"


class BeanstalkReader:
    """A parser of beanstalk replies. Raises ValueError on invalid data, and on a reply to a bad request."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._unread += data

    def gets(self) -> Any:
        """Return the next reply; False if no reply is complete."""
        end = self._unread.find(b"\r\n")
        if end < 0:
            return False
        line = bytes(self._unread[:end])
        name, *numbers = line.split(b" ")
        if name in _UNEXPECTED:
            raise ValueError(f"the server refused a correct request: {line!r}")
        if name not in _WITH_DATA:
            del self._unread[: end + 2]
            return BeanstalkError(line.decode()) if name in _ERRORS else line
        job, size = map(int, numbers)
        first, last = end + 2, end + 2 + size
        if len(self._unread) < last + 2:
            return False
        if self._unread[last : last + 2] != b"\r\n":
            raise ValueError(f"no line end after the data of {line!r}")
        data = bytes(self._unread[first:last])
        del self._unread[: last + 2]
        return Job(job, data)
