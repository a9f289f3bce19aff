"""Replies of the beanstalk protocol, and YAML as beanstalkd writes it."""

from collections.abc import Iterable

from pressure_server.errors import ErrorKind
from pressure_server.queues.operations.jobs import ReservedJob

BAD_FORMAT = b"BAD_FORMAT\r\n"
UNKNOWN_COMMAND = b"UNKNOWN_COMMAND\r\n"
OUT_OF_MEMORY = b"OUT_OF_MEMORY\r\n"
INTERNAL_ERROR = b"INTERNAL_ERROR\r\n"
DRAINING = b"DRAINING\r\n"
EXPECTED_CRLF = b"EXPECTED_CRLF\r\n"
JOB_TOO_BIG = b"JOB_TOO_BIG\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
DELETED = b"DELETED\r\n"
TIMED_OUT = b"TIMED_OUT\r\n"
# Replies that beanstalkd does not have, as it has no users.
UNAUTHENTICATED = b"UNAUTHENTICATED\r\n"
DENIED = b"DENIED\r\n"
# By what an error means; for all others the reply is INTERNAL_ERROR.
OF_ERROR = {
    ErrorKind.NO_ROOM: OUT_OF_MEMORY,
    ErrorKind.CLOSING: DRAINING,
    ErrorKind.DENIED: DENIED,
}


class RefusedError(Exception):
    """A command is refused, with this reply."""

    def __init__(self, reply: bytes) -> None:
        super().__init__()
        self.reply = reply


def reserved(job: ReservedJob) -> bytes:
    """Return the reply to a reserve."""
    return b"RESERVED %d %d\r\n%b\r\n" % (job.id, len(job.message), job.message)


def _data(text: bytes) -> bytes:
    return b"OK %d\r\n%b\r\n" % (len(text), text)


def yaml_list(names: Iterable[bytes]) -> bytes:
    """Return a list of tubes."""
    return _data(b"---\n" + b"".join(b"- %b\n" % name for name in names))


def yaml_dictionary(values: dict[str, object]) -> bytes:
    """Return a dictionary of figures."""
    return _data(("---\n" + "".join(f"{name}: {value}\n" for name, value in values.items())).encode())
