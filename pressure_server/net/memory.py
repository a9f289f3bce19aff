"""The memory account: count the bytes buffered for clients, and throttle or evict the heaviest clients.

Connections report only buffers of more than a few KiB. A client below that is never throttled or evicted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pressure_server.errors import BufferLimitError

if TYPE_CHECKING:
    from pressure_server.net.connection import Connection

logger = logging.getLogger(__name__)

# The part of the limit above which the clients in the account are throttled.
_THROTTLE_PART = 0.75
# Seconds between checks while clients are throttled.
_PAUSE = 0.05
# A client that does not finish its request in its turn is evicted if its buffers change by less than these
# bytes in these seconds.
_TURN_TIMEOUT = 10.0
_LEAST_PROGRESS = 1 << 20
# Bytes that one read may add. Below the threshold, as many clients resume as have room for one read.
_READ = 256 << 10
# Seconds between log lines of the same kind.
_WARN_EVERY = 10.0


class MemoryAccount:
    """The memory account: the bytes buffered for each connection, and the budget `limit`.

    Above three quarters of the limit, connections in the account wait in a line for a turn. As many have a
    turn as have room to finish a request of `largest` bytes. Above the limit, the connection with the most
    bytes is evicted. So is one with a turn that does not progress; one that has nothing to do passes it on.
    """

    def __init__(self, limit: int, largest: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.limit = limit
        self.held = 0
        self.evicted = 0
        self.largest = largest
        self._throttle_at = int(limit * _THROTTLE_PART)
        self._loop = loop or asyncio.get_running_loop()
        self._holders: dict[Connection, int] = {}
        # The line of throttled connections, in order of arrival.
        self._throttled: dict[Connection, None] = {}
        # By connection with a turn: the time and its bytes at the start of the turn or at the last progress.
        self._turns: dict[Connection, tuple[float, int]] = {}
        self._is_throttling = False
        self._check_timer: asyncio.TimerHandle | None = None
        self._warned_at: dict[str, float] = {}

    @property
    def throttled(self) -> int:
        """The number of throttled connections that wait for a turn."""
        return len(self._throttled)

    def update(self, holder: Connection, size: int) -> None:
        """Set the bytes that the connection holds; 0 removes it. Throttle or evict connections if needed."""
        before = self._holders.get(holder, 0)
        self.held += size - before
        if size:
            self._holders[holder] = size
        elif self._forget(holder):
            holder.resume()
        if self.held > self.limit:
            while self.held > self.limit:
                self._evict(max(self._holders, key=self._holders.__getitem__))
        elif size > before and self.held > self._throttle_at:
            self._slow_down(holder)

    def _forget(self, holder: Connection) -> bool:
        """Remove the connection. Return whether it was waiting for a turn."""
        self._holders.pop(holder, None)
        if self._turns.pop(holder, None) is not None:
            self._check_in(0)  # its turn goes to the next in line
        was_deferred = holder in self._throttled
        self._throttled.pop(holder, None)
        return was_deferred

    def _slow_down(self, holder: Connection) -> None:
        if self._is_throttling:
            self._defer(holder)
            return
        self._is_throttling = True
        self._warn(
            "buffers hold %d of %d MiB (--max-buffered-bytes): throttling clients with more than 4 KiB",
            self.held,
        )
        for other in list(self._holders):
            self._defer(other)

    def _defer(self, holder: Connection) -> None:
        if holder in self._turns or holder in self._throttled:
            return
        self._throttled[holder] = None
        holder.throttle()
        self._check_in(_PAUSE)

    def _check_in(self, seconds: float) -> None:
        if self._check_timer is None or not seconds:
            if self._check_timer is not None:
                self._check_timer.cancel()
            self._check_timer = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        self._check_timer = None
        self._is_throttling = self.held > self._throttle_at
        if self._is_throttling:
            self._watch_turns()
            self._give_turns(max(1, (self.limit - self.held) // self.largest) - len(self._turns))
        else:
            self._turns.clear()
            for holder in list(self._throttled)[: max(1, (self._throttle_at - self.held) // _READ)]:
                del self._throttled[holder]
                holder.resume()
        if self._throttled or self._turns:
            self._check_in(_PAUSE)

    def _watch_turns(self) -> None:
        now = self._loop.time()
        for holder, (since, size) in list(self._turns.items()):
            held = self._holders[holder]
            is_unfinished = holder.is_receiving or held >= _LEAST_PROGRESS
            if abs(held - size) >= _LEAST_PROGRESS:
                self._turns[holder] = now, held
            elif holder.can_proceed and is_unfinished and now - since > _TURN_TIMEOUT:
                self._evict(holder)
            elif not holder.can_proceed or (not is_unfinished and now - since >= _PAUSE):
                del self._turns[holder]
                self._defer(holder)

    def _give_turns(self, count: int) -> None:
        for holder in [holder for holder in self._throttled if holder.can_proceed][: max(0, count)]:
            # `resume` of the connections before this one may have removed it from the line.
            if holder in self._throttled:
                del self._throttled[holder]
                self._turns[holder] = self._loop.time(), self._holders[holder]
                holder.resume()

    def _evict(self, holder: Connection) -> None:
        size = self._holders[holder]
        self.held -= size
        self.evicted += 1
        self._forget(holder)
        holder.evict(BufferLimitError(size, self.limit))
        self._warn("disconnected a client whose buffers held %d of %d MiB (--max-buffered-bytes)", size)

    def _warn(self, what: str, size: int) -> None:
        """Log a kind of event at most once in ten seconds; INFO has the exact numbers."""
        now = self._loop.time()
        if now - self._warned_at.get(what, -_WARN_EVERY) >= _WARN_EVERY:
            self._warned_at[what] = now
            logger.warning(what, size >> 20, self.limit >> 20)
