"""Wait conditions: what an operation can wait for, and which keys of a queue show that it may go on.

Pure: the watch reports changes of these keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from pressure_server.queues.names import BOUND, CLOSED, CONSUMER_FREE, NOT_FULL, PRODUCER_FREE, READY


class WaitCondition(Enum):
    """What an operation waits for; the value has the suffixes of the keys that show it."""

    MESSAGE = (b"", CLOSED, READY)  # and DUE: its value is read, not its existence
    ROOM = (NOT_FULL, CLOSED)
    PRODUCER_ROLE = (PRODUCER_FREE,)
    CONSUMER_ROLE = (CONSUMER_FREE,)
    # A native client has created the queue: this token comes last.
    CREATED = (NOT_FULL,)
    # The queue's deletion has ended: none of these keys is left.
    REMOVED = (b"", CLOSED, NOT_FULL, PRODUCER_FREE, CONSUMER_FREE)


# Watched for every condition: a queue exists exactly when this key does.
_EXISTENCE = BOUND


def watched_suffixes(conditions: Iterable[WaitCondition]) -> list[bytes]:
    """Return the suffixes of the keys to watch, in the order of the bits in the mask of `may_proceed`."""
    return [*dict.fromkeys(suffix for condition in conditions for suffix in condition.value), _EXISTENCE]


def watched_keys(base: bytes, watched: list[bytes]) -> list[bytes]:
    """Return the keys for EXISTS, repeated 1, 2, 4, … times, so that its count is a mask of existing keys."""
    return [base + suffix for place, suffix in enumerate(watched) for _ in range(1 << place)]


def shows_existence(watched: list[bytes], mask: int) -> bool:
    """Return whether the queue exists, by the mask of keys that exist."""
    return bool(mask & 1 << watched.index(_EXISTENCE))


def may_proceed(conditions: Iterable[WaitCondition], watched: list[bytes], mask: int, existed: bool) -> bool:
    """Return whether an operation may go on, by the mask of keys that exist.

    `existed` is whether the queue existed when the operation was tried.
    """
    present = {suffix for place, suffix in enumerate(watched) if mask & (1 << place)}
    if (_EXISTENCE in present) is not existed:
        return True
    return any(
        not present if one is WaitCondition.REMOVED else any(suffix in present for suffix in one.value)
        for one in conditions
    )
