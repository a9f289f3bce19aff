"""Waits in memory, with an event at every moment: before, while and after an operation begins to wait.

A moment is a step between two callbacks of the event loop, two calls of the backend, or two notifications. In
each test the event comes once at each of the moments, and the wait must end with the same result.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import cast
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


Play = Callable[[World], None]


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


def has_ended(operation: Operation) -> bool:
    owner = operation.owner
    assert isinstance(owner, Client)
    assert len(owner.ended) <= 1
    return bool(owner.ended)


def test_a_message_ends_a_wait_at_any_moment() -> None:
    for world, (operation,) in at_each_moment(empty, lambda: [waiting_get()], lambda w: w.put(b"m")):
        assert has_ended(operation)
        assert operation.results == [b"m"]
        assert world.queue().messages == []
        assert not world.lanes._in_use


def test_a_queue_that_is_created_with_a_message_ends_a_wait_at_any_moment() -> None:
    waits = at_each_moment(lambda _: None, lambda: [waiting_get()], lambda w: w.create(b"m"))
    for _, (operation,) in waits:
        assert has_ended(operation)
        assert operation.results == [b"m"]


def test_a_close_fails_a_wait_for_a_message_at_any_moment() -> None:
    for _, (operation,) in at_each_moment(empty, lambda: [waiting_get()], World.close):
        assert has_ended(operation)
        assert isinstance(operation.error, QueueClosedError)


def test_room_ends_a_wait_at_any_moment() -> None:
    for world, (operation,) in at_each_moment(full, lambda: [waiting_put(b"m")], World.take):
        assert has_ended(operation)
        assert operation.results == [1]
        assert world.queue().messages == [b"m"]


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


@pytest.mark.parametrize("role", [b"producer", b"consumer"])
def test_a_role_that_becomes_free_ends_a_wait_at_any_moment(role: bytes) -> None:
    def held(world: World) -> None:
        world.create(b"old")
        world.hold(role)

    def operations() -> list[Operation]:
        return [waiting_put(b"m")] if role == b"producer" else [waiting_get()]

    for _, (operation,) in at_each_moment(held, operations, lambda w: w.release(role)):
        assert has_ended(operation)
        assert operation.results == ([2] if role == b"producer" else [b"old"])


def test_room_at_the_destination_ends_the_wait_of_a_move_at_any_moment() -> None:
    def no_room(world: World) -> None:
        world.create(b"m")
        world.create(b"old", bound=1, name=b"d")

    for world, (operation,) in at_each_moment(no_room, lambda: [move()], lambda w: w.take(b"d")):
        assert has_ended(operation)
        assert operation.results == [b"m"]
        assert (world.queue().messages, world.queue(b"d").messages) == ([], [b"m"])


@pytest.mark.parametrize("message", [(), (b"m",)])
@pytest.mark.parametrize("taken_by", ["this server", "another"])
def test_a_move_without_its_message_waits_for_no_room(message: tuple[bytes, ...], taken_by: str) -> None:
    """LMOVE and SMOVE that found a full destination: the message goes another way meanwhile."""

    def no_room(world: World) -> None:
        world.create(b"m", *((b"next",) if message else ()))
        world.create(b"old", bound=1, name=b"d")

    def event(world: World) -> None:
        if taken_by == "another":
            world.take()
        else:
            world.submit(get(owner=Client()))

    for world, (operation,) in at_each_moment(no_room, lambda: [move(*message, waits=False)], event):
        assert has_ended(operation)
        assert operation.results == []
        assert world.queue(b"d").messages == [b"old"]


def test_moves_in_vain_do_not_keep_others_from_room_at_another_destination() -> None:
    def no_room(world: World) -> None:
        world.create(b"m")
        for name in (b"d", b"e"):
            world.create(b"old", bound=1, name=name)

    def operations() -> list[Operation]:
        return [*(move() for _ in range(10)), move(destination=b"e")]

    for world, (*others, last) in at_each_moment(no_room, operations, lambda w: w.take(b"e")):
        assert last.results == [b"m"]
        assert world.queue(b"e").messages == [b"m"]
        assert not any(map(has_ended, others))


def test_a_message_ends_the_wait_of_a_move_at_any_moment() -> None:
    for world, (operation,) in at_each_moment(empty, lambda: [move()], lambda w: w.put(b"m")):
        assert has_ended(operation)
        assert world.queue(b"d").messages == [b"m"]


def test_one_message_serves_the_operation_that_came_first() -> None:
    waits = at_each_moment(empty, lambda: [waiting_get() for _ in range(3)], lambda w: w.put(b"m"))
    for _, (first, *others) in waits:
        assert first.results == [b"m"]
        assert not any(map(has_ended, others))


def test_messages_serve_operations_in_the_order_in_which_they_came() -> None:
    messages = [b"%d" % number for number in range(12)]
    waits = at_each_moment(empty, lambda: [waiting_get() for _ in messages], lambda w: w.put(*messages))
    for _, operations in waits:
        assert [operation.results for operation in operations] == [[message] for message in messages]


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


def test_a_put_of_this_server_serves_its_waiting_get_without_a_notification() -> None:
    """Both may be in one call."""
    for world, (operation,) in at_each_moment(
        empty, lambda: [waiting_get()], lambda w: cast(None, w.submit(put(b"m", owner=Client())))
    ):
        assert operation.results == [b"m"]
        assert world.queue().messages == []


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
        served = [operation for operation in pair if operation.results]
        assert len(served) == 1
        left = [world.queue(name).messages for name in (b"q", b"d")]
        assert left in ([[], [b"m"]], [[b"m"], []])
