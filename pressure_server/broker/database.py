"""The queues of one of the backend's databases: operations on one of them, and listing them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any

from pressure_server.backend.link import Link
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.broker import kinds
from pressure_server.broker.changes import Changes
from pressure_server.broker.known import KnownQueues
from pressure_server.broker.lack import Lack
from pressure_server.broker.lane import Lane
from pressure_server.broker.names import BOUND, base_key, existence_pattern, queue_name, split_key
from pressure_server.broker.operation import Kind, Line, Operation
from pressure_server.broker.owners import Call, Client, OnSuccess
from pressure_server.broker.policy import Policy
from pressure_server.broker.queues import QueueOperations
from pressure_server.broker.role_turns import RoleTurns
from pressure_server.broker.transaction import Transaction
from pressure_server.broker.wait import AS_CONFIGURED, Ticket, Wait
from pressure_server.errors import BackendError, PressureError, QueueClosedError, StoppingError

_SCAN_COUNT = 1000
# Of operations on several queues; each takes some memory.
_AT_ONCE = 100


class Database(QueueOperations):
    """Made by the broker, one for each database number in use."""

    def __init__(
        self, link: Link, watch: Watch, turns: Turns, *, prefix: bytes, identity: bytes, policy: Policy
    ) -> None:
        super().__init__(prefix)
        self.number = link.number
        self.policy = policy
        self.is_stopping = False
        self._link = link
        bound = b"" if policy.create_bound is None else b"%d" % policy.create_bound
        self._header = (identity, bound, policy.overflow.encode())
        self._lanes: dict[bytes, Lane] = {}
        self._to_send: list[Lane] = []
        self.known = KnownQueues(watch, link.number, prefix, self._clean)
        self.changes = Changes(watch, link.number, prefix)
        self.role_turns = RoleTurns(self, turns)
        link.is_back = self.role_turns.backend_is_back
        self._loop = asyncio.get_running_loop()

    @property
    def is_up(self) -> bool:
        """Whether the backend can be reached."""
        return self._link.is_up

    def submit(self, operation: Operation) -> None:
        """Do the operation after those submitted for its queue; its owner is told of its end.

        It is sent by `flush`, with what is submitted for its queue until then; or with the next call for
        the queue, where one is under way. Raises QueueNameError.
        """
        lane = self._lane(operation.name)
        lane.waiting.append(operation)
        if lane.idle:
            lane.idle = False
            self._to_send.append(lane)

    def _lane(self, name: bytes) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = Lane(self, name, base_key(self.prefix, name))
            self._lanes[name] = lane
        return lane

    def flush(self) -> None:
        """Send what has been submitted."""
        if self._to_send:
            lanes, self._to_send = self._to_send, []
            for lane in lanes:
                lane.send()

    def cancel(self, operation: Operation) -> None:
        """Its client has gone: if it waits, or has not been sent and takes messages, it does not happen."""
        operation.cancelled = True
        lane = self._lanes.get(operation.name)
        if lane is not None:
            lane.forget(operation)

    async def attempt(self, operation: Operation, call: Call) -> list[Any] | PressureError:
        """See QueueOperations."""
        try:
            self.submit(operation)
        except PressureError as error:
            return error
        self.flush()
        try:
            await call.ended
            if not call.is_wanted:
                self.put_back(operation)
        except asyncio.CancelledError:
            if call.told:
                self.put_back(operation)
            self.cancel(operation)
            raise
        finally:
            call.end_wait()
        return operation.error or operation.results

    async def run_each(
        self,
        kind: Kind,
        names: Sequence[bytes],
        arguments: list[bytes] | None = None,
        client: Client | None = None,
    ) -> list[Any]:
        """See QueueOperations."""

        def one(name: bytes) -> Coroutine[Any, Any, list[Any] | PressureError]:
            call = Call(client)
            return self.attempt(Operation(kind, name, list(arguments or []), 1, call), call)

        results: list[Any] = []
        for first in range(0, len(names), _AT_ONCE):
            # Errors that are raised keep what has raised them in memory.
            results += await asyncio.gather(*map(one, names[first : first + _AT_ONCE]))
        return [result if isinstance(result, PressureError) else result[0] for result in results]

    async def take(
        self, names: Sequence[bytes], timeout: float | None, count: int = 1, client: Client | None = None
    ) -> tuple[bytes, list[bytes]] | None:
        """Take up to `count` messages from the first queue that has one, waiting `timeout` seconds for it.

        None for `timeout` is for ever. Queues are tried in the order given. Returns the queue's name and at
        least one message; None when the time is up. A queue that does not exist is waited for. Raises, where
        it waits, QueueClosedError when one is closed and empty, QueueDoesNotExistError when one is deleted.
        """
        kind = kinds.TAKE if count == 1 else kinds.SOME
        if timeout == 0:
            return await self._take_now(kind, names, count)
        if len(names) == 1:
            messages = await self.run(kind, names[0], size=count, wait=Wait(timeout), client=client)
            return (names[0], messages) if messages else None
        ticket, call = Ticket(), Call(client)
        operations: dict[bytes, Operation] = {}
        try:
            for name in dict.fromkeys(names):
                operation = Operation(kind, name, [], count, call, wait=Wait(timeout, ticket=ticket))
                operations[name] = operation
                self.submit(operation)
                self.flush()
                await call.tried()
                if call.ended.done():
                    break
            first = operations[await call.ended]
            if not call.is_wanted:
                self.put_back(first)
        except asyncio.CancelledError:
            if call.told:
                self.put_back(operations[call.ended.result()])
            raise
        finally:
            call.end_wait()
            for operation in operations.values():
                self.cancel(operation)
        if first.error is not None:
            raise first.error
        return (first.name, first.results) if first.results else None

    async def _take_now(
        self, kind: Kind, names: Sequence[bytes], count: int
    ) -> tuple[bytes, list[bytes]] | None:
        for name in names:
            try:
                messages = await self.run(kind, name, size=count, wait=Wait(0))
            except QueueClosedError:
                continue  # and empty
            if messages:
                return name, messages
        return None

    def put_back(self, operation: Operation) -> None:
        """Nobody is there any longer for what has been taken."""
        if operation.has_taken:
            self._lane(operation.name).put_back(operation)

    async def together(self, kind: Kind, names: Sequence[bytes], arguments: list[bytes]) -> list[Any]:
        """Do the same on several queues, with nobody in between; returns what `run_each` does."""
        transaction = Transaction(self)
        results = asyncio.ensure_future(transaction.run_each(kind, names, arguments))
        # It has submitted all when it waits.
        await asyncio.sleep(0)
        try:
            await transaction.commit()
            return await results
        finally:
            results.cancel()

    async def command(self, *arguments: bytes) -> Any:
        """Send a plain command to the backend. Raises BackendError, also for an error reply."""
        return await self._link.command(*arguments)

    async def scan(self, cursor: bytes, count: int = _SCAN_COUNT) -> tuple[bytes, list[bytes]]:
        """One step over the names of all queues: the next cursor (b"0" at the end), and some names.

        `count` is about how many keys of the backend are looked at.

        As Redis's SCAN: each queue that exists all the while is returned, maybe more than once.
        """
        reply = await self.command(
            b"SCAN", cursor, b"MATCH", existence_pattern(self.prefix), b"COUNT", b"%d" % count
        )
        names = [queue_name(self.prefix, key) for key in reply[1]]
        return reply[0], [name for name in names if name is not None]

    async def queues(self) -> AsyncIterator[bytes]:
        """The names of all queues, each once."""
        seen: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, names = await self.scan(cursor)
            for name in names:
                if name not in seen:
                    seen.add(name)
                    yield name
            if cursor == b"0":
                return

    def try_all(self) -> None:
        """Try everybody who waits, which shows that the queue is in use."""
        for lane in list(self._lanes.values()):
            lane.poke()

    def waiting_on(self, name: bytes) -> dict[Line, int]:
        """How many operations of our clients wait on a queue."""
        lane = self._lanes.get(name)
        return {line: len(lane.lines[line]) if lane is not None else 0 for line in Line}

    def end_waits(self) -> None:
        """The server stops: who waits, or would have to, gets StoppingError."""
        self.is_stopping = True
        for lane in list(self._lanes.values()):
            lane.end_waits(StoppingError())
        self.changes.lost()

    # What transactions use.

    async def call_now(
        self, keys: list[bytes], arguments: list[bytes], unwanted: Callable[[list[Any]], None]
    ) -> list[Any]:
        """Call the batch script on queues, beside their lanes. Raises BackendError.

        `unwanted` is called with the reply where this has been cancelled meanwhile: it has been done.
        """
        reply: asyncio.Future[Any] = self._loop.create_future()

        def received(value: Any) -> None:
            if not reply.done():
                reply.set_result(value)
            elif isinstance(value, list):
                unwanted(value)

        self._link.call_script(keys, (*self._header, *arguments), received)
        try:
            value = await reply
        except asyncio.CancelledError:
            if reply.done() and not reply.cancelled():
                received(reply.result())
            raise
        if isinstance(value, BackendError):
            raise value
        if isinstance(value, Exception):
            raise BackendError(f"the backend answered: {value}")
        answered: list[Any] = value
        return answered

    def poke(self, names: Iterable[bytes]) -> None:
        """Who waits on these queues may go on."""
        for name in names:
            lane = self._lanes.get(name)
            if lane is not None:
                lane.poke()

    # What lanes use.

    def call(
        self,
        base: bytes,
        others: Iterable[bytes],
        arguments: list[bytes],
        received: Callable[[Any], None],
    ) -> None:
        """Call the batch script for a lane. Raises BackendError when there is no connection."""
        keys = [base, *dict.fromkeys(other for other in others if other != base)]
        self._link.call_script(keys, (*self._header, *arguments), received)

    def soon(self, send: Callable[[], None]) -> None:
        """Call after the loop has looked for input once more."""
        self._loop.call_soon(self._loop.call_soon, send)

    def take_turn(self, name: bytes, role: Lack) -> None:
        """A role's token has been parked for those who wait on that queue."""
        lane = self._lanes.get(name)
        if lane is not None:
            lane.take_turn(role)
        else:
            self.role_turns.give_back(name)

    def drop(self, lane: Lane) -> None:
        """Forget a lane on which nothing waits."""
        if self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]
            if lane.alarm is not None:
                lane.alarm.stop()

    def measure(self, lane: Lane, operation: Operation, wait: Wait) -> bool:
        """Let the operation expire when it has waited long enough; False where it has."""
        now = self._loop.time()
        timeout = wait.timeout
        if timeout == AS_CONFIGURED:
            timeout = self.policy.put_timeout if operation.kind.puts or operation.kind.moves else None
        deadline = wait.deadline(now, timeout, self.policy.role_timeout)
        if deadline is not None and deadline <= now:
            wait.out_of_time = wait.in_line and deadline == wait.until
            return False
        if wait.timer is not None:
            if wait.timer.when() == deadline:
                return True
            wait.timer.cancel()
            wait.timer = None
        if deadline is not None:
            wait.out_of_time = deadline == wait.until
            wait.timer = self._loop.call_at(deadline, lane.expire, operation)
        return True

    # What the watch tells.

    def changed(self, key: bytes) -> None:
        """A key has changed that somebody has asked to be told of."""
        if not key.startswith(self.prefix + b":"):
            return
        name, suffix = split_key(self.prefix, key)
        if suffix == BOUND and self.known.forget(name):
            self._clean(name)
        lane = self._lanes.get(name)
        if lane is not None and lane.alarm is not None:
            if suffix == BOUND:
                # Created or deleted; or whoever is about to delete it asks who waits (life.lua, expire).
                lane.alarm.disturbed = False
            lane.alarm.changed(name)
        self.changes.tell(name)

    def watch_lost(self) -> None:
        """What has been asked is forgotten."""
        self.known.forget_all()
        self.changes.lost()
        for lane in list(self._lanes.values()):
            if lane.alarm is not None:
                lane.alarm.lost()

    def _clean(self, name: bytes) -> None:
        """The queue has been deleted, maybe by a native client, which does not know of our keys."""
        if self._link.is_up:
            self.submit(Operation(kinds.CLEAN, name, [], 1, OnSuccess()))
            self.flush()
