"""Housekeeping: tasks for many queues in one call of a script, used or not (housekeeping.lua).

Queues are watched for deletion by native clients, which leave keys of ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pressure_server.backend.watch import Watch
from pressure_server.errors import BackendError
from pressure_server.lua.scripts import script_named
from pressure_server.queues.names import BOUND, base_key, portions

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

logger = logging.getLogger(__name__)

# At most this many queues are watched, with names of at most this many bytes.
_MAX_WATCHED = 20_000
_MAX_WATCHED_NAME = 256


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
        """Delete those of the queues whose roles are free. Raises BackendError.

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
