"""The queues of one of the backend's databases: operations on one of them, and listing them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from pressure_server.backend.link import Link
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.broker import operation as kinds
from pressure_server.broker.lane import Lane
from pressure_server.broker.names import (
    BOUND,
    CONSUMER_TURN,
    PRODUCER_TURN,
    base_key,
    existence_pattern,
    queue_name,
    split_key,
)
from pressure_server.broker.operation import Kind, Line, Operation
from pressure_server.broker.policy import Policy
from pressure_server.broker.queues import Client, QueueOperations
from pressure_server.broker.restoring import restoring
from pressure_server.broker.transaction import Transaction
from pressure_server.broker.wait import AS_CONFIGURED, Lack, Ticket, Wait, possible, suffixes, watched_keys
from pressure_server.errors import BackendError, PressureError, StoppingError

_SCAN_COUNT = 1000
# Where the token of a role is, while it is our turn.
_PARKED = {Lack.PRODUCER: PRODUCER_TURN, Lack.CONSUMER: CONSUMER_TURN}
# Of so many queues it is remembered whether they have a bound, and watched whether they are deleted.
_MOST_KNOWN = 100_000


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
        self._watch = watch
        self._turns = turns
        bound = b"" if policy.create_bound is None else b"%d" % policy.create_bound
        self._header = (identity, bound, policy.overflow.encode())
        self._lanes: dict[bytes, Lane] = {}
        self._to_send: list[Lane] = []
        # Who, beside its lane, waits for a queue to change.
        self._elsewhere: dict[bytes, set[Lane | _News]] = {}
        # Queues that exist, and whether each has a bound.
        self._known: dict[bytes, bool] = {}
        self._loop = asyncio.get_running_loop()

    def submit(self, operation: Operation) -> None:
        """Do the operation after those submitted for its queue; its owner is told of its end.

        It is sent by `flush`, with what is submitted for its queue until then; or with the next call for
        the queue, where one is under way. Raises QueueNameError.
        """
        lane = self._lanes.get(operation.name)
        if lane is None:
            lane = Lane(self, operation.name, base_key(self.prefix, operation.name))
            self._lanes[operation.name] = lane
        lane.waiting.append(operation)
        if lane.idle:
            lane.idle = False
            self._to_send.append(lane)

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

    def may_wait(self, kind: Kind, name: bytes) -> bool:
        """Whether an operation may have to wait for room: not, on a queue that is known to have no bound."""
        return kind.puts and self._known.get(name, True)

    async def run(
        self,
        kind: Kind,
        name: bytes,
        arguments: list[bytes] | None = None,
        size: int = 1,
        wait: Wait | None = None,
        client: Client | None = None,
    ) -> Any:
        """See QueueOperations."""
        call = _Call(self._loop, client)
        operation = Operation(kind, name, arguments or [], size, call, wait=wait)
        self.submit(operation)
        self.flush()
        try:
            await call.ended
        except asyncio.CancelledError:
            if call.told:
                self._put_back(operation)
            self.cancel(operation)
            raise
        finally:
            call.end_wait()
        if operation.error is not None:
            raise operation.error
        return operation.results

    async def take(
        self, names: Sequence[bytes], timeout: float | None, count: int = 1, client: Client | None = None
    ) -> tuple[bytes, list[bytes]] | None:
        """Take up to `count` messages from the first queue that has one, waiting `timeout` seconds for it.

        None for `timeout` is for ever. Queues are tried in the order given. Returns the queue's name and at
        least one message; None when the time is up. A queue that does not exist is waited for. Raises
        QueueClosedError when one is closed and empty, QueueDoesNotExistError when one is deleted meanwhile.
        """
        kind = kinds.TAKE if count == 1 else kinds.SOME
        if len(names) == 1:
            messages = await self.run(kind, names[0], size=count, wait=Wait(timeout), client=client)
            return (names[0], messages) if messages else None
        ticket, call = Ticket(), _Call(self._loop, client)
        operations: list[Operation] = []
        try:
            for name in dict.fromkeys(names):
                operation = Operation(kind, name, [], count, call, wait=Wait(timeout, ticket=ticket))
                operations.append(operation)
                self.submit(operation)
                self.flush()
                await call.tried()
                if call.ended.done():
                    break
            first = await call.ended
        except asyncio.CancelledError:
            if call.told:
                self._put_back(call.ended.result())
            raise
        finally:
            call.end_wait()
            for operation in operations:
                self.cancel(operation)
        if first.error is not None:
            raise first.error
        return (first.name, first.results) if first.results else None

    def _put_back(self, operation: Operation) -> None:
        """Nobody is there any longer for what has been taken."""
        if operation.results and operation.kind.takes and not operation.kind.moves:
            self.submit(restoring(operation))
            self.flush()

    async def together(self, kind: Kind, names: Sequence[bytes], arguments: list[bytes]) -> list[Any]:
        """Do the same on several queues, with nobody in between; returns what `run_each` does."""
        transaction = Transaction(self)
        results = asyncio.ensure_future(transaction.run_each(kind, names, arguments))
        # It has submitted all when it waits.
        await asyncio.sleep(0)
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

    # What transactions use.

    async def call_now(self, keys: list[bytes], arguments: list[bytes]) -> list[Any]:
        """Call the batch script on queues, beside their lanes. Raises BackendError."""
        reply: asyncio.Future[Any] = self._loop.create_future()

        def received(value: Any) -> None:
            if not reply.done():
                reply.set_result(value)

        self._link.call_script(keys, (*self._header, *arguments), received)
        value = await reply
        if isinstance(value, BackendError):
            raise value
        if isinstance(value, Exception):
            raise BackendError(f"the backend answered: {value}")
        answered: list[Any] = value
        return answered

    async def news_of(self, name: bytes, lack: Lack, timeout: float) -> bool:
        """Wait until what a queue lacks may be there; False where it is not within `timeout` seconds."""
        if timeout <= 0 or self.is_stopping:
            return False
        news = _News(self._loop)
        self._elsewhere.setdefault(name, set()).add(news)
        watched = suffixes([lack])
        keys = watched_keys(base_key(self.prefix, name), watched)

        def armed(mask: int | None) -> None:
            if mask is None or possible([lack], watched, mask, existed=True):
                news.changed(name)

        self._watch.arm(self.number, keys, armed)
        try:
            async with asyncio.timeout(timeout):
                await news.come
        except TimeoutError:
            return False
        finally:
            self._elsewhere.get(name, set()).discard(news)
        return True

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

    def drop(self, lane: Lane) -> None:
        """Forget a lane on which nothing waits."""
        if self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]

    def measure(self, lane: Lane, operation: Operation, wait: Wait) -> bool:
        """Let the operation expire when it has waited long enough; False where it has."""
        now = self._loop.time()
        timeout = self.policy.put_timeout if wait.timeout == AS_CONFIGURED else wait.timeout
        if wait.timeout == AS_CONFIGURED and not operation.kind.puts:
            timeout = None if wait.other == b"" else self.policy.put_timeout
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

    def arm(self, lane: Lane, name: bytes, watched: list[bytes]) -> None:
        """Tell the lane when one of the keys of that queue changes."""
        if name != lane.name:
            self._elsewhere.setdefault(name, set()).add(lane)
        keys = watched_keys(base_key(self.prefix, name), watched)
        self._watch.arm(self.number, keys, lambda mask: lane.armed(name, watched, mask))

    def learn(self, name: bytes, bounded: int) -> None:
        """What a call has found: 0 no bound, -1 a bound, -2 no queue; more: it was not said."""
        known = self._known.get(name)
        if bounded > 0 or known is (bounded == -1):
            return
        if bounded == -2:
            self._known.pop(name, None)
            return
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            if self._watch.is_up:
                self._watch.arm(self.number, [base_key(self.prefix, name) + BOUND], lambda _: None)
        self._known[name] = bounded == -1

    def ask_for_turn(self, name: bytes, lack: Lack, *, elsewhere: bool = False) -> None:
        """Wait for a role in line with native clients; who waits for it on that queue's lane then goes on.

        `elsewhere`: it is waited for by others than those.
        """
        base = base_key(self.prefix, name)
        token, parked = base + lack.value[0], base + _PARKED[lack]

        def act() -> None:
            if elsewhere:
                self._tell_elsewhere(name)
                self.soon(lambda: self.give_turn_back(name))
            else:
                self.give_turn_back(name)

        self._turns.ask(self.number, token, parked, self.policy.role_timeout, act)

    def give_turn_back(self, name: bytes) -> None:
        """Give a role back that has been waited for, after those who wait for it on the lane have acted."""
        if self._link.is_up:
            self.submit(Operation(kinds.TURN, name, [], 1, _TurnGiven(self)))
            self.flush()

    def turn_given_back(self, name: bytes) -> None:
        """The role is free again."""
        base = base_key(self.prefix, name)
        for suffix in _PARKED.values():
            self._turns.given_back(self.number, base + suffix)

    async def give_turns_back(self) -> None:
        """Give back what a server that died may have waited for."""
        for parked in await self._turns.left_behind(self.number):
            for suffix in _PARKED.values():
                if parked.startswith(self.prefix + b":") and parked.endswith(suffix):
                    name = parked[len(self.prefix) + 1 : -len(suffix)]
                    with suppress(PressureError):
                        await self.run(kinds.TURN, name)
                    self.turn_given_back(name)

    # What the watch tells.

    def changed(self, key: bytes) -> None:
        """A key has changed that somebody has asked to be told of."""
        if not key.startswith(self.prefix + b":"):
            return
        name, suffix = split_key(self.prefix, key)
        if suffix == BOUND and self._known.pop(name, None) is not None:
            self._clean(name)
        lane = self._lanes.get(name)
        if lane is not None:
            lane.changed(name)
        self._tell_elsewhere(name)

    def _tell_elsewhere(self, name: bytes) -> None:
        for other in self._elsewhere.pop(name, ()):
            other.changed(name)

    def watch_lost(self) -> None:
        """What has been asked is forgotten."""
        self._known.clear()
        elsewhere, self._elsewhere = self._elsewhere, {}
        for name, waiting in elsewhere.items():
            for who in waiting:
                who.changed(name)
        for lane in list(self._lanes.values()):
            lane.unarm()

    def _clean(self, name: bytes) -> None:
        """The queue has been deleted, maybe by a native client, which does not know of our keys."""
        if self._link.is_up:
            self.submit(Operation(kinds.CLEAN, name, [], 1, _NOBODY))
            self.flush()


class _Call:
    """The owner of the operations that a coroutine waits for. The first that ends counts."""

    __slots__ = ("_client", "_loop", "_tried", "_waits", "ended", "told")

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Client | None) -> None:
        self._loop = loop
        self._client = client
        self._waits = False
        self._tried: asyncio.Future[None] | None = None
        self.ended: asyncio.Future[Operation] = loop.create_future()
        self.told = False

    async def tried(self) -> None:
        """Return when the operation submitted last has ended, or waits."""
        if not self.ended.done():
            self._tried = self._loop.create_future()
            await self._tried

    def waits(self, _operation: Operation) -> None:
        if self._client is not None and not self._waits:
            self._waits = True
            self._client.begin_wait()
        self._has_tried()

    def completed(self, operation: Operation) -> bool:
        self._has_tried()
        if self.ended.done() or (self._waits and self._client is not None and not self._client.is_there):
            return False
        self.told = True
        self.ended.set_result(operation)
        return True

    def end_wait(self) -> None:
        if self._client is not None and self._waits:
            self._waits = False
            self._client.end_wait()

    def _has_tried(self) -> None:
        if self._tried is not None and not self._tried.done():
            self._tried.set_result(None)


class _News:
    """Something has changed with a queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.come: asyncio.Future[None] = loop.create_future()

    def changed(self, _name: bytes) -> None:
        if not self.come.done():
            self.come.set_result(None)


class _TurnGiven:
    """The owner of an operation that gives a turn back."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def waits(self, _operation: Operation) -> None:
        pass  # it never does

    def completed(self, operation: Operation) -> bool:
        if operation.error is None:
            self._database.turn_given_back(operation.name)
        return True


class _Nobody:
    """The owner of what is done for no client."""

    def waits(self, _operation: Operation) -> None:
        pass  # nobody waits with it

    def completed(self, _operation: Operation) -> bool:
        return True


_NOBODY = _Nobody()
