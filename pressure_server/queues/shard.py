"""A shard: the lanes of the queues whose keys are together on one node, and plain reading of these keys.

A database on one node has one shard. On a cluster it has several, each with a prefix and connections of its
own (placement.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from typing import Any

from pressure_server.errors import BackendError, BackendReplyError, PressureError
from pressure_server.lua.scripts import Script, scan_script
from pressure_server.queues.lanes.dispatcher import LaneDispatcher
from pressure_server.queues.names import (
    BOUND,
    EXTENSION_SUFFIXES,
    MADE,
    NO_PLAIN_LIST,
    PROTOCOL_SUFFIXES,
    absent_key,
    base_key,
    existence_pattern,
    queue_name,
)
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.block_reply import Refused
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.owners import Client, CoroutineOwner

# The suffixes of all keys of a queue, and of those that puts and gets use.
_STORED = (b"", *PROTOCOL_SUFFIXES, *EXTENSION_SUFFIXES)
_USED = (b"", BOUND, MADE, b":stats:produced_messages", b":stats:consumed_messages")
# Queues that are operated on, or read from, at the same time: each takes some memory.
_AT_ONCE = 100
# Ranges of fewer messages may be read at the same time.
_SHORT_RANGE = 1000
# Keys that one step of a scan examines, if the caller does not say.
SCAN_COUNT = 1000
# Runs of a backend that the cursors of a scan tell apart (scan.lua).
_RUNS = 4096


class Shard(LaneDispatcher):
    """The queues of one shard of a database. The broker creates it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See LaneDispatcher."""
        super().__init__(*arguments, **options)
        self._long_reading = asyncio.Lock()

    async def run_each(
        self,
        verb: Verb,
        names: Sequence[bytes],
        arguments: list[bytes] | None = None,
        client: Client | None = None,
    ) -> list[Any]:
        """See QueueOperations."""

        def one(name: bytes) -> Coroutine[Any, Any, list[Any] | PressureError]:
            call = CoroutineOwner(client)
            return self.attempt(Operation(verb, name, list(arguments or []), 1, call), call)

        results: list[Any] = []
        for first in range(0, len(names), _AT_ONCE):
            # `attempt` returns errors: raised ones would keep their frames in memory.
            results += await asyncio.gather(*map(one, names[first : first + _AT_ONCE]))
        return [result if isinstance(result, PressureError) else result[0] for result in results]

    async def ranges(self, names: Sequence[bytes], first: int, last: int) -> list[list[bytes] | None]:
        """See QueueOperations.

        Sends plain commands, as a script would keep the backend busy five times as long.
        """
        commands: list[tuple[bytes, ...]] = []
        for name in names:
            base = base_key(self.prefix, name)
            commands.append((b"MGET", base + BOUND, base + MADE))
            commands.append((b"LRANGE", base, b"%d" % (-1 - last), b"%d" % (-1 - first)))
        # Read long replies one at a time: they are in memory before the memory account counts them.
        is_short = 0 <= last - first < _SHORT_RANGE and (first < 0) == (last < 0) and len(names) < _AT_ONCE
        async with nullcontext() if is_short else self._long_reading:
            self.flush_put_backs(names)
            replies = await self._link.read_together(commands)
        ranges: list[list[bytes] | None] = []
        made = [one[1] for one in replies[::2] if isinstance(one, list)]
        if any(one is not None and one.endswith(NO_PLAIN_LIST) for one in made):
            return await self._ranges_by_script(names, first, last)
        for (exists, _), newest_first in zip(replies[::2], replies[1::2], strict=True):
            if isinstance(newest_first, Exception):
                raise BackendReplyError(f"the backend answered: {newest_first}") from newest_first
            newest_first.reverse()
            ranges.append(newest_first if exists else None)
        return ranges

    async def _ranges_by_script(
        self, names: Sequence[bytes], first: int, last: int
    ) -> list[list[bytes] | None]:
        """Return what `ranges` does; some of the queues are not plain lists, so the script reads them."""
        arguments: list[bytes] = []
        keys = [base_key(self.prefix, name) for name in names]
        for key in keys:
            arguments += (b"on", b"1", key, verbs.RANGE.name, b"2", b"%d" % first, b"%d" % last)
        while True:
            reply = await self.call_directly(
                keys, arguments, lambda _reply, _delivery: None, lambda: None, changes=False
            )
            if not isinstance(reply, Refused):
                break
            # Many jobs are due, or must be made: each call does some of that first.
        ranges: list[list[bytes] | None] = []
        for messages in reply[1:]:
            if isinstance(messages, Exception) and not str(messages).startswith("NOQUEUE"):
                raise BackendReplyError(f"the backend answered: {messages}") from messages
            ranges.append(None if isinstance(messages, Exception) else messages)
        return ranges

    async def stored_bytes_of(self, name: bytes, samples: int) -> int | None:
        """Return the bytes of all keys of a queue; None if there is no such queue.

        The backend measures so many items of each collection, 0 for all. Raises QueueNameError, or
        BackendError.
        """
        sizes, exists = await asyncio.gather(
            self._each_key(name, _STORED, b"MEMORY", b"USAGE", after=(b"SAMPLES", b"%d" % samples)),
            self._link.command(b"EXISTS", base_key(self.prefix, name) + BOUND),
        )
        return sum(sizes) if exists else None

    async def idle_seconds_of(self, name: bytes) -> int | None:
        """Return the seconds since the keys of a queue were used; None if there is no such queue.

        Raises QueueNameError, or BackendError.
        """
        try:
            idle = await self._each_key(name, _USED, b"OBJECT", b"IDLETIME")
        except BackendReplyError as error:
            if "LFU" not in str(error):
                raise
            raise BackendReplyError("the backend's LFU policy does not tell idle times") from error
        exists = await self._link.command(b"EXISTS", base_key(self.prefix, name) + BOUND)
        return min(idle, default=0) if exists else None

    async def _each_key(
        self, name: bytes, suffixes: Sequence[bytes], *before: bytes, after: Sequence[bytes] = ()
    ) -> list[int]:
        """Return the backend's numbers for those of the queue's keys that exist."""
        keys = (base_key(self.prefix, name) + suffix for suffix in suffixes)
        found = await asyncio.gather(*[self._link.command(*before, key, *after) for key in keys])
        return [number for number in found if number is not None]

    async def command(self, *arguments: bytes) -> Any:
        """Send a command that only reads. Raises BackendError, also for an error reply."""
        return await self._link.command(*arguments)

    async def call_script(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], *, once: bool
    ) -> Any:
        """Call a script of a handler on the handler's own keys, which begin with the prefix and a `!`.

        If the script changes something, pass `once`: it is not sent again, and its reply is returned when the
        change has the durability asked for. Without `once`, the script is called again if its reply was lost.

        Raises OutcomeUnknownError if the script may have been done, NotSafeError if it has been done but may
        not be durable, BackendReplyError for an error reply, and BackendError otherwise.
        """
        reply = await self._link.call(script, keys, arguments, once=once)
        if once:
            await self._wait_until_durable()
        return reply

    async def _wait_until_durable(self) -> None:
        """Wait until what was answered last has the durability asked for. Raises NotSafeError."""
        known: asyncio.Future[BackendError | None] = self._loop.create_future()

        def told(error: BackendError | None) -> None:
            if not known.done():
                known.set_result(error)

        self.when_durable(told)
        if error := await known:
            raise error

    async def scan(self, cursor: bytes, count: int = SCAN_COUNT) -> tuple[bytes, list[bytes]]:
        """Return the next cursor (b"0" at the end) and some names of queues, as Redis's SCAN does.

        `count` is about how many keys the backend examines. A queue that exists during the whole scan is
        returned at least once.
        """
        after, keys = await self.scan_keys(cursor, existence_pattern(self.prefix), count)
        names = [queue_name(self.prefix, key) for key in keys]
        return after, [name for name in names if name is not None]

    async def scan_keys(self, cursor: bytes, pattern: bytes, count: int) -> tuple[bytes, list[bytes]]:
        """Return the next cursor and some keys that match a pattern, as Redis's SCAN does.

        While the keys move to another node of a cluster, wait until they are together. The scan begins anew
        if they are on another node than before, or the backend has restarted.
        """
        at, run = divmod(int(cursor), _RUNS)
        its_run, after, keys = await self.call_script(
            scan_script(),
            [absent_key(self.prefix)],
            [b"%d" % at, pattern, b"%d" % count, b"%d" % run],
            once=False,
        )
        return b"%d" % (int(after) * _RUNS + int(its_run) if after != b"0" else 0), keys
