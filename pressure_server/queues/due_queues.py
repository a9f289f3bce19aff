"""Due queues: use a queue that has dead letters when a delay or a reservation of its jobs ends.

Otherwise clients that wait for the dead letters would get them only when the queue itself is used. The first
server moves them, and the others find nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pressure_server.backend.watch import Watch
from pressure_server.errors import BackendReplyError, PressureError
from pressure_server.queues.names import DUE_QUEUES
from pressure_server.queues.operations import verbs

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

logger = logging.getLogger(__name__)

# Queues that are used at once, and seconds until the next ones are.
_AT_ONCE = 100
_PAUSE = 0.01
# Seconds until the times are read again, if the backend does not report changes, or after an error.
_RETRY_AFTER = 1.0


class DueQueues:
    """The due queues of one shard."""

    def __init__(self, shard: Shard, watch: Watch) -> None:
        self._shard = shard
        self._watch = watch
        self._key = shard.prefix + DUE_QUEUES
        # The queues that the last look has used, with the times at which they were due.
        self._used: dict[bytes, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        # Whether the times may have changed since they were read.
        self._has_changed = False
        self._is_stopped = False

    def changed(self, key: bytes) -> bool:
        """Note that a watched key has changed; return whether it is the one with the times."""
        if key == self._key:
            self.look()
        return key == self._key

    def look(self) -> None:
        """Watch the times, and read the first."""
        if not self._is_stopped:
            self._watch.arm(self._shard.database_number, [self._key], self._armed)

    def stop(self) -> None:
        """Use no queues any longer: the server stops."""
        self._is_stopped = True
        self._set_timer(None)

    def _armed(self, there: int | None, _value: bytes | None) -> None:
        if there != 0:
            self._begin()

    def _begin(self) -> None:
        self._has_changed = True
        if self._looking is None and not self._is_stopped:
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Use the queues that are due, and look again when the next one is."""
        pause: float | None = _RETRY_AFTER
        self._has_changed = False
        try:
            found, (seconds, microseconds) = await self._shard.link.read_together(
                ((b"ZRANGE", self._key, b"0", b"%d" % (_AT_ONCE - 1), b"WITHSCORES"), (b"TIME",))
            )
            if isinstance(found, Exception):
                raise BackendReplyError(f"the backend answered: {found}")
            now = int(seconds) * 1000 + int(microseconds) / 1000
            times = dict(zip(found[::2], map(float, found[1::2]), strict=True))
            due = {base: time for base, time in times.items() if time <= now}
            await self._use(due)
            if due:
                pause = _PAUSE
            elif self._watch.is_up:
                pause = (min(times.values()) - now) / 1000 if times else None
        except PressureError as error:
            logger.debug("cannot move dead letters that are due: %s; trying again", error)
        finally:
            self._looking = None
        if not self._is_stopped:
            self._set_timer(0 if self._has_changed else pause)

    async def _use(self, due: dict[bytes, float]) -> None:
        """Use the queues with these base keys, whose jobs are due at these times. Raises PressureError."""
        # These were used at the last look, and their times have not changed: another server version may have
        # deleted the queue. Nothing is due there.
        outdated = [base for base, time in due.items() if self._used.get(base) == time]
        if outdated:
            await self._shard.link.command(b"ZREM", self._key, *outdated)
        self._used = due
        names = [base[len(self._shard.prefix) + 1 :] for base in due]
        # Any operation makes the library notice what has ended.
        for result in await self._shard.run_each(verbs.EXISTS, names):
            if isinstance(result, PressureError):
                raise result

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            # Without a watch, only looking again shows what has changed.
            follows = self._begin if self._watch.is_up else self.look
            self._timer = asyncio.get_running_loop().call_later(seconds, follows)
