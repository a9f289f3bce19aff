"""Wait conditions: what an operation can wait for, and which keys of a queue tell that it may go on.

Pure: the backend's watch tells of changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from pressure_server.queues.names import BOUND, CLOSED, CONSUMER_FREE, NOT_FULL, PRODUCER_FREE


class WaitCondition(Enum):
    """What an operation waits for; the value is the suffixes of the keys that come with it."""

    MESSAGE = (b"", CLOSED)
    ROOM = (NOT_FULL, CLOSED)
    PRODUCER = (PRODUCER_FREE,)
    CONSUMER = (CONSUMER_FREE,)
    # A queue that a native client is creating, to be ready: this token comes last.
    CREATION = (NOT_FULL,)
    # A queue that is being deleted, to be gone: its keys go.
    ABSENCE = (b"", CLOSED, NOT_FULL, PRODUCER_FREE, CONSUMER_FREE)


# Beside those: a queue comes and goes with it.
_EXISTENCE = BOUND


def suffixes(lacks: Iterable[WaitCondition]) -> list[bytes]:
    """The suffixes of the keys to watch, in the order in which `possible` counts them."""
    return [*dict.fromkeys(suffix for lack in lacks for suffix in lack.value), _EXISTENCE]


def watched_keys(base: bytes, watched: list[bytes]) -> list[bytes]:
    """The keys, each as often as its place says: 1, 2, 4, … EXISTS then counts a mask of those that exist."""
    return [base + suffix for place, suffix in enumerate(watched) for _ in range(1 << place)]


def possible(lacks: Iterable[WaitCondition], watched: list[bytes], mask: int, existed: bool) -> bool:
    """Whether somebody may go on, by the mask of keys that exist.

    `existed` is whether the queue did when it was tried.
    """
    present = {suffix for place, suffix in enumerate(watched) if mask & (1 << place)}
    if (_EXISTENCE in present) is not existed:
        return True
    return any(
        not present if lack is WaitCondition.ABSENCE else any(suffix in present for suffix in lack.value)
        for lack in lacks
    )
