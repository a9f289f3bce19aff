"""Values by key, as memcached has them: kept on the backend, where several servers share them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

from pressure_server.lua.script import Script
from pressure_server.queues.database import Database
from pressure_server.queues.names import keys_pattern

# One call reads so many values at most, and none behind so many bytes.
_MOST_VALUES = 1000
_MOST_BYTES = 1 << 20
_SWEPT_AT_ONCE = b"1000"
_NO_EXPIRY = b""


class Value(NamedTuple):
    """What is kept under a key. `unique` is another one whenever it has been changed."""

    flags: bytes
    unique: bytes
    data: bytes


class Values:
    """Those on one database; their keys there begin with the prefix and `!kv`, as no queue's do.

    Expiries are as words.expiry_of has them. All raise BackendError; what changes anything is done once at
    most, and raises OutcomeUnknownError where it may have been.
    """

    def __init__(self, database: Database) -> None:
        """`flushed` is set when there is something to be swept, or will be."""
        self.flushed = asyncio.Event()
        self._database = database
        self._state = database.prefix + b"!kv"
        self._script = Script((files(__package__) / "scripts" / "values.lua").read_bytes())

    def _key(self, name: bytes) -> bytes:
        return self._state + b":" + name

    async def read(self, names: Sequence[bytes], expiry: bytes | None = None) -> list[Value | None]:
        """The values of the first of these keys, one at least: of as many as make a reply of sane size.

        Where there is an `expiry` it is that of each of them from now on.
        """
        touches = expiry is not None
        found: list[bytes | None] = await self._database.call_script(
            self._script,
            [self._state, *map(self._key, names[:_MOST_VALUES])],
            [b"get", b"%d" % _MOST_BYTES, _NO_EXPIRY if expiry is None else expiry],
            once=touches,
        )
        return [kept if kept is None else Value(*kept.split(b" ", 2)) for kept in found]

    async def change(self, operation: bytes, name: bytes, *arguments: bytes) -> bytes:
        """Do one of the operations that values.lua says return a line; memcached's reply, without its end."""
        line: bytes = await self._database.call_script(
            self._script, [self._state, self._key(name)], [operation, *arguments], once=True
        )
        return line

    async def flush(self, expiry: bytes) -> None:
        """All that has been stored when the expiry comes is gone then; 0 is now."""
        await self._database.call_script(self._script, [self._state], [b"flush", expiry], once=True)
        self.flushed.set()

    async def due(self) -> float | None:
        """In how many seconds there are dead values to be removed: 0 where there are now, None for never."""
        flushed, swept, milliseconds = await self._look()
        if swept < flushed:
            return 0.0
        return milliseconds / 1000 if milliseconds >= 0 else None

    async def sweep(self) -> None:
        """Remove the dead."""
        flushed = (await self._look())[0]
        cursor = b"0"
        while True:
            cursor, keys = await self._database.command(
                b"SCAN", cursor, b"MATCH", keys_pattern(self._state, b""), b"COUNT", _SWEPT_AT_ONCE
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
        """Where it is done twice."""
        reply: list[int] = await self._database.call_script(self._script, keys, arguments, once=False)
        return reply
