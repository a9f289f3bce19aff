"""Waiting: what an operation can lack, how long it waits for that, and which keys tell that it may go on.

Pure: the lane keeps those who wait in line, the backend's watch tells of changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from pressure_server.broker.names import BOUND, CLOSED, CONSUMER_FREE, NOT_FULL, PRODUCER_FREE
from pressure_server.errors import PressureError

if TYPE_CHECKING:
    from pressure_server.broker.operation import Operation

# Put and add wait for room as long as the server's settings say.
AS_CONFIGURED = -1.0


class Lack(Enum):
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


@dataclass(slots=True)
class Wait:
    """How an operation waits, and how far it has come.

    `timeout` is in seconds, for a message or for room: None for ever, 0 not at all. `for_role` is whether it
    waits for a role that a native client holds, and `endless` whether it does so for ever. `ticket` is shared
    by operations of which only one may take.
    """

    timeout: float | None = AS_CONFIGURED
    for_role: bool = True
    endless: bool = False
    ticket: Ticket | None = None
    # Of the command that is next, how many messages have been put, and how many of these were new.
    messages: int = 0
    new: int = 0
    lack: Lack | None = None
    # The other queue of a move, and whether it is there that something is lacking.
    other: bytes = b""
    elsewhere: bool = False
    # Why it ends where it has waited in vain; None for a message that has not come.
    reason: PressureError | None = None
    # When its time is up, by the loop's clock: for what it waits for, and for a role.
    until: float | None = None
    role_until: float | None = None
    timer: asyncio.TimerHandle | None = None
    # Whether it is `until` that has come.
    out_of_time: bool = False
    in_line: bool = False
    # Only some of its commands were sent, and all of these have been done.
    was_cut: bool = False
    expired: bool = False

    def deadline(self, now: float, timeout: float | None, role_timeout: float) -> float | None:
        """When it has waited long enough; None for never. `now` itself where it must not wait at all."""
        if self.until is None and timeout is not None:
            self.until = now + timeout
        if self.lack in (Lack.MESSAGE, Lack.ROOM):
            self.role_until = None
            return self.until
        if self.endless:
            return None
        if not self.for_role:
            return now
        if self.role_until is None:
            self.role_until = now + role_timeout
        return self.role_until if self.until is None else min(self.until, self.role_until)


@dataclass(slots=True)
class Ticket:
    """Operations in the lines of several queues, of which the first that can be served takes for all.

    While one of them is under way the others pass; their queues are told when it has come back with nothing.
    """

    under_way: Operation | None = None
    served: bool = False
    passed: list[Callable[[], None]] = field(default_factory=list)

    def admits(self, operation: Operation, passed: Callable[[], None]) -> bool:
        """Whether the operation may go; `passed` is called when it could have."""
        if self.served:
            return False
        if self.under_way is None or self.under_way is operation:
            self.under_way = operation
            return True
        if passed not in self.passed:
            self.passed.append(passed)
        return False

    def release(self) -> None:
        """The one that was under way has come back with nothing."""
        self.under_way = None
        passed, self.passed = self.passed, []
        for tell in passed:
            tell()


def suffixes(lacks: Iterable[Lack]) -> list[bytes]:
    """The suffixes of the keys to watch, in the order in which `possible` counts them."""
    return [*dict.fromkeys(suffix for lack in lacks for suffix in lack.value), _EXISTENCE]


def watched_keys(base: bytes, watched: list[bytes]) -> list[bytes]:
    """The keys, each as often as its place says: 1, 2, 4, … EXISTS then counts a mask of those that exist."""
    return [base + suffix for place, suffix in enumerate(watched) for _ in range(1 << place)]


def possible(lacks: Iterable[Lack], watched: list[bytes], mask: int, existed: bool) -> bool:
    """Whether somebody may go on, by the mask of keys that exist.

    `existed` is whether the queue did when it was tried.
    """
    present = {suffix for place, suffix in enumerate(watched) if mask & (1 << place)}
    if (_EXISTENCE in present) is not existed:
        return True
    return any(
        not present if lack is Lack.ABSENCE else any(suffix in present for suffix in lack.value)
        for lack in lacks
    )


def lack_of(error: Any) -> Lack | None:
    """What the role, or the end of a deletion, that an error of the script speaks of is to those who wait."""
    text = str(error)
    if text.startswith("OTHER "):
        text = text[6:]
    if text.startswith("INUSE producer"):
        return Lack.PRODUCER
    if text.startswith("INUSE consumer"):
        return Lack.CONSUMER
    return {"CREATING": Lack.CREATION, "DELETING": Lack.ABSENCE}.get(text)
