"""Waiting on several queues: one operation on each, of which only one may take messages.

The operations share a ticket, an owner, and a place in the order in which commands have come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING

from pressure_server.errors import PressureError, StoppingError, WaitLimitError
from pressure_server.queues.first_jobs import Watcher
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.options import Options
from pressure_server.queues.operations.owners import Client, CoroutineOwner
from pressure_server.queues.operations.wait import Ticket, Unblocking, Wait

if TYPE_CHECKING:
    from pressure_server.queues.database import Database
    from pressure_server.queues.shard import Shard

# Queues whose operations begin or end before other clients have their turn: about a millisecond.
_QUEUES_AT_ONCE = 250
# In place of the queue of the operation that has ended: none has. A queue's name may be empty.
_NO_QUEUE = b":ext:"


class SeveralQueues:
    """One wait of a command on several queues."""

    def __init__(self, database: Database, verb: Verb, options: Options, client: Client | None) -> None:
        """Prepare operations of this verb, with these options; `client` is told of the wait."""
        self._database = database
        self._verb = verb
        self._options = options
        self._ticket = Ticket()
        self._owner = CoroutineOwner(client)
        self._operations: dict[bytes, Operation] = {}
        # The queues whose operation has neither been tried nor joined a line.
        self._left: dict[bytes, None] = {}
        self._watchers: list[tuple[Shard, Watcher]] = []
        self._watch = Wait(None)  # is counted while there are watchers
        self._timer: asyncio.TimerHandle | None = None
        # The request to end the wait before its time, if there is one.
        self.unblocking: Unblocking | None = None

    async def first_ended(
        self,
        names: Iterable[bytes],
        to_try: Collection[bytes],
        arguments: list[bytes],
        size: int,
        how: Wait,
        deadline: float,
        watched: Sequence[bytes] = (),
    ) -> Operation | None:
        """Return the operation that ends; None when the time is up, or when the queues are to be looked at.

        The command waits for the `watched` queues, too, but without operations in their lines. Call `end`
        afterwards, in any case. Raises WaitLimitError and StoppingError.

        Queues in `to_try` are tried in turn, unless their backend is lost. The others are assumed to have
        nothing when this is called: their operations join the lines untried. `how` says how the operations
        wait, apart from the time: the `deadline`, by the loop's clock, holds for all of them together.
        """
        loop, first = asyncio.get_running_loop(), self._owner.first_ended
        if not to_try:
            self._ticket.look_again = self.look_again
        if watched:
            due_at = self._begin_watch(watched)
            if due_at is None:
                return None
            deadline = min(deadline, due_at)
        self._left = dict.fromkeys(names)
        self._owner.tries_more = True
        self._owner.on_unblock = self._unblock
        for number, name in enumerate(list(self._left), 1):
            shard, operation = self._database.shard_of(name), self._operation(name, arguments, size, how)
            if name in to_try and shard.is_up:
                shard.submit(operation)
                await self._owner.wait_until_tried()
            else:
                shard.join(operation)
            if first.done() or loop.time() >= deadline:
                break
            del self._left[name]
            if number % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._owner.all_are_tried(watched)
        if deadline < inf:
            # A timer and not a `timeout`, which would cancel the future.
            self._timer = loop.call_at(deadline, self._time_is_up)
        return self._operations.get(await first)

    def _begin_watch(self, names: Sequence[bytes]) -> float | None:
        """Watch queues; see FirstJobs.add_watcher."""
        if self._database.is_stopping:
            raise StoppingError
        waiters = self._database.shards[0].waiters
        if not waiters.try_add(self._watch):
            raise WaitLimitError(waiters.limit)
        first_due = inf
        for shard, some in self._database.by_shard(names):
            watcher = Watcher(some, self.look_again)
            due_at = shard.first_jobs.add_watcher(watcher)
            if due_at is None:
                return None
            self._watchers.append((shard, watcher))
            first_due = min(first_due, due_at)
        return first_due

    def _time_is_up(self) -> None:
        """End the wait; but if jobs are due within milliseconds, wait for these."""
        soon = self._due_soon()
        if soon:
            self._timer = asyncio.get_running_loop().call_at(max(soon.values()), self.look_again)
        else:
            self.look_again()

    def _due_soon(self) -> dict[bytes, float]:
        """Return the queues that may have a job within milliseconds, and until when, by the loop's clock."""
        due = ((name, self._database.shard_of(name).due_soon(name)) for name in self._operations)
        return {name: until for name, until in due if until is not None}

    def look_again(self) -> None:
        """End the wait, unless an operation is in flight: it ends the wait, and may bring messages."""
        if not (self._owner.first_ended.done() or self._ticket.close()):
            self._owner.first_ended.set_result(_NO_QUEUE)

    def _unblock(self, unblocking: Unblocking) -> None:
        self.unblocking = unblocking
        self.look_again()

    def take_unblocking_effect(self) -> PressureError | None:
        """Note that the command has got nothing. Return the error with which it ends if it was unblocked."""
        return self.unblocking.take_effect() if self.unblocking is not None else None

    def _operation(self, name: bytes, arguments: list[bytes], size: int, how: Wait) -> Operation:
        wait = Wait(
            None,
            waits_forever_for_role=how.waits_forever_for_role,
            ticket=self._ticket,
            outlives_queue=how.outlives_queue,
            arrival=how.arrival,
        )
        operation = self._operations[name] = Operation(
            self._verb, name, arguments[:], size, self._owner, wait=wait, options=self._options
        )
        return operation

    def end(self) -> list[bytes]:
        """End the wait, some operations at a time. Return the queues that are worth another look.

        These have not been tried, or a job of theirs may be ready within milliseconds.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._owner.end()
        self._database.shards[0].waiters.remove(self._watch)
        for shard, watcher in self._watchers:
            shard.first_jobs.watchers.remove(watcher)
        again = [*self._left, *self._due_soon()]
        self._cancel()
        return again

    def hand_on(self) -> None:
        """Tell other commands of the changes that only this one was told of: it takes one job at most."""
        for shard, watcher in self._watchers:
            for name in watcher.news:
                shard.first_jobs.watchers.tell(name)

    def _cancel(self) -> None:
        for _ in range(min(_QUEUES_AT_ONCE, len(self._operations))):
            name, operation = self._operations.popitem()
            self._database.shard_of(name).cancel(operation)
        if self._operations:
            asyncio.get_running_loop().call_soon(self._cancel)
