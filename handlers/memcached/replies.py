"""Replies: encode them in memcached's text protocol. Pure."""

import re
from collections.abc import Iterable

from pressure_server.errors import PressureError

END = b"END\r\n"
OK = b"OK\r\n"
ERROR = b"ERROR\r\n"
STORED = b"STORED\r\n"
NOT_STORED = b"NOT_STORED\r\n"
# The codes of meta commands that mean the same as these lines, without their ends.
CODE_OF_LINE = {
    b"STORED": b"HD",
    b"DELETED": b"HD",
    b"NOT_STORED": b"NS",
    b"EXISTS": b"EX",
    b"NOT_FOUND": b"NF",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class ClientError(Exception):
    """A request is invalid or not permitted; the text says why."""


def client_error(text: str) -> bytes:
    """Return the reply to a request that is invalid or not permitted."""
    return b"CLIENT_ERROR " + _one_line(text)


def server_error(reason: PressureError) -> bytes:
    """Return the reply to a request that failed: the error's code and text."""
    return b"SERVER_ERROR " + _one_line(f"{reason.code} {reason}")


def _one_line(text: str) -> bytes:
    return _CONTROL.sub(" ", text).encode("utf-8", "replace") + b"\r\n"


def value(key: bytes, flags: bytes, data: bytes, unique: bytes | None = None) -> bytes:
    """Encode one item of a retrieval. END must follow the last item. `unique` is its cas unique."""
    if unique is None:
        return b"VALUE %b %b %d\r\n%b\r\n" % (key, flags, len(data), data)
    return b"VALUE %b %b %d %b\r\n%b\r\n" % (key, flags, len(data), unique, data)


def statistics(items: Iterable[tuple[str, object]]) -> bytes:
    """Return the reply to `stats`."""
    return b"".join([b"STAT " + _one_line(f"{name} {about}") for name, about in items]) + END
