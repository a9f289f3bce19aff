"""Memory: the account of what clients have us keep, of requests and replies, and who has to wait or to go.

Pure, but for the loop's clock and its log. A client that has us keep less than a few KiB is not in it, and is
served whatever the others do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from pressure_server.errors import OutOfMemoryError

logger = logging.getLogger(__name__)

# Of the limit: beyond it who has us keep something is not read or executed any further.
_ENOUGH = 0.75
# Seconds between looks while somebody has to wait; and for which who has its turn may get on by less.
_PAUSE = 0.05
_PATIENCE = 10.0
_LEAST_PROGRESS = 1 << 20
# What one read may bring; who has waited goes on only where there is room for it.
_READ = 256 << 10
# Seconds between what is said of the same.
_SAID_EVERY = 10.0


class Holder(Protocol):
    """A client's connection."""

    @property
    def wants_more(self) -> bool:
        """Whether it would go on if it had its turn: it waits for nothing else."""

    def defer(self) -> None:
        """Read and execute nothing further, until `go_on`."""

    def go_on(self) -> None:
        """See `defer`."""

    def evict(self, why: OutOfMemoryError) -> None:
        """Free what it has us keep, and close it."""


class Clock(Protocol):
    """The part of asyncio's loop that is needed."""

    def time(self) -> float:
        """Seconds."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call it after so many seconds."""


class Memory:
    """The bytes that connections hold, and what follows when they are many.

    Beyond three quarters of `limit` those in the account are slowed: they wait in line, and as many of them
    go on as have room to finish a request of `largest` bytes. Beyond the limit who holds most goes; so does
    who has its turn, holds a mebibyte, and gets on by less than another in ten seconds.
    """

    def __init__(self, limit: int, largest: int, clock: Clock | None = None) -> None:
        self.limit = limit
        self.held = 0
        self.evicted = 0
        self.largest = largest
        self._enough = int(limit * _ENOUGH)
        self._clock = clock or asyncio.get_running_loop()
        self._holders: dict[Holder, int] = {}
        # In line, first come, first served; and who has its turn: since when, and what it held then.
        self._deferred: dict[Holder, None] = {}
        self._turns: dict[Holder, tuple[float, int]] = {}
        self._is_short = False
        self._looking: asyncio.TimerHandle | None = None
        self._said: dict[str, float] = {}

    @property
    def deferred(self) -> int:
        """How many wait in line."""
        return len(self._deferred)

    def holds(self, holder: Holder, size: int) -> None:
        """So many bytes are held by it from now on."""
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
        """It holds nothing any longer; whether it was in line."""
        self._holders.pop(holder, None)
        if self._turns.pop(holder, None) is not None:
            self._look_in(0)  # who is next
        was_deferred = holder in self._deferred
        self._deferred.pop(holder, None)
        return was_deferred

    def _slow_down(self, holder: Holder) -> None:
        if self._is_short:
            self._defer(holder)
            return
        self._is_short = True
        self._say("clients have us keep %d MiB of %d: who has us keep much is slowed", self.held)
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
            # Going on may have freed, or cost, others what they hold.
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
        self._say("a client is closed that had us keep %d MiB, where all may have %d", size)

    def _say(self, what: str, size: int) -> None:
        """Once in a while; INFO has the numbers."""
        now = self._clock.time()
        if now - self._said.get(what, -_SAID_EVERY) >= _SAID_EVERY:
            self._said[what] = now
            logger.warning(what, size >> 20, self.limit >> 20)
