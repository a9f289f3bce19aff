"""Replies of the beanstalk protocol, and YAML as beanstalkd writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pressure_server.errors import ErrorKind
from pressure_server.text import printable

BAD_FORMAT = b"BAD_FORMAT\r\n"
UNKNOWN_COMMAND = b"UNKNOWN_COMMAND\r\n"
OUT_OF_MEMORY = b"OUT_OF_MEMORY\r\n"
INTERNAL_ERROR = b"INTERNAL_ERROR\r\n"
DRAINING = b"DRAINING\r\n"
EXPECTED_CRLF = b"EXPECTED_CRLF\r\n"
JOB_TOO_BIG = b"JOB_TOO_BIG\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
DELETED = b"DELETED\r\n"
RELEASED = b"RELEASED\r\n"
BURIED = b"BURIED\r\n"
TOUCHED = b"TOUCHED\r\n"
KICKED = b"KICKED\r\n"
PAUSED = b"PAUSED\r\n"
TIMED_OUT = b"TIMED_OUT\r\n"
DEADLINE_SOON = b"DEADLINE_SOON\r\n"
NOT_IGNORED = b"NOT_IGNORED\r\n"
# Replies that beanstalkd does not have, as it has no users.
AUTHENTICATED = b"AUTHENTICATED\r\n"
UNAUTHENTICATED = b"UNAUTHENTICATED\r\n"
DENIED = b"DENIED\r\n"
# By what an error means; for all others the reply is INTERNAL_ERROR.
OF_ERROR = {
    ErrorKind.NO_ROOM: OUT_OF_MEMORY,
    ErrorKind.CLOSING: DRAINING,
    ErrorKind.DENIED: DENIED,
}


def reserved(job: int, message: bytes) -> bytes:
    """Return the reply to a reserve."""
    return b"RESERVED %d %d\r\n%b\r\n" % (job, len(message), message)


def found(job: int, message: bytes) -> bytes:
    """Return the reply to a peek."""
    return b"FOUND %d %d\r\n%b\r\n" % (job, len(message), message)


def using(tube: bytes) -> bytes:
    """Return the reply to use and list-tube-used."""
    return b"USING %b\r\n" % tube


def watching(count: int) -> bytes:
    """Return the reply to watch and ignore: how many tubes the client watches."""
    return b"WATCHING %d\r\n" % count


def kicked(count: int) -> bytes:
    """Return the reply to kick."""
    return b"KICKED %d\r\n" % count


def _data(text: bytes) -> bytes:
    return b"OK %d\r\n%b\r\n" % (len(text), text)


def yaml_list(names: Iterable[bytes]) -> bytes:
    """Return a list of tubes."""
    return _data(b"---\n" + b"".join(b"- %b\n" % name for name in names))


def quoted(name: bytes) -> str:
    """Return a name that YAML would not read as text, as a quoted string."""
    return json.dumps(printable(name))


def yaml_dictionary(values: dict[str, object]) -> bytes:
    """Return a dictionary of figures."""
    lines = (
        f"{key}: {value.decode() if isinstance(value, bytes) else value}\n" for key, value in values.items()
    )
    return _data(b"---\n" + "".join(lines).encode())
