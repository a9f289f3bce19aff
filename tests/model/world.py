"""A world: the core on a backend in memory, clients that a seed moves, and what must hold in the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from logging import LogRecord, NullHandler, getLogger
from random import Random
from typing import Any, cast

from pressure_server.backend.durability import Durability
from pressure_server.backend.link import Link
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.errors import BackendError, QueueDoesNotExistError
from pressure_server.queues.housekeeping import Housekeeping
from pressure_server.queues.lanes.dispatcher import LaneDispatcher
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation, Owner
from pressure_server.queues.operations.options import DEFAULT, OnFull, Options
from pressure_server.queues.operations.wait import AS_CONFIGURED, Ticket, Wait
from pressure_server.queues.operations.waiters import WaiterCount
from pressure_server.queues.policy import BLOCK, ERROR, Policy
from tests.model.backend import PREFIX, Backend
from tests.model.connections import ModelDurability, ModelLink, ModelTurns, ModelWatch
from tests.model.loop import ModelLoop

_QUEUES = (b"a", b"b", b"c")
_ROLES = (b"producer", b"consumer")
# More steps than any world needs until nothing is left to be done.
_ENDLESS = 20_000


class _Errors(NullHandler):
    """Keeps what the courier logs: an error there ends no test by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[LogRecord] = []

    def handle(self, record: LogRecord) -> bool:
        self.records.append(record)
        return True


class _NoHousekeeping:
    """Plays Housekeeping: what natives leave behind is not modelled."""

    def clean(self, _name: bytes) -> None:
        """See Housekeeping."""


@dataclass
class Calm:
    """What does not happen in a world, so that more can be said of it."""

    faults: bool = False
    natives: bool = False
    leavers: bool = False


@dataclass(eq=False)
class Client(Owner):
    """The owner of one operation."""

    number: int
    ends: int = 0
    waits_now: bool = False
    operation: Operation | None = None
    delivered: bool = False
    gave_back: bool = False
    was_cancelled: bool = False
    # What was asked for; and how often the queue had been deleted when it began to wait.
    options: Options = DEFAULT
    deletions: int | None = None
    # The other operation of its ticket, and what cancels that.
    other: Client | None = None
    cancel: Callable[[Operation], None] | None = None
    count_deletions: Callable[[bytes], int] = lambda _: 0

    def wait_began(self, operation: Operation) -> None:
        """See Owner."""
        self.waits_now = True
        self.deletions = self.count_deletions(operation.name)

    def completed(self, operation: Operation) -> None:
        """See Owner."""
        self.ends += 1
        self.waits_now = False
        if self.other is not None and self.other.operation is not None and self.cancel is not None:
            self.cancel(self.other.operation)
            self.other.was_cancelled = True


