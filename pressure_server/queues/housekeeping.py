"""Housekeeping of a shard: what it does in the background for queues, used or not.

Tasks for many queues are one call of a script (housekeeping.lua). Queues are watched for deletion by native
clients, which leave keys of ours, and for jobs that are due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pressure_server.backend.watch import Watch
from pressure_server.errors import BackendError, BackendReplyError, PressureError
from pressure_server.lua.scripts import script_named
from pressure_server.queues.names import BOUND, DUE_QUEUES, base_key, portions
from pressure_server.queues.operations import verbs

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

logger = logging.getLogger(__name__)

# At most this many queues are watched, with names of at most this many bytes.
_MAX_WATCHED = 20_000
_MAX_WATCHED_NAME = 256

# Queues that are used at once, and seconds until the next ones are.
_DUE_AT_ONCE = 100
_PAUSE = 0.01
# Seconds until the times are read again, if the backend does not report changes, or after an error.
_RETRY_AFTER = 1.0


class Housekeeping:
    """The housekeeping of one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._script = script_named("upkeep/housekeeping")
        self._gone: dict[bytes, None] = {}
        self._cleaning: asyncio.Task[None] | None = None

    async def expire(self, names: Sequence[bytes], seconds: float) -> list[int | BackendError]:
        """Delete queues that have been empty and unused. Return 1 for each if so, else 0, or an error."""
        return await self._call(b"expire", names, b"%g" % seconds)

    async def delete(self, names: Sequence[bytes]) -> list[int | BackendError]:
        """Delete the queues whose roles are free. Raises BackendError.

        Returns for each: 1 if it is deleted; 0 if there is none; -1 if an operation must delete it, as a
        native client holds a role; or an error.
        """
        return await self._call(b"delete", names, b"")

    def clean(self, name: bytes) -> None:
        """Delete the extension keys of a queue that a native client has deleted, in a call with others."""
        if not self._shard.is_up:
            return
        self._gone[name] = None
        if self._cleaning is None:
            self._cleaning = asyncio.create_task(self._clean())

    async def _clean(self) -> None:
        while self._gone:
            gone, self._gone = list(self._gone), {}
            for names in portions(gone):
                try:
                    await self._call(b"clean", names, b"")
                except BackendError as error:
                    # The doctor finds these keys: "left behind".
                    logger.debug("cannot delete the remaining keys of deleted queues: %s", error)
        self._cleaning = None

    async def _call(self, verb: bytes, names: Sequence[bytes], argument: bytes) -> list[Any]:
        keys = [base_key(self._shard.prefix, name) for name in names]
        arguments = (self._shard.identity, verb, b"", argument, self._shard.prefix + b"!")
        results: list[Any] = await self._shard.link.call(self._script, keys, arguments, once=False)
        return [
            BackendError(f"the backend answered: {result}") if isinstance(result, Exception) else result
            for result in results
        ]


class DeletionWatch:
    """The watched queues of one database."""

    def __init__(self, watch: Watch, number: int, prefix: bytes, on_deleted: Callable[[bytes], None]) -> None:
        """`on_deleted` is called with a queue's name if the queue had been deleted when its watch began."""
        self._watch = watch
        self._on_deleted = on_deleted
        self._number = number
        self._prefix = prefix
        self._watched: set[bytes] = set()

    def note(self, name: bytes, *, exists: bool) -> bool:
        """Note that a queue exists or not. Return False if this must be noted again: the watch is down."""
        if not self._watch.is_up:
            if not exists:
                self._watched.discard(name)
            return False
        # If the queue does not exist, the watch reports the deletion, and `forget` removes the name.
        if exists and name not in self._watched and self._has_room_for(name):
            self._watched.add(name)
            self._watch.arm(self._number, [self._key(name)], lambda there, _: self._armed(name, there))
        return True

    def _has_room_for(self, name: bytes) -> bool:
        return len(self._watched) < _MAX_WATCHED and len(name) <= _MAX_WATCHED_NAME

    def _key(self, name: bytes) -> bytes:
        return base_key(self._prefix, name) + BOUND

    def _armed(self, name: bytes, there: int | None) -> None:
        if there:
            # An earlier watch may have reported the creation of the queue after this one was asked for.
            self._watched.add(name)
        elif there == 0 and self.forget(name):
            self._on_deleted(name)

    def forget(self, name: bytes) -> bool:
        """Forget a queue whose `:bound` key has changed: it was deleted. Return whether it was watched."""
        if name in self._watched:
            self._watched.remove(name)
            return True
        return False

    def forget_all(self) -> None:
        """Forget which queues are watched, as the watch was lost; the backend still tracks their keys."""
        self._watch.disarm(self._number, map(self._key, self._watched))
        self._watched.clear()


class DueQueues:
    """Uses a queue that has dead letters when a delay or a reservation of its jobs ends.

    Otherwise clients that wait for the dead letters would get them only when the queue itself is used. The
    first server moves them, and the others find nothing to do.
    """

    def __init__(self, shard: Shard, watch: Watch, *, is_active: bool) -> None:
        """Servers that keep no records do not look after jobs, so they are not active."""
        self._shard = shard
        self._watch = watch
        self._key = shard.prefix + DUE_QUEUES
        # The queues that the last look has used, with the times at which they were due.
        self._used: dict[bytes, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        # Whether the times may have changed since they were read.
        self._has_changed = False
        self._is_stopped = not is_active

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
                ((b"ZRANGE", self._key, b"0", b"%d" % (_DUE_AT_ONCE - 1), b"WITHSCORES"), (b"TIME",))
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
