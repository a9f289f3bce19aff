"""Values of mode kv: memcached's items, kept on the backend, where several servers share them.

A flush only marks values as dead. The sweeper deletes these in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, NamedTuple

from pressure_server.errors import BackendError
from pressure_server.lua.scripts import Script
from pressure_server.queues.database import Database
from pressure_server.queues.names import keys_pattern

# The most values that one call reads, and the bytes after which it reads no further value.
_MAX_VALUES = 1000
_MAX_BYTES = 1 << 20
_SWEPT_AT_ONCE = 1000
_NO_EXPIRY = b""
# Longer flags may have the marks of meta commands.
_MARKED_DIGITS = 10
_CLIENT_FLAGS = (1 << 32) - 1

logger = logging.getLogger(__name__)
# Seconds until the next try after an error.
_AGAIN_AFTER = 1.0


class Value(NamedTuple):
    """A stored value. `unique` is its cas unique, which is new after every change."""

    flags: bytes
    unique: bytes
    data: bytes


class Found(NamedTuple):
    """A value as mg finds it. `left` are the seconds until it expires, or -1; `marks` are some of W, X and Z.

    `data` is empty unless it was asked for.
    """

    flags: bytes
    unique: bytes
    size: int
    left: int
    marks: bytes
    data: bytes


class Values:
    """The values on one database. Their keys begin with the prefix and `!kv`; no queue's keys do.

    Expiries are in the form of arguments.expiry_of. All methods raise BackendError. A change is sent at most
    once, and raises OutcomeUnknownError if it may have been executed.
    """

    def __init__(self, database: Database) -> None:
        """`flushed` is set after a flush, for the sweeper, even if the flush takes effect later."""
        self.flushed = asyncio.Event()
        self._database = database
        self._shard = database.shards[0]
        self._state = self._shard.prefix + b"!kv"
        self._script = Script((files(__package__) / "scripts" / "values.lua").read_bytes())

    def _key(self, name: bytes) -> bytes:
        return self._state + b":" + name

    async def read(self, names: Sequence[bytes], expiry: bytes | None = None) -> list[Value | None]:
        """Return the values of the first keys, at least one; None for a key without a value.

        The list ends early at _MAX_VALUES or _MAX_BYTES, to bound the size of the reply. If an `expiry` is
        given, each value read gets it.
        """
        touches = expiry is not None
        found: list[bytes | None] = await self._shard.keys.call_script(
            self._script,
            [self._state, *map(self._key, names[:_MAX_VALUES])],
            [b"get", b"%d" % _MAX_BYTES, _NO_EXPIRY if expiry is None else expiry],
            once=touches,
        )
        return [None if kept is None else _value(kept) for kept in found]

    async def look(self, name: bytes, arguments: Sequence[bytes], *, changes: bool) -> Found | None:
        """Call the function `mg` of values.lua. Say whether its arguments may change the value."""
        found: list[Any] = await self._shard.keys.call_script(
            self._script, [self._state, self._key(name)], [b"mg", *arguments], once=changes
        )
        return Found(*found) if found else None

    async def change(self, operation: bytes, name: bytes, *arguments: bytes) -> Any:
        """Call a function of values.lua that changes a value. A line is a reply without the line end."""
        return await self._shard.keys.call_script(
            self._script, [self._state, self._key(name)], [operation, *arguments], once=True
        )

    async def flush(self, expiry: bytes) -> None:
        """Delete all values that are stored before the time `expiry`; 0 is now."""
        await self._shard.keys.call_script(self._script, [self._state], [b"flush", expiry], once=True)
        self.flushed.set()

    async def due(self) -> float | None:
        """Return the seconds until a sweep is due: 0 if values are dead now, None without a planned flush."""
        flushed, swept, milliseconds = await self._look()
        if swept < flushed:
            return 0.0
        return milliseconds / 1000 if milliseconds >= 0 else None

    async def sweep(self) -> None:
        """Delete all dead values."""
        flushed = (await self._look())[0]
        cursor = b"0"
        while True:
            cursor, keys = await self._shard.keys.scan_keys(
                cursor, keys_pattern(self._state, b""), _SWEPT_AT_ONCE
            )
            if keys:
                await self._harmless([self._state, *keys], [b"sweep"])
            if cursor == b"0":
                break
        await self._harmless([self._state], [b"swept", b"%d" % flushed])

    async def _look(self) -> list[int]:
        found: list[int] = await self._harmless([self._state], [b"look"])
        return found

    async def _harmless(self, keys: list[bytes], arguments: list[bytes]) -> list[int]:
        """Call the script for work that may be repeated if the reply is lost."""
        reply: list[int] = await self._shard.keys.call_script(self._script, keys, arguments, once=False)
        return reply


def _value(kept: bytes) -> Value:
    flags, unique, data = kept.split(b" ", 2)
    return Value(flags if len(flags) < _MARKED_DIGITS else b"%d" % (int(flags) & _CLIENT_FLAGS), unique, data)


class Sweeper:
    """A listener's sweeper. It also finishes what stopped servers have left."""

    def __init__(self, values: Values) -> None:
        self._values = values

    async def sweep(self) -> None:
        """Sweep whenever a flush takes effect, until cancelled."""
        while True:
            try:
                self._values.flushed.clear()
                due = await self._values.due()
                if due == 0:
                    await self._values.sweep()
                    continue
            except BackendError as error:
                logger.debug("cannot delete flushed values now, trying again: %s", error)
                due = _AGAIN_AFTER
            with suppress(TimeoutError):
                async with asyncio.timeout(due):
                    await self._values.flushed.wait()