@dataclass
class World:
    """One interleaving."""

    seed: int
    calm: Calm = field(default_factory=Calm)
    operations: int = 25

    def __post_init__(self) -> None:
        self._chance = Random(self.seed)
        self._loop = ModelLoop()
        self._watch = ModelWatch()
        self._backend = self._watch.backend = Backend(self._chance, self._watch.changed)
        self._link = ModelLink(self._backend)
        self._durability = ModelDurability(is_enabled=self._chance.random() < 0.2)
        self._clients: list[Client] = []
        self._names = 0
        self.has_faults = self.has_moves = False
        policy = Policy(
            create_bound=self._chance.choice([0, 0, 1, 3]),
            overflow=BLOCK if self.calm.natives else self._chance.choice([BLOCK, BLOCK, ERROR]),
            put_timeout=None,
            role_timeout=1e6,
        )
        asyncio._set_running_loop(cast(Any, self._loop))
        try:
            self._lanes = LaneDispatcher(
                cast(Link, self._link),
                cast(Watch, self._watch),
                cast(Turns, ModelTurns()),
                cast(Durability, self._durability),
                prefix=PREFIX,
                identity=b"me",
                policy=policy,
                waiters=WaiterCount(1000),
            )
        finally:
            asyncio._set_running_loop(None)
        self._lanes.housekeeping = cast(Housekeeping, _NoHousekeeping())
        self._watch.told = self._lanes.changed
        self._backend.leaves = self._chance.choice([0, 100, 400])

    def play(self) -> int:
        """Play to the end, and check what must hold. Returns the number of steps."""
        asyncio._set_running_loop(cast(Any, self._loop))
        errors, logger = _Errors(), getLogger("pressure_server.queues")
        logger.addHandler(errors)
        logger.propagate = False
        try:
            steps = self._play()
        finally:
            logger.removeHandler(errors)
            logger.propagate = True
            asyncio._set_running_loop(None)
        for record in errors.records:
            raise AssertionError(record.getMessage()) from (record.exc_info or (None, None))[1]
        return steps

    def _play(self) -> int:
        steps = 0
        actions = self._actions()
        weights = list(accumulate(weight for _, weight in actions))
        while len(self._clients) < self.operations:
            self._chance.choices(actions, cum_weights=weights)[0][0]()
            steps += 1
        self._backend.leaves = self._backend.refuses = 0
        for queue in self._backend.queues.values():
            queue.held.clear()
        for base in self._backend.queues:
            self._watch.changed(base + b":producer_free")
            self._watch.changed(base + b":consumer_free")
        return steps + self._settle()

    def _actions(self) -> list[tuple[Callable[[], object], int]]:
        loop, link, watch = self._loop, self._link, self._watch
        actions: list[tuple[Callable[[], object], int]] = [
            (self._submit, 12),
            (self._also, 2),
            (loop.run_one, 20),
            (link.do_one, 10),
            (link.answer_one, 10),
            (watch.do_one, 5),
            (watch.tell_one, 5),
            (self._deliver, 5),
            (lambda: loop.move_on(2.0), 2),
            (self._durability.confirm_one, 3),
        ]
        if not self.calm.natives:
            actions += [(self._native, 3)]
        if not self.calm.leavers:
            actions += [(self._leave, 2), (self._give_back, 2)]
        if not self.calm.faults:
            actions += [(self._fault, 1)]
        return actions

    # What clients do.

    def _submit(self) -> None:
        chance = self._chance
        name = chance.choice(_QUEUES)
        client = Client(len(self._clients))
        verb = chance.choices(
            [verbs.PUT, verbs.GET, verbs.LENGTH, verbs.CLOSE, verbs.CREATE, verbs.DELETE, verbs.MOVE],
            [100, 100, 10, 2, 5, 2, 10],
        )[0]
        wait: Wait | None = None
        messages: list[bytes] = []
        size, commands, options = 1, 1, DEFAULT
        if verb is verbs.PUT:
            size, commands = chance.choice([(1, 1), (1, 1), (1, 3), (2, 1), (2, 2)])
            messages = [self._message() for _ in range(size * commands)]
            room = OnFull.CONFIGURED if self.calm.natives else chance.choice([*OnFull, OnFull.CONFIGURED])
            options = Options(unique=chance.random() < 0.5, on_full=room)
        elif verb is verbs.GET:
            size, commands = chance.choice([(1, 1), (1, 1), (3, 1), (1, 2)])
            if chance.random() < 0.5:
                options = Options(waits=True, wait_for_first=size > 1, must_exist=chance.random() < 0.2)
                commands = 1
                ticket = Ticket() if chance.random() < 0.4 else None
                wait = Wait(chance.choice([None, None, 0, 3.0]), ticket=ticket)
        elif verb is verbs.MOVE:
            other = chance.choice(_QUEUES)
            messages = [PREFIX + b":" + other]
            waits = chance.random() < 0.5
            options = Options(waits=waits)
            wait = Wait(None if waits else AS_CONFIGURED, destination=other)
            self.has_moves = True
        elif verb is verbs.CREATE:
            messages = [chance.choice([b"0", b"1", b"2"])]
        operation = Operation(
            verb, name, messages, size, client, commands=commands, wait=wait, options=options
        )
        self._do(client, operation)
        if chance.random() < 0.5:
            self._lanes.flush()

    def _do(self, client: Client, operation: Operation) -> None:
        client.operation = operation
        client.options = operation.options
        client.count_deletions = lambda name: self._backend.deletions[PREFIX + b":" + name]
        self._clients.append(client)
        self._lanes.submit(operation)

    def _also(self) -> None:
        """Have a client wait on another queue, too, as a blocking pop of several queues does."""
        for first in self._clients:
            operation = cast(Operation, first.operation)
            wait = operation.wait
            is_there = first.waits_now and not isinstance(first, _Gone)
            if wait is None or wait.ticket is None or first.other is not None or not is_there:
                continue
            second = Client(len(self._clients), other=first, cancel=self._lanes.cancel)
            first.other, first.cancel = second, self._lanes.cancel
            name = self._chance.choice([name for name in _QUEUES if name != operation.name])
            wait = Wait(wait.timeout, ticket=wait.ticket)
            also = Operation(
                verbs.GET, name, [], operation.sizes[0], second, wait=wait, options=first.options
            )
            self._do(second, also)
            return

    def _message(self) -> bytes:
        self._names += 1
        return b"%d" % self._names

    def _having(self) -> list[tuple[Client, Operation]]:
        """Return those that have messages, and have said nothing of them."""
        return [
            (client, client.operation)
            for client in self._clients
            if client.ends
            and client.operation is not None
            and client.operation.has_taken
            and not client.delivered
            and not client.gave_back
        ]

    def _deliver(self) -> None:
        having = self._having()
        if having:
            client, operation = self._chance.choice(having)
            client.delivered = True
            operation.acknowledge()

    def _give_back(self) -> None:
        having = self._having()
        if having:
            client, operation = self._chance.choice(having)
            client.gave_back = True
            operation.put_back()

    def _leave(self) -> None:
        waiting = [client for client in self._clients if not client.ends and client.operation is not None]
        takers = [client for client in waiting if client.operation and client.operation.verb is verbs.GET]
        if takers:
            client = self._chance.choice(takers)
            for gone in (client, client.other):
                if gone is not None and not gone.ends:
                    self._lanes.cancel(cast(Operation, gone.operation))
                    gone.gave_back = True
                    gone.__class__ = _Gone

    # What others do.

    def _native(self) -> None:
        base = PREFIX + b":" + self._chance.choice(_QUEUES)
        queue = self._backend.queues.get(base)
        if queue is None:
            return
        role = self._chance.choice(_ROLES)
        if role in queue.held:
            queue.held.remove(role)
            self._watch.changed(base + b":%b_free" % role)
        elif self._chance.random() < 0.3:
            queue.held.add(role)
            self._watch.changed(base + b":%b_free" % role)
        elif role == b"producer" and queue.room and not queue.is_closed:
            self._backend.append(base, [self._message()])
        elif role == b"consumer" and queue.messages:
            self._backend.dropped += self._backend.take(base, 1, moves=True)

    def _fault(self) -> None:
        self.has_faults = True
        what = self._chance.random()
        if what < 0.4:
            self._link.lose(for_good=False)
        elif what < 0.6:
            self._link.lose(for_good=True)
        else:
            self._backend.refuses = self._chance.choice([0, 0, 100])

    # What must hold.

    def _settle(self) -> int:
        """Do all that is left to be done, and check. Returns the number of steps."""
        for steps in range(_ENDLESS):
            for client, operation in self._having():
                client.delivered = True
                operation.acknowledge()
            if not (
                self._loop.run_one()
                or self._link.do_one()
                or self._link.answer_one()
                or self._watch.do_one()
                or self._watch.tell_one()
                or self._durability.confirm_one()
                or self._loop.move_on(60.0)
            ):
                self._check()
                return steps
        raise AssertionError("it does not come to rest")

    def _check(self) -> None:
        assert not self._loop.errors, self._loop.errors
        queues = self._backend.queues
        for client in self._clients:
            operation = cast(Operation, client.operation)
            gone = isinstance(client, _Gone) or client.was_cancelled
            assert client.ends <= 1, f"{client.number} has ended {client.ends} times"
            if client.ends or gone:
                continue
            what = f"{client.number}: {operation.verb!r} {operation.options} of {operation.name.decode()}"
            assert client.waits_now, f"{what} has not ended, and does not wait"
            queue = queues.get(PREFIX + b":" + operation.name)
            if operation.verb is verbs.GET:
                assert queue is None or not (queue.messages or queue.is_closed), f"{what} hangs"
            elif operation.verb is verbs.PUT:
                assert queue is not None, f"{what} hangs, with its queue gone"
                assert queue.room == 0, f"{what} hangs"
                assert not queue.is_closed, f"{what} hangs"
        assert not self._lanes._courier.has_records, "records are left"
        assert not self._backend.records, "records are left on the backend"
        waiting = {c.operation.name for c in self._clients if c.operation and not c.ends}
        assert set(self._lanes._lanes) <= waiting, "a lane is left"
        self._check_messages()
        self._check_incarnations()
        if self.calm.natives and self.calm.leavers and not (self.has_faults or self.has_moves):
            self._check_order()

    def _check_incarnations(self) -> None:
        """What waits does so for the queue that was there, or for one to be made."""
        for client in self._clients:
            operation = cast(Operation, client.operation)
            base = PREFIX + b":" + operation.name
            if operation.verb is verbs.GET and client.options.waits and not client.options.must_exist:
                may = bool(self._backend.deletions[base])
                assert may or not isinstance(operation.error, QueueDoesNotExistError), "it did not wait"
            # Roles and moves aside: native clients, too, wait for the role of whatever queue has the name.
            is_plain = self.calm.natives and not self.has_moves
            if (
                is_plain
                and operation.verb is verbs.PUT
                and client.deletions is not None
                and not operation.error
            ):
                last = operation.messages[-1]
                after = self._backend.put_after.get(last, client.deletions)
                assert after <= client.deletions, "put into another queue than it waited for"

    def _check_order(self) -> None:
        """First come, first served, with nothing but clients that stay."""
        for base, put in self._backend.put.items():
            assert put == sorted(put, key=int), f"put in another order: {put}"
            mine = [
                client.operation
                for client in self._clients
                if client.operation and PREFIX + b":" + client.operation.name == base
            ]
            gets = [operation for operation in mine if operation.verb is verbs.GET]
            taken = [message for operation in gets if operation.wait is None for message in operation.results]
            assert taken == sorted(taken, key=int), f"taken in another order: {taken}"
            for operation in gets:
                short = operation.results and len(operation.results) < operation.wanted
                if short and not operation.options.waits:
                    left = self._backend.left_behind[operation.results[-1]]
                    assert not left, f"{left} messages were left behind"

    def _check_messages(self) -> None:
        """Nothing is lost, and nothing doubled."""
        put: list[bytes] = []
        unsure: set[bytes] = set()
        taken: Counter[bytes] = Counter()
        for client in self._clients:
            operation = cast(Operation, client.operation)
            if operation.verb is verbs.PUT:
                unknown = isinstance(operation.error, BackendError)
                at = 0
                for place, size in enumerate(operation.sizes):
                    mine = operation.messages[at : at + size]
                    at += size
                    result = operation.results[place] if place < len(operation.results) else None
                    if isinstance(result, int):
                        put += mine
                    elif unknown or result is None or isinstance(result, Exception):
                        unsure |= set(mine)
            if client.delivered:
                taken.update(operation.results)
        there = taken.copy()
        for queue in self._backend.queues.values():
            there.update(queue.messages)
        there.update(self._backend.dropped)
        assert not (lost := [message for message in put if not there[message]]), f"lost: {lost}"
        if not (self.has_faults and self.has_moves):
            twice = [message for message, count in there.items() if count > 1]
            assert not twice, f"doubled: {twice}"


class _Gone(Client):
    """One whose connection has been lost: what it gets goes back."""

    def completed(self, operation: Operation) -> None:
        """See Owner."""
        self.ends += 1
        operation.put_back()
