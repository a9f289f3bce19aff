"""Waiting on several queues: one operation on each, of which only one may take messages.

The operations share a ticket, an owner, and a place in the order in which commands have come.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from pressure_server.errors import PressureError
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.options import Options
from pressure_server.queues.operations.owners import Client, CoroutineOwner
from pressure_server.queues.operations.wait import Ticket, Unblocking, Wait

if TYPE_CHECKING:
    from pressure_server.queues.database import Database

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
        watched: Sequence[bytes] = (),
    ) -> Operation | None:
        """Return the operation that ends; None when the time is up, or when the queues are to be looked at.

        The command waits for the `watched` queues, too, but without operations in their lines.

        Call `end` afterwards, in any case.

        Queues in `to_try` are tried in turn, unless their backend is lost. The others are assumed to have
        nothing when this is called: their operations join the lines untried. `how` says how the operations
        wait; its timeout is for all of them together.
        """
        loop, first = asyncio.get_running_loop(), self._owner.first_ended
        if not to_try:
            self._ticket.look_again = self.look_again
        deadline = math.inf if how.timeout is None else loop.time() + how.timeout
        self._left = dict.fromkeys(names)
        self._owner.tries_more = True
        self._owner.on_unblock = self._unblock
        for number, name in enumerate(list(self._left), 1):
            operation = self._operation(name, arguments, size, how)
            if name in to_try and not self._database.is_lost(name):
                self._database.submit(operation)
                await self._owner.wait_until_tried()
            else:
                self._database.join(operation)
            if first.done() or loop.time() >= deadline:
                break
            del self._left[name]
            if number % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._owner.waits_on(watched)
        self._owner.all_are_tried()
        if how.timeout is not None:
            # A timer and not a `timeout`, which would cancel the future.
            self._timer = loop.call_at(deadline, self._time_is_up)
        return self._operations.get(await first)

    def _time_is_up(self) -> None:
        """End the wait; but if jobs are due within milliseconds, wait for these."""
        soon = [at for name in self._operations if (at := self._database.due_soon(name)) is not None]
        if soon:
            self._timer = asyncio.get_running_loop().call_at(max(soon), self.look_again)
        else:
            self.look_again()

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
        is_worth_it = (name for name in self._operations if self._database.due_soon(name) is not None)
        again = [*self._left, *is_worth_it]
        self._cancel()
        return again

    def _cancel(self) -> None:
        for _ in range(min(_QUEUES_AT_ONCE, len(self._operations))):
            self._database.cancel(self._operations.popitem()[1])
        if self._operations:
            asyncio.get_running_loop().call_soon(self._cancel)
