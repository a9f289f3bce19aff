"""Values of mode kv: memcached's items, kept on the backend, where several servers share them.

A flush only marks values as dead. `Values.sweep_flushed` deletes these in the background.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
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
        # Set after a flush, even if the flush takes effect later.
        self._flushed = asyncio.Event()
        self._shard = database.shards[0]
        self._state = self._shard.prefix + b"!kv"
        self._script = Script((files(__package__) / "scripts" / "values.lua").read_bytes())

    def _key(self, name: bytes) -> bytes:
        return self._state + b":" + name

    def _call(
        self, arguments: Sequence[bytes], keys: Iterable[bytes] = (), *, once: bool = True
    ) -> Coroutine[Any, Any, Any]:
        """Call the script. Without `once`, it is called again if its reply is lost."""
        return self._shard.keys.call_script(self._script, [self._state, *keys], arguments, once=once)

    async def read(self, names: Sequence[bytes], expiry: bytes | None = None) -> list[Value | None]:
        """Return the values of the first keys, at least one; None for a key without a value.

        The list ends early at _MAX_VALUES or _MAX_BYTES, to bound the size of the reply. If an `expiry` is
        given, each value read gets it.
        """
        arguments = [b"get", b"%d" % _MAX_BYTES, expiry or b""]
        keys = map(self._key, names[:_MAX_VALUES])
        found: list[bytes | None] = await self._call(arguments, keys, once=expiry is not None)
        return [None if kept is None else _value(kept) for kept in found]

    async def look(self, name: bytes, arguments: Sequence[bytes], *, changes: bool) -> Found | None:
        """Call the function `mg` of values.lua. Say whether its arguments may change the value."""
        found: list[Any] = await self._call([b"mg", *arguments], [self._key(name)], once=changes)
        return Found(*found) if found else None

    async def change(self, operation: bytes, name: bytes, *arguments: bytes) -> Any:
        """Call a function of values.lua that changes a value. A line is a reply without the line end."""
        return await self._call([operation, *arguments], [self._key(name)])

    async def flush(self, expiry: bytes) -> None:
        """Delete all values that are stored before the time `expiry`; 0 is now."""
        await self._call([b"flush", expiry])
        self._flushed.set()

    async def sweep_flushed(self) -> None:
        """Delete dead values whenever a flush takes effect; also those that stopped servers have left."""
        while True:
            try:
                self._flushed.clear()
                flushed, swept, milliseconds = await self._call([b"look"], once=False)
                if swept < flushed:
                    await self._sweep(flushed)
                    continue
                # Without a planned flush, wait for one.
                due = milliseconds / 1000 if milliseconds >= 0 else None
            except BackendError as error:
                logger.debug("cannot delete flushed values now, trying again: %s", error)
                due = _AGAIN_AFTER
            with suppress(TimeoutError):
                async with asyncio.timeout(due):
                    await self._flushed.wait()

    async def _sweep(self, flushed: int) -> None:
        """Delete all dead values, and note that the flush has deleted its values."""
        cursor = b"0"
        while True:
            cursor, keys = await self._shard.keys.scan_keys(
                cursor, keys_pattern(self._state, b""), _SWEPT_AT_ONCE
            )
            if keys:
                await self._call([b"sweep"], keys, once=False)
            if cursor == b"0":
                break
        await self._call([b"swept", b"%d" % flushed], once=False)


def _value(kept: bytes) -> Value:
    flags, unique, data = kept.split(b" ", 2)
    return Value(flags if len(flags) < _MARKED_DIGITS else b"%d" % (int(flags) & _CLIENT_FLAGS), unique, data)
