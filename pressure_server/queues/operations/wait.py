"""Waits: how long an operation waits, for what, and how far it has come; how many may wait. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Final

from pressure_server.errors import PressureError
from pressure_server.queues.names import BOUND, CLOSED, CONSUMER_FREE, NOT_FULL, PRODUCER_FREE, READY

# Watched for every condition: a queue exists exactly when this key does.
_EXISTENCE: Final = BOUND
# The timeout that the settings give: a limit for puts and moves, none for other operations.
AS_CONFIGURED: Final = -1.0


class WaitCondition(Enum):
    """What an operation waits for; the value has the suffixes of the keys that show it.

    DUE is watched for all of them: its value is read, not its existence.
    """

    MESSAGE = (b"", CLOSED, READY)
    ROOM = (NOT_FULL, CLOSED)
    PRODUCER_ROLE = (PRODUCER_FREE,)
    CONSUMER_ROLE = (CONSUMER_FREE,)
    # A native client has created the queue: this token comes last.
    CREATED = (NOT_FULL,)
    # A move has found a message, and waits at its destination: the message may go another way. No key shows
    # that, so what exists is always a reason to look once.
    MESSAGE_GONE = (b"", READY)
    # The queue's deletion has ended: none of these keys is left.
    REMOVED = (b"", CLOSED, NOT_FULL, PRODUCER_FREE, CONSUMER_FREE, BOUND)


def watched_suffixes(conditions: Iterable[WaitCondition]) -> list[bytes]:
    """Return the suffixes of the keys to watch, in the order of the bits in the mask of `may_proceed`."""
    suffixes = [suffix for condition in conditions for suffix in condition.value]
    return list(dict.fromkeys([*suffixes, _EXISTENCE]))


def watched_keys(base: bytes, watched: list[bytes]) -> list[bytes]:
    """Return the keys for EXISTS, repeated 1, 2, 4, … times, so that its count is a mask of existing keys."""
    return [base + suffix for place, suffix in enumerate(watched) for _ in range(1 << place)]


def shows_existence(watched: list[bytes], mask: int) -> bool:
    """Return whether the queue exists, by the mask of keys that exist."""
    return bool(mask & 1 << watched.index(_EXISTENCE))


def may_proceed(conditions: Iterable[WaitCondition], watched: list[bytes], mask: int, existed: bool) -> bool:
    """Return whether an operation may go on: by the mask of keys, and whether the queue `existed` before."""
    present = {suffix for place, suffix in enumerate(watched) if mask & (1 << place)}
    if (_EXISTENCE in present) is not existed:
        return True
    return WaitCondition.MESSAGE_GONE in conditions or any(
        present.isdisjoint(one.value) is (one is WaitCondition.REMOVED) for one in conditions
    )


class WaiterCount:
    """The count of waiting operations, at most `limit`. Endless waits are the server's own, and unlimited."""

    def __init__(self, most: int) -> None:
        self.limit = most
        self._count = 0

    def __len__(self) -> int:
        """Return how many operations wait."""
        return self._count

    def try_add(self, wait: Wait) -> bool:
        """Count an operation that is about to wait. Return False if it may not wait, as too many do."""
        is_own = wait.waits_forever_for_role and wait.ticket is None
        if self._count >= self.limit and not is_own:
            return False
        wait.is_counted = True
        self._count += 1
        return True

    def remove(self, wait: Wait) -> None:
        """Stop counting an operation, if it was counted."""
        if wait.is_counted:
            wait.is_counted = False
            self._count -= 1


@dataclass
class Unblocking:
    """A request to end the waits of a client as if their time were up, or with `error` if it is set.

    `has_ended_wait` is set when one has ended for this reason, and has got nothing.
    """

    error: PressureError | None = None
    has_ended_wait: bool = False

    def take_effect(self) -> PressureError | None:
        """Note that a wait ends for this reason. Return the error with which it ends, if any."""
        self.has_ended_wait = True
        return self.error


