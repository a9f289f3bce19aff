"""A beanstalk client, and its parser of replies."""

from typing import Any, NamedTuple

from tests.chaos.caller import Caller
from tests.chaos.stand import Proxy
from tests.support.replies import BeanstalkReader, Reader
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
        return JobReader()

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


class JobReader(BeanstalkReader):
    """A parser of these replies. Raises ValueError also on a reply to a bad request."""

    def gets(self) -> Any:
        """Return the next reply, an error as an exception; False if no reply is complete."""
        words = super().gets()
        if words is False:
            return False
        if words[0] in _UNEXPECTED:
            raise ValueError(f"the server refused a correct request: {words!r}")
        if words[0] in _WITH_DATA:
            return Job(int(words[1]), words[-1])
        line = b" ".join(words)
        return BeanstalkError(line.decode()) if words[0] in _ERRORS else line
