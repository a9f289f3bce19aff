"""Kestrel's options after a queue's name: `get q/close/open/t=500`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from handlers.memcached.replies import ClientError

_OPTION = re.compile(rb"open|close|abort|peek|t=(\d{1,9})")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a get. `timeout` is how long it waits for a message, in seconds."""

    timeout: float = 0.0
    opens: bool = False
    closes: bool = False
    aborts: bool = False
    peeks: bool = False


def split_key(key: bytes) -> tuple[bytes, ReadOptions | None]:
    """Return the queue and the options after its name; None if there are none.

    A slash before anything but an option is part of the name. Raise ClientError for an invalid `t=`, or for
    options that cannot be combined.
    """
    queue, *words = _split(key)
    if b"/t=" in queue and queue.rpartition(b"/")[2].startswith(b"t="):
        raise ClientError("t= takes a number of milliseconds with at most nine digits")
    if not words:
        return queue, None
    names = {word for word in words if not word.startswith(b"t=")}
    if (b"peek" in names or b"abort" in names) and len(names) > 1:
        raise ClientError("peek and abort can be combined with t= only")
    timeout = max((int(word[2:]) for word in words if word.startswith(b"t=")), default=0)
    options = ReadOptions(
        timeout / 1000, b"open" in names, b"close" in names, b"abort" in names, b"peek" in names
    )
    return queue, options


def queue_of(key: bytes) -> bytes:
    """Return the queue's name without the options."""
    return _split(key)[0]


def _split(key: bytes) -> list[bytes]:
    parts = key.split(b"/")
    first = len(parts)
    # If the key begins with a slash, the first word after it belongs to the name.
    while first > (1 if parts[0] else 2) and _OPTION.fullmatch(parts[first - 1]):
        first -= 1
    return [b"/".join(parts[:first]), *parts[first:]]
