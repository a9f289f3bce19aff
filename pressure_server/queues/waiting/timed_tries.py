"""The times at which the waiting operations of one queue are tried again without any change of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pressure_server.queues.operations.block_reply import Due

# If a job is due within this many seconds when an operation's time is up, the operation waits for it, and a
# little longer: timers may be early by some milliseconds.
_SOON, _AFTER_DUE = 0.01, 0.002


class TimedTries:
    """The timers of one lane's waiting operations: consumers wait for jobs, producers for room."""

    __slots__ = ("_due", "_due_at", "_loop", "_room", "_try", "due_note")

    def __init__(self, loop: asyncio.AbstractEventLoop, try_again: Callable[[], None]) -> None:
        self._loop = loop
        self._try = try_again
        # When a delay, a reservation or a pause ends. Each reply says when that is; the backend's note shows
        # changes by others.
        self._due: asyncio.TimerHandle | None = None
        # uvloop's timer of no time at all does not tell its time.
        self._due_at: float | None = None
        self.due_note: bytes | None = None
        # When a message expires that is in the way of puts.
        self._room: asyncio.TimerHandle | None = None

    def job_is_due(self, due: Due) -> None:
        """Try again when a job is due, instead of at the time that was set before."""
        self.due_note = due.note
        if self._due is not None:
            self._due.cancel()
            self._due = self._due_at = None
        if due.seconds is not None:
            self._due_at = self._loop.time() + due.seconds
            self._due = self._loop.call_later(due.seconds, self._try)

    def room_after(self, seconds: float) -> None:
        """Try again in some seconds, instead of at the time that was set before."""
        if self._room is not None:
            self._room.cancel()
        self._room = self._loop.call_later(seconds, self._try)

    @property
    def due_soon(self) -> float | None:
        """Until when to wait, by the loop's clock, if the queue may have another job now or soon."""
        now = self._loop.time()
        return (
            None
            if self._due_at is None or self._due_at > now + _SOON
            else max(self._due_at, now) + _AFTER_DUE
        )

    def stop(self) -> None:
        """Try no more."""
        for timer in (self._due, self._room):
            if timer is not None:
                timer.cancel()
