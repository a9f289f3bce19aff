"""Names, sizes and idle times of one shard's queues, as the backend has them, without the lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pressure_server.errors import BackendError, BackendReplyError
from pressure_server.lua.scripts import Script, script_named
from pressure_server.queues.names import (
    ABSENT,
    BOUND,
    EXTENSION_SUFFIXES,
    MADE,
    PROTOCOL_SUFFIXES,
    base_key,
    keys_pattern,
    queue_name,
)

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

# The suffixes of all keys of a queue, and of the keys that puts and gets use.
_STORED = (b"", *PROTOCOL_SUFFIXES, *EXTENSION_SUFFIXES)
_USED = (b"", BOUND, MADE, b":stats:produced_messages", b":stats:consumed_messages")
# Keys that one step of a scan examines, if the caller does not say.
SCAN_COUNT = 1000
# Runs of a backend that the cursors of a scan tell apart (scan.lua).
_RUNS = 4096


class StoredKeys:
    """The keys of one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._link = shard.link
        self._prefix = shard.prefix

    async def stored_bytes_of(self, name: bytes, samples: int) -> int | None:
        """Return the bytes of all keys of a queue; None if there is no such queue.

        The backend measures `samples` items of each, 0 for all. Raises QueueNameError, BackendError.
        """
        sizes, exists = await asyncio.gather(
            self._each_key(name, _STORED, b"MEMORY", b"USAGE", after=(b"SAMPLES", b"%d" % samples)),
            self._link.command(b"EXISTS", base_key(self._prefix, name) + BOUND),
        )
        return sum(sizes) if exists else None

    async def idle_seconds_of(self, name: bytes) -> int | None:
        """Return for how long the keys of a queue have not been used; None without one. Raises as above."""
        try:
            idle = await self._each_key(name, _USED, b"OBJECT", b"IDLETIME")
        except BackendReplyError as error:
            if "LFU" not in str(error):
                raise
            raise BackendReplyError("the backend's LFU policy does not tell idle times") from error
        exists = await self._link.command(b"EXISTS", base_key(self._prefix, name) + BOUND)
        return min(idle, default=0) if exists else None

    async def _each_key(
        self, name: bytes, suffixes: Sequence[bytes], *before: bytes, after: Sequence[bytes] = ()
    ) -> list[int]:
        """Return the backend's number for each key of the queue that exists."""
        keys = (base_key(self._prefix, name) + suffix for suffix in suffixes)
        found = await asyncio.gather(*[self._link.command(*before, key, *after) for key in keys])
        return [number for number in found if number is not None]

    async def command(self, *arguments: bytes) -> Any:
        """Send a command that only reads. Raises BackendError, also for an error reply."""
        return await self._link.command(*arguments)

    async def call_script(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], *, once: bool
    ) -> Any:
        """Call a script on keys that begin with the prefix and a `!`. Raises BackendError or a subclass.

        Pass `once` if it changes something: it is not sent again (OutcomeUnknownError), and its reply comes
        when the change is durable (else NotSafeError). Otherwise it is called again if its reply was lost.
        """
        reply = await self._link.call(script, keys, arguments, once=once)
        if once:
            await self._wait_until_durable()
        return reply

    async def _wait_until_durable(self) -> None:
        """Wait until what was answered last has the durability asked for. Raises NotSafeError."""
        known: asyncio.Future[BackendError | None] = asyncio.get_running_loop().create_future()

        def told(error: BackendError | None) -> None:
            if not known.done():
                known.set_result(error)

        self._shard.when_durable(told)
        if error := await known:
            raise error

    async def scan(self, cursor: bytes, count: int = SCAN_COUNT) -> tuple[bytes, list[bytes]]:
        """Return the next cursor (b"0" at the end) and some names of queues, as Redis's SCAN does.

        The backend examines about `count` keys. A queue that exists all the time is returned at least once.
        """
        after, keys = await self.scan_keys(cursor, keys_pattern(self._prefix, BOUND), count)
        names = [queue_name(self._prefix, key) for key in keys]
        return after, [name for name in names if name is not None]

    async def scan_keys(self, cursor: bytes, pattern: bytes, count: int) -> tuple[bytes, list[bytes]]:
        """Return the next cursor and some keys that match a pattern, as Redis's SCAN does.

        If the keys are on another node of a cluster than before, or it has restarted, the scan begins anew.
        """
        at, run = divmod(int(cursor), _RUNS)
        its_run, after, keys = await self.call_script(
            script_named("upkeep/scan"),
            [self._prefix + ABSENT],
            [b"%d" % at, pattern, b"%d" % count, b"%d" % run],
            once=False,
        )
        return b"%d" % (int(after) * _RUNS + int(its_run) if after != b"0" else 0), keys
