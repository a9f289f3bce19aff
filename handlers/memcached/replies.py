"""Replies: values in, bytes out, in memcached's text protocol. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pressure_server.errors import PressureError

END = b"END\r\n"
OK = b"OK\r\n"
ERROR = b"ERROR\r\n"
STORED = b"STORED\r\n"
NOT_STORED = b"NOT_STORED\r\n"
EXISTS = b"EXISTS\r\n"
DELETED = b"DELETED\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
TOUCHED = b"TOUCHED\r\n"


class ClientError(Exception):
    """What a client has asked for makes no sense, or is not for it to ask. The text says why."""


def client_error(text: str) -> bytes:
    """The reply to a request that makes no sense."""
    return b"CLIENT_ERROR " + _one_line(text)


def server_error(reason: PressureError) -> bytes:
    """The reply to a request that cannot be done: the error's code, and what it says."""
    return b"SERVER_ERROR " + _one_line(f"{reason.code} {reason}")


def _one_line(text: str) -> bytes:
    return " ".join(text.splitlines()).encode("utf-8", "replace") + b"\r\n"


def value(key: bytes, flags: bytes, data: bytes, unique: bytes | None = None) -> bytes:
    """One item of a retrieval; END comes behind all of them."""
    if unique is None:
        return b"VALUE %b %b %d\r\n%b\r\n" % (key, flags, len(data), data)
    return b"VALUE %b %b %d %b\r\n%b\r\n" % (key, flags, len(data), unique, data)


def statistics(items: Iterable[tuple[str, object]]) -> bytes:
    """The reply to stats."""
    return b"".join([f"STAT {name} {about}\r\n".encode() for name, about in items]) + END
