"""Worlds: lanes and the courier on a backend in memory, clients whose acts a seed chooses, and checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from logging import getLogger
from logging.handlers import BufferingHandler
from random import Random
from typing import cast
from unittest.mock import Mock

from pressure_server.backend.durability import Durability
from pressure_server.backend.link import Link
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.errors import QueueDoesNotExistError, UnblockedError
from pressure_server.queues.housekeeping import Housekeeping
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation, Owner
from pressure_server.queues.operations.options import DEFAULT, OnFull, Options
from pressure_server.queues.operations.owners import Answers
from pressure_server.queues.operations.wait import AS_CONFIGURED, Ticket, Unblocking, Wait, WaiterCount
from pressure_server.queues.policy import BLOCK, ERROR, Policy
from pressure_server.queues.shard import Shard
from tests.interleavings.backend import PREFIX, Backend
from tests.interleavings.connections import ModelDurability, ModelLink, ModelWatch
from tests.interleavings.loop import ModelLoop

_QUEUES = (b"a", b"b", b"c")
_ROLES = (b"producer", b"consumer")
_OPERATIONS = 25
# More steps than any world needs to finish all operations.
_MAX_STEPS = 20_000


def _base_key(name: bytes) -> bytes:
    return PREFIX + b":" + name


@dataclass(eq=False)
class Client(Owner):
    """The owner of one operation."""

    world: World
    # The client of the other operation with the same ticket.
    other: Client | None = None
    operation: Operation = field(init=False)
    # The operation's first options.
    options: Options = field(init=False)
    # How often the queue had been deleted when the operation began to wait.
    deletions: int | None = None
    # The request to end its wait.
    unblocking: Unblocking | None = None
    ends: int = 0
    is_waiting: bool = False
    is_cancelled: bool = False
    is_gone: bool = False
    is_delivered: bool = False
    is_put_back: bool = False

    def wait_began(self, operation: Operation) -> None:
        self.is_waiting = True
        self.deletions = self.world.deletions(operation.name)

    def completed(self, operation: Operation) -> None:
        self.ends += 1
        if self.is_gone:
            operation.put_back()
            return
        self.is_waiting = False
        if self.other is not None:
            self.world.cancel(self.other)
            self.other.is_cancelled = True


class World:
    """One interleaving of operations, calls, replies, notifications and timers.

    Worlds with an odd seed are calm: no native clients, no faults, and no client leaves. There the order of
    messages is checked, too.
    """

    def __init__(self, seed: int) -> None:
        self._is_calm = seed % 2 == 1
        self._random = Random(seed)
        self._loop = ModelLoop()
        self._watch = ModelWatch()
        self._backend = Backend(self._random, self._watch.changed)
        self._link = ModelLink(self._backend)
        self._durability = ModelDurability(is_enabled=self._random.random() < 0.2)
        self._clients: list[Client] = []
        self._message_count = 0
        self._has_faults = self._has_moves = False
        policy = Policy(
            create_bound=self._random.choice([0, 0, 1, 3]),
            overflow=BLOCK if self._is_calm else self._random.choice([BLOCK, BLOCK, ERROR]),
            put_timeout=None,
            role_timeout=1e6,
        )
        with self._loop.running():
            self._lanes = Shard(
                cast(Link, self._link),
                cast(Watch, self._watch),
                Mock(spec=Turns),  # native clients give roles back without a turn
                cast(Durability, self._durability),
                prefix=PREFIX,
                identity=b"me",
                policy=policy,
                waiters=WaiterCount(1000),
                answers=Answers(),
            )
        self._lanes.housekeeping = Mock(spec=Housekeeping)
        self._watch.exists = self._backend.exists
        self._watch.notify = self._lanes.changed
        self._backend.early_ends = self._random.choice([0, 100, 400])

    def play(self) -> None:
        """Play to the end, and check the outcome."""
        # The courier only logs errors of blocks; here they must fail the test.
        log, logger = BufferingHandler(1_000), getLogger("pressure_server.queues")
        logger.addHandler(log)
        logger.propagate = False
        try:
            with self._loop.running():
                self._play()
        finally:
            logger.removeHandler(log)
            logger.propagate = True
        for record in log.buffer:
            raise AssertionError(record.getMessage()) from (record.exc_info or (None, None))[1]

    def _play(self) -> None:
        actions = self._actions()
        weights = list(accumulate(weight for _, weight in actions))
        while len(self._clients) < _OPERATIONS:
            self._random.choices(actions, cum_weights=weights)[0][0]()
        self._backend.early_ends = self._backend.refusals = 0
        for queue in self._backend.queues.values():
            queue.held.clear()
        for base in self._backend.queues:
            for role in _ROLES:
                self._watch.changed(base + b":%b_free" % role)
        self._finish()
        self._check()

    def _actions(self) -> list[tuple[Callable[[], object], int]]:
        """Return what can happen next, each with its weight."""
        loop, link, watch = self._loop, self._link, self._watch
        actions: list[tuple[Callable[[], object], int]] = [
            (self._submit, 12),
            (self._wait_on_another_queue, 2),
            (loop.run_one, 20),
            (link.do_one, 10),
            (link.answer_one, 10),
            (watch.arm_one, 5),
            (watch.send_one, 5),
            (self._acknowledge, 5),
            (self._unblock, 2),
            (lambda: loop.advance(within=2.0), 2),
            (self._durability.confirm_one, 3),
        ]
        if not self._is_calm:
            actions += [(self._act_as_native, 3), (self._leave, 2), (self._put_back, 2), (self._fail, 1)]
        return actions

    # What clients do.

    def _submit(self) -> None:
        random = self._random
        name = random.choice(_QUEUES)
        verb = random.choices(
            [verbs.PUT, verbs.GET, verbs.LENGTH, verbs.CLOSE, verbs.CREATE, verbs.DELETE, verbs.MOVE],
            [100, 100, 10, 2, 5, 2, 10],
        )[0]
        wait: Wait | None = None
        messages: list[bytes] = []
        size, commands, options = 1, 1, DEFAULT
        if verb is verbs.PUT:
            size, commands = random.choice([(1, 1), (1, 1), (1, 3), (2, 1), (2, 2)])
            messages = [self._new_message() for _ in range(size * commands)]
            on_full = OnFull.CONFIGURED if self._is_calm else random.choice([*OnFull, OnFull.CONFIGURED])
            options = Options(unique=random.random() < 0.5, on_full=on_full)
        elif verb is verbs.GET:
            size, commands = random.choice([(1, 1), (1, 1), (3, 1), (1, 2)])
            if random.random() < 0.5:
                options = Options(waits=True, wait_for_first=size > 1, must_exist=random.random() < 0.2)
                commands = 1
                ticket = Ticket() if random.random() < 0.4 else None
                wait = Wait(random.choice([None, None, 0, 3.0]), ticket=ticket)
        elif verb is verbs.MOVE:
            destination = random.choice(_QUEUES)
            messages = [_base_key(destination)]
            waits = random.random() < 0.5
            options = Options(waits=waits)
            wait = Wait(None if waits else AS_CONFIGURED, destination=destination)
            self._has_moves = True
        elif verb is verbs.CREATE:
            messages = [random.choice([b"0", b"1", b"2"])]
        client = Client(self)
        self._add(
            client,
            Operation(verb, name, messages, size, client, commands=commands, wait=wait, options=options),
        )
        if random.random() < 0.5:
            self._lanes.end_of_read()

    def _add(self, client: Client, operation: Operation) -> None:
        client.operation, client.options = operation, operation.options
        self._clients.append(client)
        self._lanes.submit(operation)

    def _wait_on_another_queue(self) -> None:
        """Let a waiting client wait on a second queue as well, like a blocking pop of several queues."""
        for first in self._clients:
            operation = first.operation
            ticket = operation.wait.ticket if operation.wait is not None else None
            if ticket is None or first.other is not None or not first.is_waiting or first.is_gone:
                continue
            assert operation.wait is not None
            first.other = second = Client(self, other=first)
            name = self._random.choice([name for name in _QUEUES if name != operation.name])
            wait = Wait(operation.wait.timeout, ticket=ticket)
            size = operation.sizes[0]
            self._add(second, Operation(verbs.GET, name, [], size, second, wait=wait, options=first.options))
            return

    def _new_message(self) -> bytes:
        self._message_count += 1
        return b"%d" % self._message_count

    def _unsettled(self) -> list[Client]:
        """Return the clients with messages that are neither acknowledged nor put back."""
        return [
            client
            for client in self._clients
            if client.ends
            and client.operation.has_taken
            and not client.is_delivered
            and not client.is_put_back
        ]

    def _acknowledge(self) -> None:
        if unsettled := self._unsettled():
            self._acknowledge_for(self._random.choice(unsettled))

    def _acknowledge_for(self, client: Client) -> None:
        client.is_delivered = True
        client.operation.acknowledge()

    def _unblock(self) -> None:
        """End a wait, whether its operation is in the line or in flight."""
        waiting = [c for c in self._clients if c.is_waiting and not (c.is_gone or c.unblocking)]
        if waiting:
            client = self._random.choice(waiting)
            client.unblocking = Unblocking(self._random.choice([None, UnblockedError()]))
            self._lanes.unblock(client.operation, client.unblocking)

    def _put_back(self) -> None:
        if unsettled := self._unsettled():
            client = self._random.choice(unsettled)
            client.is_put_back = True
            client.operation.put_back()

    def _leave(self) -> None:
        getters = [c for c in self._clients if not c.ends and c.operation.verb is verbs.GET]
        if getters:
            client = self._random.choice(getters)
            for leaving in (client, client.other):
                if leaving is not None and not leaving.ends:
                    self.cancel(leaving)
                    leaving.is_put_back = leaving.is_gone = True

    # Called by clients.

    def cancel(self, client: Client) -> None:
        """Cancel a client's operation."""
        self._lanes.cancel(client.operation)

    def deletions(self, name: bytes) -> int:
        """Return how often a queue has been deleted."""
        return self._backend.deletions[_base_key(name)]

    # What native clients and faults do.

    def _act_as_native(self) -> None:
        base = _base_key(self._random.choice(_QUEUES))
        queue = self._backend.queues.get(base)
        if queue is None:
            return
        role = self._random.choice(_ROLES)
        if role in queue.held:
            queue.held.remove(role)
            self._watch.changed(base + b":%b_free" % role)
        elif self._random.random() < 0.3:
            queue.held.add(role)
            self._watch.changed(base + b":%b_free" % role)
        elif role == b"producer" and queue.room and not queue.is_closed:
            self._backend.append(base, [self._new_message()])
        elif role == b"consumer" and queue.messages:
            self._backend.gone += self._backend.take(base, 1, moves=True)

    def _fail(self) -> None:
        self._has_faults = True
        kind = self._random.random()
        if kind < 0.6:
            self._link.lose(resends=kind < 0.4)
        else:
            self._backend.refusals = self._random.choice([0, 0, 100])

    # The end.

    def _finish(self) -> None:
        """Let all that is pending happen, and acknowledge all messages."""
        for _ in range(_MAX_STEPS):
            for client in self._unsettled():
                self._acknowledge_for(client)
            if not (
                self._loop.run_one()
                or self._link.do_one()
                or self._link.answer_one()
                or self._watch.arm_one()
                or self._watch.send_one()
                or self._durability.confirm_one()
                or self._loop.advance(within=60.0)
            ):
                return
        raise AssertionError(f"after {_MAX_STEPS} steps there is still something to do")

    def _check(self) -> None:
        assert not self._loop.errors, self._loop.errors
        for number, client in enumerate(self._clients):
            operation = client.operation
            what = f"{number}: {operation.verb!r} {client.options} of {operation.name.decode()}"
            assert client.ends <= 1, f"{what} has ended {client.ends} times"
            if not (client.ends or client.is_gone or client.is_cancelled):
                assert client.is_waiting, f"{what} has not ended, and does not wait"
                self._check_wait(operation, what)
            if client.unblocking is not None:
                self._check_unblocked(client, client.unblocking, what)
        assert not len(self._lanes.courier.records), "records are left"
        assert not self._backend.records, "records are left on the backend"
        unfinished = {client.operation.name for client in self._clients if not client.ends}
        in_use = {name for name, lane in self._lanes._lanes.items() if lane.is_in_use}
        assert in_use <= unfinished, f"lanes {in_use - unfinished} are left"
        self._check_messages()
        self._check_deleted_queues()
        if self._is_calm and not self._has_moves:
            self._check_order()

    def _check_wait(self, operation: Operation, what: str) -> None:
        """Check that the operation still has to wait."""
        queue = self._backend.queues.get(_base_key(operation.name))
        if operation.verb is verbs.GET:
            assert queue is None or not (queue.messages or queue.is_closed), f"{what} hangs"
        elif operation.verb is verbs.PUT:
            assert queue is not None, f"{what} hangs: its queue is deleted"
            assert queue.room == 0, f"{what} hangs"
            assert not queue.is_closed, f"{what} hangs"

    def _check_unblocked(self, client: Client, unblocking: Unblocking, what: str) -> None:
        """Check that the wait has ended, and that the answer to the request is right."""
        operation = client.operation
        assert client.ends or client.is_gone or client.is_cancelled, f"{what} was unblocked, and waits"
        if unblocking.has_ended_wait:
            assert not operation.has_taken, f"{what} was unblocked, and has taken something"
            done = [one for one in operation.results if isinstance(one, int)]
            assert not operation.verb.puts or len(done) < len(operation.sizes), f"{what} has put all"
            if unblocking.error is not None and not operation.results:
                assert operation.error is unblocking.error, f"{what} was unblocked, and has another error"
        elif client.ends and not client.is_gone and (client.options.waits or operation.verb.puts):
            # A move that waits for room ends with nothing if another client takes the message.
            assert operation.results or operation.error, f"{what} has got nothing, and was not unblocked"

    def _check_deleted_queues(self) -> None:
        """Check that operations waited for the queue that existed, or for one to be created."""
        for client in self._clients:
            operation = client.operation
            if operation.verb is verbs.GET and client.options.waits and not client.options.must_exist:
                has_waited = not isinstance(operation.error, QueueDoesNotExistError)
                assert has_waited or self.deletions(operation.name), "it did not wait"
            # Moves, and operations that wait for a role, may end on any queue of that name.
            is_plain = self._is_calm and not self._has_moves
            is_put = operation.verb is verbs.PUT and not operation.error
            if is_plain and is_put and client.deletions is not None:
                last = operation.messages[-1]
                before = self._backend.deletions_before_put.get(last, client.deletions)
                assert before <= client.deletions, "put on another queue than the one it waited for"

    def _check_order(self) -> None:
        """Check that messages are put and taken first come, first served."""
        for base, put in self._backend.put.items():
            assert put == sorted(put, key=int), f"put in another order: {put}"
            gets = [
                client.operation
                for client in self._clients
                if client.operation.verb is verbs.GET and _base_key(client.operation.name) == base
            ]
            taken = [message for get in gets if get.wait is None for message in get.results]
            assert taken == sorted(taken, key=int), f"taken in another order: {taken}"
            for get in gets:
                if 0 < len(get.results) < get.wanted and not get.options.waits:
                    left = self._backend.left_after_take[get.results[-1]]
                    assert not left, f"a get took too few: {left} messages were left"

    def _check_messages(self) -> None:
        """Check that no message is lost or duplicated."""
        put: list[bytes] = []
        found: Counter[bytes] = Counter(self._backend.gone)
        for client in self._clients:
            operation = client.operation
            if client.is_delivered:
                found.update(operation.results)
            if operation.verb is verbs.PUT:
                messages = iter(operation.messages)
                for size, result in zip(operation.sizes, operation.results, strict=False):
                    command = [next(messages) for _ in range(size)]
                    put += command if isinstance(result, int) else []
        for queue in self._backend.queues.values():
            found.update(queue.messages)
        lost = [message for message in put if not found[message]]
        assert not lost, f"lost: {lost}"
        if not (self._has_faults and self._has_moves):
            duplicated = [message for message, count in found.items() if count > 1]
            assert not duplicated, f"duplicated: {duplicated}"