@dataclass
class Wait:
    """How an operation waits, and how far it has come.

    `timeout` is in seconds, for a message or for room: None waits forever, 0 does not wait. `for_role` is
    whether it waits for a role that a native client holds; `waits_forever_for_role` removes the limit of that
    wait. `ticket` is shared by operations of which only one may take. `outlives_queue` is whether it waits on
    if the queue is deleted, until it is created again.
    """

    timeout: float | None = AS_CONFIGURED
    for_role: bool = True
    waits_forever_for_role: bool = False
    ticket: Ticket | None = None
    outlives_queue: bool = False
    # The command's place in the order in which commands have come.
    arrival: int = field(default_factory=count().__next__)
    # Whether the queue existed when the operation was tried; assumed until then if it joined a line untried.
    found_queue: bool = False
    # How many messages of the next command have been put, and how many of these were new.
    messages_done: int = 0
    new_done: int = 0
    condition: WaitCondition | None = None
    # The destination of a move, and whether the operation waits for something there.
    destination: bytes = b""
    at_destination: bool = False
    # The error if it waits in vain; None if it ends without a message instead.
    timeout_error: PressureError | None = None
    # Whether the wait goes on after its timeout, because a job is due within milliseconds.
    is_extended: bool = False
    # Deadlines by the loop's clock: of the wait as a whole, and of the wait for a role.
    deadline_at: float | None = None
    role_deadline_at: float | None = None
    timer: asyncio.TimerHandle | None = None
    # When it ends: uvloop's timer of no time at all does not tell.
    timer_at: float | None = None
    # Whether `deadline_at` is the deadline that the timer is set to, or that has passed.
    out_of_time: bool = False
    in_line: bool = False
    is_counted: bool = False
    # Only some of its commands were sent, and all of these are done.
    has_unsent: bool = False
    expired: bool = False
    # How often the backend was lost while it was tried, and may have done it.
    unknown_outcomes: int = 0
    # Why it ends before its time, if it does.
    unblocking: Unblocking | None = None

    def cancel_timer(self) -> None:
        """Cancel the timer, if there is one."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def end(self, *, served: bool) -> None:
        """End the wait, as the operation has ended. `served` is whether it got something."""
        self.cancel_timer()
        if self.ticket is not None:
            self.ticket.served = self.ticket.served or served
            self.ticket.release()

    def deadline(self, now: float, timeout: float | None, role_timeout: float) -> float | None:
        """Return until when to wait: None for ever, `now` not at all. The first call starts the timeouts."""
        if self.deadline_at is None and timeout is not None:
            self.deadline_at = now + timeout
        if self.condition in (WaitCondition.MESSAGE, WaitCondition.ROOM):
            self.role_deadline_at = None
            return self.deadline_at
        if self.waits_forever_for_role:
            return None
        if not self.for_role:
            return now
        if self.role_deadline_at is None:
            self.role_deadline_at = now + role_timeout
        return (
            self.role_deadline_at
            if self.deadline_at is None
            else min(self.deadline_at, self.role_deadline_at)
        )


@dataclass
class Ticket:
    """A token shared by operations on several queues; only the first that can be served takes messages.

    While one of them is in flight, the others are passed over. Their queues are told when it is back.
    """

    holder: Wait | None = None
    served: bool = False
    # Callbacks; a dict keeps their order, and each only once.
    on_release: dict[Callable[[], None], None] = field(default_factory=dict)
    # Makes the command look at all of its queues at once. None if its operations are tried instead.
    look_again: Callable[[], None] | None = None

    def try_acquire(self, wait: Wait, on_release: Callable[[], None]) -> bool:
        """Return whether this wait may be tried. If not, call `on_release` when it may, if it ever may."""
        if self.holder is wait:
            return True  # the caller sends it again; a later reply ends it
        if self.served:
            return False
        if self.holder is None:
            self.holder = wait
            return True
        self.on_release[on_release] = None
        return False

    def close(self) -> bool:
        """Let no operation be sent any longer. Return whether one is in flight, which ends with its reply."""
        self.served = True
        if self.holder is not None:
            self.holder.expired = True
        return self.holder is not None

    def release(self) -> None:
        """Note that no operation is in flight any longer, and tell the queues that were passed over."""
        self.holder = None
        passed, self.on_release = self.on_release, {}
        for tell in passed:
            tell()
