"""Waiting: how long an operation waits, and how far it has come; and who of several may take.

Pure: the lane keeps those who wait in line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pressure_server.errors import PressureError
from pressure_server.queues.operations.wait_condition import WaitCondition

# Put and add wait for room as long as the server's settings say.
AS_CONFIGURED = -1.0


class Timer(Protocol):
    """Something that will be called."""

    def when(self) -> float:
        """Return the time, by the clock of whoever made it."""

    def cancel(self) -> None:
        """Do not call it."""


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
    lack: WaitCondition | None = None
    # The other queue of a move, and whether it is there that something is lacking.
    other: bytes = b""
    elsewhere: bool = False
    # Why it ends where it has waited in vain; None for a message that has not come.
    reason: PressureError | None = None
    # When its time is up, by the loop's clock: for what it waits for, and for a role.
    until: float | None = None
    role_until: float | None = None
    timer: Timer | None = None
    # Whether it is `until` that has come.
    out_of_time: bool = False
    in_line: bool = False
    is_counted: bool = False
    # Only some of its commands were sent, and all of these have been done.
    was_cut: bool = False
    expired: bool = False

    def end(self, *, served: bool) -> None:
        """The operation has ended: nothing is waited for any longer. `served`: it has got something."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.ticket is not None:
            self.ticket.served = self.ticket.served or served
            self.ticket.release()

    def deadline(self, now: float, timeout: float | None, role_timeout: float) -> float | None:
        """When it has waited long enough; None for never. `now` itself where it must not wait at all."""
        if self.until is None and timeout is not None:
            self.until = now + timeout
        if self.lack in (WaitCondition.MESSAGE, WaitCondition.ROOM):
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

    under_way: object | None = None
    served: bool = False
    passed: list[Callable[[], None]] = field(default_factory=list)

    def admits(self, operation: object, passed: Callable[[], None]) -> bool:
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
