"""The queues of one database: operations on one or several of them, and listing them.

A queue is in one shard, by its name (placement.py). What concerns one queue goes to its shard; what concerns
several goes to each of theirs, and is not one step if these are several.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from math import inf
from typing import Any, TypeVar

from pressure_server.errors import (
    BACKEND_LOST,
    BackendDiedError,
    CrossShardError,
    PressureError,
    QueueClosedError,
)
from pressure_server.queues.calls.statistics import CallStatistics
from pressure_server.queues.lanes.lane import Lane
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Line, Operation, Verb
from pressure_server.queues.operations.options import WAITS, Options
from pressure_server.queues.operations.owners import Client, CoroutineOwner
from pressure_server.queues.operations.wait import Unblocking, Wait
from pressure_server.queues.placement import Placement
from pressure_server.queues.policy import Policy
from pressure_server.queues.queue_operations import QueueOperations
from pressure_server.queues.reserving import reserve_best
from pressure_server.queues.shard import Shard
from pressure_server.queues.stored_keys import SCAN_COUNT
from pressure_server.queues.waiting.several_queues import SeveralQueues
from pressure_server.text import printable

_Result = TypeVar("_Result")

# Most SCAN steps of `sample_queues`: the backend may hold millions of other keys.
_MAX_SCAN_STEPS = 20
# The most names of queues whose shard is known without computing it, and the longest, in bytes.
_MOST_KNOWN, _LONGEST_KNOWN = 20_000, 256
# The options of a command that takes several messages, and waits for the first only.
UP_TO_COUNT = Options(waits=True, wait_for_first=True)


class Database(QueueOperations):
    """The queues of one of the backend's databases. The broker creates one for each number in use."""

    def __init__(self, shards: Sequence[Shard], placement: Placement) -> None:
        """`shards` are in the order of the placement."""
        self.shards = shards
        self._placement = placement
        first = shards[0]
        self.database_number = first.database_number
        self.answers = first.answers
        self._known: dict[bytes, Shard] = {}
        # The shards to which operations of the present read have gone.
        self._touched: dict[Shard, None] = {}
        # How an operation gets to its lane, and how a client's read ends. A single shard does both itself:
        # that saves a call for each request.
        self.add: Callable[[Operation], Lane] = first.add
        self.end_of_read: Callable[[], None] = first.end_of_read
        if len(shards) > 1:
            self.add, self.end_of_read = self._add, self._end_of_read
            for shard in shards:
                shard.others_are_up = lambda: self.is_up

    def shard_of(self, name: bytes) -> Shard:
        """Return the shard that has the queue, or would have it."""
        shard = self._known.get(name)
        if shard is None:
            shard = self.shards[self._placement.shard_of(name)]
            if len(name) <= _LONGEST_KNOWN:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[name] = shard
        return shard

    def shard_of_block(self, block: int) -> Shard:
        """Return the shard whose queues have the job ids of this block (lua/kinds/job_ids.lua)."""
        return self.shards[block % len(self.shards)]

    def by_shard(self, names: Sequence[bytes]) -> Iterator[tuple[Shard, list[bytes]]]:
        """Yield each shard that has some of the queues, with these."""
        if len(self.shards) == 1:
            yield self.shards[0], list(names)
            return
        found: dict[Shard, list[bytes]] = {}
        for name in names:
            found.setdefault(self.shard_of(name), []).append(name)
        yield from found.items()

    def is_away(self, name: bytes) -> bool:
        """Return whether the shard of the queue cannot be reached, but another one can."""
        return self.shard_of(name).is_away

    def common_shard(self, first: bytes, *others: bytes) -> Shard:
        """Return the shard of several queues. Raises CrossShardError if they are in different ones."""
        shard = self.shard_of(first)
        for other in others:
            if self.shard_of(other) is not shard:
                raise CrossShardError(printable(first), printable(other))
        return shard

    def prefix_of(self, first: bytes, *others: bytes) -> bytes:
        """Return the beginning of the keys of queues in one shard. Raises CrossShardError."""
        return self.common_shard(first, *others).prefix

    # Operations

    def _add(self, operation: Operation) -> Lane:
        shard = self.shard_of(operation.name)
        self._touched[shard] = None
        return shard.add(operation)

    def _end_of_read(self) -> None:
        touched, self._touched = self._touched, {}
        for shard in touched:
            shard.end_of_read()

    def submit(self, operation: Operation) -> None:
        """See Shard.submit."""
        self.shard_of(operation.name).submit(operation)

    def cancel(self, operation: Operation) -> None:
        """See Shard.cancel."""
        self.shard_of(operation.name).cancel(operation)

    def unblock(self, operation: Operation, unblocking: Unblocking) -> None:
        """See Shard.unblock."""
        self.shard_of(operation.name).unblock(operation, unblocking)

    async def attempt(self, operation: Operation, owner: CoroutineOwner) -> list[Any] | PressureError:
        """See Shard.attempt."""
        return await self.shard_of(operation.name).attempt(operation, owner)

    def waiting(self, names: Sequence[bytes] | None = None) -> dict[bytes, dict[Line, int]]:
        """See Shard.waiting."""
        return {name: lines for shard in self.shards for name, lines in shard.waiting(names).items()}

    async def run_each(
        self,
        verb: Verb,
        names: Sequence[bytes],
        arguments: list[bytes] | None = None,
        client: Client | None = None,
    ) -> list[Any]:
        """See QueueOperations."""
        return await self._of_each(names, lambda shard, some: shard.run_each(verb, some, arguments, client))

    async def _of_each(
        self, names: Sequence[bytes], ask: Callable[[Shard, list[bytes]], Awaitable[list[_Result]]]
    ) -> list[_Result]:
        """Ask each shard for its queues. Return the results for the names, in their order."""
        by_shard = dict(self.by_shard(names))
        if len(by_shard) == 1:
            return await ask(*by_shard.popitem())
        results = await asyncio.gather(*itertools.starmap(ask, by_shard.items()))
        left = dict(zip(by_shard, map(iter, results), strict=True))
        return [next(left[self.shard_of(name)]) for name in names]

    async def take(
        self, names: Sequence[bytes], timeout: float | None, count: int = 1, client: Client | None = None
    ) -> tuple[bytes, list[bytes]] | None:
        """Take up to `count` messages from the first queue that has any; wait `timeout` seconds for one.

        A `timeout` of None waits forever. Queues are tried in the given order, but those that are away last.
        A queue that does not exist is waited for. Returns the queue's name and at least one message, or None
        when the time is up. A take that waits raises QueueClosedError when a queue is closed and empty, and
        QueueDoesNotExistError when a queue is deleted.
        """
        options = WAITS if count == 1 else UP_TO_COUNT

        async def take_now(
            some: Sequence[bytes], *, has_waited: bool = False
        ) -> tuple[bytes, list[bytes]] | None:
            """Take a message if there is one. A client that has waited gets no error of an outage."""
            for name in sorted(some, key=self.is_away):
                try:
                    messages = await self.run(verbs.GET, name, [], count, Wait(0), client, options)
                except QueueClosedError:
                    continue  # closed, and empty
                except BACKEND_LOST as lost:
                    if isinstance(lost, BackendDiedError) or not has_waited:
                        raise
                    return None
                if messages:
                    return name, messages
            return None

        if timeout == 0:
            return await take_now(names)
        if client is not None and client.has_disconnected and (found := await take_now(names)):
            return found  # it waits for nothing, but gets what is there
        if len(names) == 1:
            messages = await self.run(verbs.GET, names[0], [], count, Wait(timeout), client, options)
            return (names[0], messages) if messages else None
        deadline = inf if timeout is None else asyncio.get_running_loop().time() + timeout
        several = SeveralQueues(self, verbs.GET, options, client)
        try:
            first = await several.first_ended(names, names, [], count, Wait(), deadline)
        finally:
            again = several.end()
        if first is not None:
            if isinstance(first.error, QueueClosedError):
                # A later queue may have a message.
                found = await take_now([name for name in names if name != first.name], has_waited=True)
                if found is not None:
                    return found
            if first.error is not None:
                raise first.error
            if first.results:
                return first.name, first.results
        found = await take_now(again, has_waited=True)
        if found is None and (unblocked := several.take_unblocking_effect()) is not None:
            raise unblocked
        return found

    async def reserve(
        self,
        names: Sequence[bytes],
        claim: bytes,
        timeout: float | None,
        count: int = 1,
        client: Client | None = None,
        *,
        outlives_queues: bool = False,
    ) -> tuple[bytes, list[bytes]] | None:
        """Reserve the best job of all queues: see `reserve_best`."""
        how = WAITS if count == 1 else UP_TO_COUNT
        return await reserve_best(
            self, names, [claim] * count, timeout, how, client, outlives_queues=outlives_queues
        )

    async def ranges(self, names: Sequence[bytes], first: int, last: int) -> list[list[bytes] | None]:
        """See QueueOperations. Queues of different shards are not read at one moment."""
        return await self._of_each(names, lambda shard, some: shard.ranges.read(some, first, last))

    # Listing

    async def scan(self, cursor: bytes, count: int = SCAN_COUNT) -> tuple[bytes, list[bytes]]:
        """Return the next cursor and some names: see StoredKeys.scan. The shards come one after the other."""
        within, number = divmod(int(cursor), len(self.shards))
        after, names = await self.shards[number].keys.scan(b"%d" % within, count)
        if after == b"0":
            number += 1
        return b"%d" % (0 if number == len(self.shards) else int(after) * len(self.shards) + number), names

    async def sample_queues(self) -> tuple[list[bytes], bool]:
        """Return names of queues, each once, and whether these are all: shards that are away are left out.

        The number of SCAN steps is limited, so callers may ask every few seconds.
        """
        names: dict[bytes, None] = {}
        steps = max(_MAX_SCAN_STEPS // len(self.shards), 2)
        is_complete = True
        for shard in self.shards:
            cursor, steps_left = b"0", 0 if shard.is_away else steps
            while steps_left:
                cursor, found = await shard.keys.scan(cursor)
                names.update(dict.fromkeys(found))
                steps_left = 0 if cursor == b"0" else steps_left - 1
            is_complete = is_complete and not shard.is_away and cursor == b"0"
        return list(names), is_complete

    async def queues(self, *, reachable: bool = False) -> AsyncIterator[bytes]:
        """Yield the names of all queues, each once. With `reachable`, leave out shards that are away."""
        for shard in self.shards:
            if reachable and shard.is_away:
                continue
            seen: set[bytes] = set()
            cursor = b""
            while cursor != b"0":
                cursor, names = await shard.keys.scan(cursor or b"0")
                for name in names:
                    if name not in seen:
                        seen.add(name)
                        yield name

    # The shards together

    @property
    def policy(self) -> Policy:
        """The settings that apply to all queues."""
        return self.shards[0].policy

    @property
    def is_up(self) -> bool:
        """Whether the backend of a shard can be reached."""
        return any(shard.is_up for shard in self.shards)

    @property
    def reachable_shards(self) -> list[Shard]:
        """The shards that are not away; all if the backend of none can be reached."""
        return [shard for shard in self.shards if not shard.is_away]

    @property
    def is_stopping(self) -> bool:
        """Whether nothing may begin to wait any longer."""
        return self.shards[0].is_stopping

    @property
    def reconnects(self) -> int:
        """How many times the backend of a shard was lost, and is back."""
        return sum(shard.link.reconnects for shard in self.shards)

    @property
    def peer_count(self) -> int:
        """The number of other servers on the backend."""
        return max(shard.peer_count for shard in self.shards)

    @property
    def call_statistics(self) -> CallStatistics:
        """The totals of the calls of the library."""
        return CallStatistics.total(shard.call_statistics for shard in self.shards)
