"""The memory account: count the bytes buffered for clients, and throttle or evict the heaviest clients.

No I/O except the log. Connections report only buffers of more than a few KiB. A client below that is never
throttled or evicted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from pressure_server.errors import OutOfMemoryError

logger = logging.getLogger(__name__)

# The part of the limit above which the clients in the account are throttled.
_ENOUGH = 0.75
# Seconds between checks while clients are throttled.
_PAUSE = 0.05
# A client with a turn is evicted if its buffers change by less than these bytes in these seconds.
_PATIENCE = 10.0
_LEAST_PROGRESS = 1 << 20
# Bytes that one read may add. Below the threshold, as many clients resume as have room for one read.
_READ = 256 << 10
# Seconds between log lines of the same kind.
_SAID_EVERY = 10.0


class Holder(Protocol):
    """A client's connection with an entry in the account."""

    @property
    def wants_more(self) -> bool:
        """Whether the connection could proceed if it had a turn: it waits for nothing else."""

    def defer(self) -> None:
        """Stop reading and executing commands until `go_on`."""

    def go_on(self) -> None:
        """Resume reading and executing commands."""

    def evict(self, why: OutOfMemoryError) -> None:
        """Free the connection's buffers and close the connection."""


class Clock(Protocol):
    """The methods of asyncio's event loop that the account uses."""

    def time(self) -> float:
        """Return the loop's time in seconds."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call `callback` after `delay` seconds."""


class Memory:
    """The memory account: the bytes buffered for each connection, and the budget `limit`.

    Above three quarters of the limit, connections in the account are throttled: they wait in a line for a
    turn. As many have a turn as have room to finish a request of `largest` bytes. Above the limit, the
    connection with the most bytes is evicted. So is one with a turn that holds at least 1 MiB and changes by
    less than 1 MiB in ten seconds.
    """

    def __init__(self, limit: int, largest: int, clock: Clock | None = None) -> None:
        self.limit = limit
        self.held = 0
        self.evicted = 0
        self.largest = largest
        self._enough = int(limit * _ENOUGH)
        self._clock = clock or asyncio.get_running_loop()
        self._holders: dict[Holder, int] = {}
        # The line of throttled connections, in order of arrival.
        self._deferred: dict[Holder, None] = {}
        # By connection with a turn: the time and its bytes at the start of the turn or at the last progress.
        self._turns: dict[Holder, tuple[float, int]] = {}
        self._is_short = False
        self._looking: asyncio.TimerHandle | None = None
        self._said: dict[str, float] = {}

    @property
    def deferred(self) -> int:
        """The number of throttled connections that wait for a turn."""
        return len(self._deferred)

    def holds(self, holder: Holder, size: int) -> None:
        """Set the bytes that the connection holds; 0 removes it. Throttle or evict connections if needed."""
        before = self._holders.get(holder, 0)
        self.held += size - before
        if size:
            self._holders[holder] = size
        elif self._forget(holder):
            holder.go_on()
        if self.held > self.limit:
            while self.held > self.limit:
                self._evict(max(self._holders, key=self._holders.__getitem__))
        elif size > before and self.held > self._enough:
            self._slow_down(holder)

    def _forget(self, holder: Holder) -> bool:
        """Remove the connection. Return whether it was waiting for a turn."""
        self._holders.pop(holder, None)
        if self._turns.pop(holder, None) is not None:
            self._look_in(0)  # its turn goes to the next in line
        was_deferred = holder in self._deferred
        self._deferred.pop(holder, None)
        return was_deferred

    def _slow_down(self, holder: Holder) -> None:
        if self._is_short:
            self._defer(holder)
            return
        self._is_short = True
        self._say(
            "buffers hold %d of %d MiB (--max-buffered-bytes): throttling the heaviest clients", self.held
        )
        for other in list(self._holders):
            self._defer(other)

    def _defer(self, holder: Holder) -> None:
        if holder in self._turns or holder in self._deferred:
            return
        self._deferred[holder] = None
        holder.defer()
        self._look_in(_PAUSE)

    def _look_in(self, seconds: float) -> None:
        if self._looking is None or not seconds:
            if self._looking is not None:
                self._looking.cancel()
            self._looking = self._clock.call_later(seconds, self._look)

    def _look(self) -> None:
        self._looking = None
        self._is_short = self.held > self._enough
        if self._is_short:
            self._watch_turns()
            self._give_turns(max(1, (self.limit - self.held) // self.largest) - len(self._turns))
        else:
            self._turns.clear()
            for holder in list(self._deferred)[: max(1, (self._enough - self.held) // _READ)]:
                del self._deferred[holder]
                holder.go_on()
        if self._deferred or self._turns:
            self._look_in(_PAUSE)

    def _watch_turns(self) -> None:
        now = self._clock.time()
        for holder, (since, size) in list(self._turns.items()):
            held = self._holders[holder]
            if abs(held - size) >= _LEAST_PROGRESS:
                self._turns[holder] = now, held
            elif holder.wants_more and held >= _LEAST_PROGRESS and now - since > _PATIENCE:
                self._evict(holder)
            elif not holder.wants_more or now - since > _PATIENCE:
                del self._turns[holder]
                self._defer(holder)

    def _give_turns(self, count: int) -> None:
        for holder in [holder for holder in self._deferred if holder.wants_more][: max(0, count)]:
            # `go_on` of the connections before this one may have removed it from the line.
            if holder in self._deferred:
                del self._deferred[holder]
                self._turns[holder] = self._clock.time(), self._holders[holder]
                holder.go_on()

    def _evict(self, holder: Holder) -> None:
        size = self._holders[holder]
        self.held -= size
        self.evicted += 1
        self._forget(holder)
        holder.evict(OutOfMemoryError(size, self.limit))
        self._say("disconnected a client whose buffers held %d of %d MiB (--max-buffered-bytes)", size)

    def _say(self, what: str, size: int) -> None:
        """Log a kind of event at most once in ten seconds; INFO has the exact numbers."""
        now = self._clock.time()
        if now - self._said.get(what, -_SAID_EVERY) >= _SAID_EVERY:
            self._said[what] = now
            logger.warning(what, size >> 20, self.limit >> 20)
