"""Waits in memory, with an event at every moment: before, while and after an operation begins to wait.

A moment is a step between two callbacks of the event loop, two calls of the backend, or two notifications. In
each test the event comes once at each of the moments, and the wait must end with the same result.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple, cast
from unittest.mock import Mock

import pytest

from pressure_server.backend.durability import Durability
from pressure_server.backend.link import Link
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.errors import QueueClosedError, QueueDoesNotExistError, QueueFullError
from pressure_server.queues.housekeeping import Housekeeping
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import DEFAULT, WAITS
from pressure_server.queues.operations.owners import Answers
from pressure_server.queues.operations.wait import Ticket, Wait, WaiterCount
from pressure_server.queues.policy import BLOCK, Policy
from pressure_server.queues.shard import Shard
from tests.interleavings.backend import PREFIX, Backend, Queue
from tests.interleavings.connections import ModelDurability, ModelLink, ModelWatch
from tests.interleavings.loop import ModelLoop
from tests.unit.queues.operations_of import Recorder, get, put

# More moments than any wait has.
MOST_MOMENTS = 100


def base(name: bytes) -> bytes:
    return PREFIX + b":" + name


class Client(Recorder):
    """A client that takes what it gets, and puts it back if it has left."""

    received: list[bytes] | None = None

    def completed(self, operation: Operation) -> None:
        super().completed(operation)
        if operation.cancelled:
            operation.put_back()
        else:
            self.received = operation.results
            operation.acknowledge()


class World:
    """Lanes on a backend in memory; native clients that act on the backend."""

    def __init__(self) -> None:
        self.loop, self.watch = ModelLoop(), ModelWatch()
        self.backend = Backend(Random(0), self.watch.changed)
        self.link = ModelLink(self.backend)
        with self.loop.running():
            self.lanes = Shard(
                cast(Link, self.link), cast(Watch, self.watch), Mock(spec=Turns),
                cast(Durability, ModelDurability(is_enabled=False)),
                prefix=PREFIX, identity=b"me", waiters=WaiterCount(100), answers=Answers(),
                policy=Policy(create_bound=0, overflow=BLOCK, put_timeout=None, role_timeout=1e6),
            )  # fmt: skip
        self.lanes.housekeeping = Mock(spec=Housekeeping)
        self.watch.exists = self.backend.exists
        self.watch.notify = self.lanes.changed

    def step(self) -> bool:
        """Let the next thing happen. Return False if nothing is left to do."""
        return (
            self.loop.run_one()
            or self.link.do_one()
            or self.link.answer_one()
            or self.watch.arm_one()
            or self.watch.send_one()
        )

    def settle(self) -> None:
        """Let everything happen."""
        for _ in range(MOST_MOMENTS):
            if not self.step():
                return
        raise AssertionError("something goes on for ever")

    def submit(self, operation: Operation) -> Operation:
        self.lanes.submit(operation)
        return operation

    def queue(self, name: bytes = b"q") -> Queue:
        return self.backend.queues[base(name)]

    def messages(self, name: bytes = b"q") -> list[bytes]:
        """Return what is queued; nothing if there is no such queue."""
        return self.queue(name).messages if base(name) in self.backend.queues else []

    # What native clients do.

    def create(self, *messages: bytes, bound: int = 0, name: bytes = b"q") -> None:
        self.backend.queues[base(name)] = Queue(bound)
        self.backend.touch(base(name), b":bound", b":not_full", b":producer_free", b":consumer_free")
        self.put(*messages, name=name)

    def put(self, *messages: bytes, name: bytes = b"q") -> None:
        self.backend.append(base(name), list(messages))

    def take(self, name: bytes = b"q") -> None:
        self.backend.gone += self.backend.take(base(name), 1, moves=True)

    def close(self) -> None:
        self.queue().is_closed = True
        self.backend.touch(base(b"q"), b":closed")

    def hold(self, role: bytes) -> None:
        self.queue().held.add(role)
        self.watch.changed(base(b"q") + b":%b_free" % role)

    def release(self, role: bytes) -> None:
        self.queue().held.discard(role)
        self.watch.changed(base(b"q") + b":%b_free" % role)


Play = Callable[[World], object]


def at_each_moment(
    before: Play, operations: Callable[[], list[Operation]], event: Play
) -> Iterator[tuple[World, list[Operation]]]:
    """Submit operations in a new world for each moment, and let the event come at that moment."""
    for moment in range(MOST_MOMENTS):
        world = World()
        with world.loop.running():
            before(world)
            submitted = [world.submit(operation) for operation in operations()]
            is_over = not all(world.step() for _ in range(moment))
            event(world)
            world.settle()
            assert not world.loop.errors
            yield world, submitted
        if is_over:
            assert moment > 3
            return
    raise AssertionError("the wait does not begin")


def waiting_get() -> Operation:
    return get(options=WAITS, wait=Wait(None), owner=Client())


def waiting_put(*commands: bytes) -> Operation:
    return put(*commands, wait=Wait(None), owner=Client())


def move(*message: bytes, waits: bool = True, destination: bytes = b"d") -> Operation:
    wait, options = Wait(None, destination=destination), WAITS if waits else DEFAULT
    words = [base(destination), *message]
    return Operation(verbs.MOVE, b"q", words, 1, Client(), wait=wait, options=options)


def empty(world: World) -> None:
    world.create()


def full(world: World) -> None:
    world.create(b"old", bound=1)


def held(role: bytes) -> Play:
    def create_and_hold(world: World) -> None:
        world.create(b"old")
        world.hold(role)

    return create_and_hold


def no_room_at_destinations(*messages: bytes) -> Play:
    def create(world: World) -> None:
        world.create(*messages)
        for name in (b"d", b"e"):
            world.create(b"old", bound=1, name=name)

    return create


def has_ended(operation: Operation) -> bool:
    owner = operation.owner
    assert isinstance(owner, Client)
    assert len(owner.ended) <= 1
    return bool(owner.ended)


class Case(NamedTuple):
    """An operation that waits, the event that ends its wait, its results, and what q and d have then."""

    before: Play
    operation: Callable[[], Operation]
    event: Callable[[World], object]
    results: list[Any]
    q: Sequence[bytes] = ()
    d: Sequence[bytes] = ()


def put_here(world: World) -> None:
    world.submit(put(b"m", owner=Client()))


def get_here(world: World) -> None:
    world.submit(get(owner=Client()))


def nothing(_world: World) -> None: ...


ENDS = {
    "a message": Case(empty, waiting_get, lambda w: w.put(b"m"), [b"m"]),
    "a put of this server, which needs no notification": Case(empty, waiting_get, put_here, [b"m"]),
    "a queue that is created with a message": Case(nothing, waiting_get, lambda w: w.create(b"m"), [b"m"]),
    "room": Case(full, lambda: waiting_put(b"m"), World.take, [1], q=[b"m"]),
    "the consumer role": Case(held(b"consumer"), waiting_get, lambda w: w.release(b"consumer"), [b"old"]),
    "the producer role": Case(
        held(b"producer"), lambda: waiting_put(b"m"), lambda w: w.release(b"producer"), [2], q=[b"old", b"m"]
    ),
    "a message to move": Case(empty, move, lambda w: w.put(b"m"), [b"m"], d=[b"m"]),
    "room at the destination": Case(
        no_room_at_destinations(b"m"), move, lambda w: w.take(b"d"), [b"m"], d=[b"m"]
    ),
    # LMOVE and SMOVE that found a full destination wait for no room if the message goes another way.
    "a get of the last message": Case(
        no_room_at_destinations(b"m"), lambda: move(waits=False), get_here, [], d=[b"old"]
    ),
    "the last message is taken": Case(
        no_room_at_destinations(b"m"), lambda: move(waits=False), World.take, [], d=[b"old"]
    ),
    "a get of the message": Case(
        no_room_at_destinations(b"m", b"n"), lambda: move(b"m", waits=False), get_here, [], [b"n"], [b"old"]
    ),
    "the message is taken": Case(
        no_room_at_destinations(b"m", b"n"), lambda: move(b"m", waits=False), World.take, [], [b"n"], [b"old"]
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_an_operation_waits_for_ends_its_wait_at_any_moment(end: str) -> None:
    case = ENDS[end]
    for world, (operation,) in at_each_moment(case.before, lambda: [case.operation()], case.event):
        assert has_ended(operation)
        assert operation.results == case.results
        assert [world.messages(name) for name in (b"q", b"d")] == [[*case.q], [*case.d]]
        assert not world.lanes._in_use


def test_a_close_fails_a_wait_for_a_message_at_any_moment() -> None:
    for _, (operation,) in at_each_moment(empty, lambda: [waiting_get()], World.close):
        assert has_ended(operation)
        assert isinstance(operation.error, QueueClosedError)


@pytest.mark.parametrize("messages", [b"m", b"m n o"])
def test_a_close_fails_a_wait_for_room_at_any_moment(messages: bytes) -> None:
    def two(world: World) -> None:
        world.create(b"old", bound=2)

    for world, (operation,) in at_each_moment(
        two if b" " in messages else full, lambda: [waiting_put(messages)], World.close
    ):
        assert has_ended(operation)
        (result,) = [operation.error] if operation.error is not None else operation.results
        assert result.code == "CLOSED"
        put_in_part = world.queue().messages[1:]
        assert ("1 of the command's messages" in str(result)) is bool(put_in_part)


def test_a_deletion_ends_waits_on_the_queue_that_was_there() -> None:
    def delete(world: World) -> None:
        world.backend.delete(base(b"q"))

    ends = []
    for _, (operation,) in at_each_moment(empty, lambda: [waiting_get()], delete):
        ends.append(has_ended(operation))
        assert has_ended(operation) is isinstance(operation.error, QueueDoesNotExistError)
        assert has_ended(operation) or len(operation.owner.waiting) == 1  # type: ignore[attr-defined]
    # Before its call, it found no queue and waits for one; after that, it waited on the one that is gone.
    assert ends == sorted(ends)
    assert (ends[0], ends[-1]) == (False, True)


def test_moves_in_vain_do_not_keep_others_from_room_at_another_destination() -> None:
    def operations() -> list[Operation]:
        return [*(move() for _ in range(10)), move(destination=b"e")]

    before = no_room_at_destinations(b"m")
    for world, (*others, last) in at_each_moment(before, operations, lambda w: w.take(b"e")):
        assert last.results == [b"m"]
        assert world.messages(b"e") == [b"m"]
        assert not any(map(has_ended, others))


@pytest.mark.parametrize("number", [1, 12])
def test_messages_serve_operations_in_the_order_in_which_they_came(number: int) -> None:
    messages = [b"%d" % one for one in range(number)]
    waits = at_each_moment(empty, lambda: [waiting_get() for _ in range(14)], lambda w: w.put(*messages))
    for _, operations in waits:
        assert [one.results for one in operations[:number]] == [[message] for message in messages]
        assert not any(map(has_ended, operations[number:]))


def test_room_serves_puts_in_the_order_in_which_they_came() -> None:
    def operations() -> list[Operation]:
        return [waiting_put(b"%d" % number) for number in range(3)]

    for world, (first, *others) in at_each_moment(full, operations, World.take):
        assert first.results == [1]
        assert not any(map(has_ended, others))
        assert world.queue().messages == [b"0"]
        for number in (1, 2):
            world.take()
            world.settle()
            assert world.queue().messages == [b"%d" % number]


def test_a_client_that_leaves_at_any_moment_loses_no_message() -> None:
    operations = list[Operation]()

    def submitted() -> list[Operation]:
        operations[:] = [waiting_get(), waiting_get()]
        return operations

    def leave(world: World) -> None:
        world.lanes.cancel(operations[0])
        world.put(b"m")

    for world, (_, second) in at_each_moment(empty, submitted, leave):
        assert has_ended(second)
        assert second.results == [b"m"]
        assert not world.lanes._in_use


def test_a_client_that_leaves_while_a_message_comes_puts_it_back() -> None:
    operations = list[Operation]()

    def submitted() -> list[Operation]:
        operations[:] = [waiting_get()]
        return operations

    def with_message(world: World) -> None:
        world.create(b"m")

    for world, (operation,) in at_each_moment(
        with_message, submitted, lambda w: w.lanes.cancel(operations[0])
    ):
        world.lanes.flush_put_backs([b"q"])
        world.settle()
        received = cast(Client, operation.owner).received or []
        assert [*received, *world.queue().messages] == [b"m"]


@pytest.mark.parametrize("kind", ["get", "put"])
def test_a_wait_whose_time_is_up_at_any_moment_ends_once(kind: str) -> None:
    def operations() -> list[Operation]:
        if kind == "get":
            return [get(options=WAITS, wait=Wait(1.0), owner=Client())]
        return [put(b"m", wait=Wait(1.0), owner=Client())]

    def time_passes(world: World) -> None:
        while world.loop.advance(within=2.0):
            pass

    for world, (operation,) in at_each_moment(empty if kind == "get" else full, operations, time_passes):
        time_passes(world)
        world.settle()
        assert has_ended(operation)
        assert operation.results == []
        assert (type(operation.error) is QueueFullError) is (kind == "put")
        assert not world.lanes._in_use


def test_an_operation_with_a_ticket_takes_one_message_whatever_comes_at_which_moment() -> None:
    """A client waits on two queues, and both get a message."""

    def both(world: World) -> None:
        world.create()
        world.create(name=b"d")

    def operations() -> list[Operation]:
        ticket = Ticket()
        return [
            get(options=WAITS, wait=Wait(None, ticket=ticket), owner=Client(), name=name)
            for name in (b"q", b"d")
        ]

    def event(world: World) -> None:
        world.put(b"m")
        world.put(b"m", name=b"d")

    for world, pair in at_each_moment(both, operations, event):
        assert sorted(operation.results for operation in pair) == [[], [b"m"]]
        assert sorted(world.messages(name) for name in (b"q", b"d")) == [[], [b"m"]]
