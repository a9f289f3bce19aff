"""Waits in memory, with an event at every moment: before, while and after an operation begins to wait.

A moment is a step between two callbacks of the event loop, two calls of the backend, or two notifications. In
each test the event comes once at each of the moments, and the wait must end with the same result.
"""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import cast
from unittest.mock import Mock

import pytest

from pressure_server.backend.durability import Durability
from pressure_server.backend.link import Link
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.errors import QueueDoesNotExistError
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
        self.submitted: list[Operation] = []
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

    def play(self, script: str) -> None:
        """Do what the lines of a script say: the name of a method below, and its arguments."""
        for line in script.split(";") if script else ():
            name, *words = line.split()
            getattr(self, name)(*map(str.encode, words))

    # What native clients do.

    def create(self, name: bytes, bound: bytes = b"0", *messages: bytes) -> None:
        self.backend.queues[base(name)] = Queue(int(bound))
        self.backend.touch(base(name), b":bound", b":not_full", b":producer_free", b":consumer_free")
        self.put(name, *messages)

    def delete(self, name: bytes) -> None:
        self.backend.delete(base(name))

    def put(self, name: bytes, *messages: bytes) -> None:
        self.backend.append(base(name), list(messages))

    def take(self, name: bytes) -> None:
        self.backend.gone += self.backend.take(base(name), 1, moves=True)

    def close(self, name: bytes) -> None:
        self.queue(name).is_closed = True
        self.backend.touch(base(name), b":closed")

    def hold(self, name: bytes, role: bytes) -> None:
        self.queue(name).held.add(role)
        self.watch.changed(base(name) + b":%b_free" % role)

    def release(self, name: bytes, role: bytes) -> None:
        self.queue(name).held.discard(role)
        self.watch.changed(base(name) + b":%b_free" % role)

    # What happens in this server.

    def leave(self) -> None:
        """Let the client of the first operation leave."""
        self.lanes.cancel(self.submitted[0])

    def pass_time(self) -> None:
        """Let two seconds pass."""
        while self.loop.advance(within=2.0):
            pass

    def put_here(self, name: bytes, message: bytes) -> None:
        self.submit(put(message, owner=Client(), name=name))

    def get_here(self, name: bytes) -> None:
        self.submit(get(owner=Client(), name=name))


def at_each_moment(
    before: str, operations: Callable[[], list[Operation]], event: str
) -> Iterator[tuple[World, list[Operation]]]:
    """Submit operations in a new world for each moment, and let the event come at that moment."""
    for moment in range(MOST_MOMENTS):
        world = World()
        with world.loop.running():
            world.play(before)
            submitted = world.submitted = [world.submit(operation) for operation in operations()]
            is_over = not all(world.step() for _ in range(moment))
            world.play(event)
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


def has_ended(operation: Operation) -> bool:
    owner = operation.owner
    assert isinstance(owner, Client)
    assert len(owner.ended) <= 1
    return bool(owner.ended)


def outcome(operation: Operation) -> str:
    """Return the results of an operation, or the code of its error."""
    if operation.error is not None:
        return operation.error.code
    return " ".join(one.decode() if isinstance(one, bytes) else str(one) for one in operation.results)


# LMOVE and SMOVE wait only for room at their destination.
OPERATIONS: dict[str, Callable[[], Operation]] = {
    "get": waiting_get,
    "put m": lambda: waiting_put(b"m"),
    "BLMOVE q d": move,
    "LMOVE q d": lambda: move(waits=False),
    "SMOVE q d m": lambda: move(b"m", waits=False),
}


@pytest.mark.parametrize(
    ("before", "operation", "event", "expected", "q", "d"),
    [
        ("create q", "get", "put q m", "m", "", ""),
        ("create q", "get", "put_here q m", "m", "", ""),  # both may be in one call
        ("", "get", "create q 0 m", "m", "", ""),
        ("create q 0 old; hold q consumer", "get", "release q consumer", "old", "", ""),
        ("create q", "get", "close q", "CLOSED", "", ""),
        ("create q 1 old", "put m", "take q", "1", "m", ""),
        ("create q 0 old; hold q producer", "put m", "release q producer", "2", "old m", ""),
        ("create q 1 old", "put m", "close q", "CLOSED", "old", ""),
        ("create q", "BLMOVE q d", "put q m", "m", "", "m"),
        ("create q 0 m; create d 1 old", "BLMOVE q d", "take d", "m", "", "m"),
        # Moves that found a full destination: the message goes another way.
        ("create q 0 m; create d 1 old", "LMOVE q d", "take q", "", "", "old"),
        ("create q 0 m; create d 1 old", "LMOVE q d", "get_here q", "", "", "old"),
        ("create q 0 m n; create d 1 old", "SMOVE q d m", "take q", "", "n", "old"),
        ("create q 0 m n; create d 1 old", "SMOVE q d m", "get_here q", "", "n", "old"),
    ],
)
def test_an_event_ends_a_wait_at_any_moment(
    before: str, operation: str, event: str, expected: str, q: str, d: str
) -> None:
    for world, (waiting,) in at_each_moment(before, lambda: [OPERATIONS[operation]()], event):
        assert has_ended(waiting)
        assert outcome(waiting) == expected
        assert [world.messages(name) for name in (b"q", b"d")] == [q.encode().split(), d.encode().split()]
        assert not world.lanes._in_use


def test_a_close_fails_a_put_that_was_done_in_part_at_any_moment() -> None:
    for world, (operation,) in at_each_moment("create q 2 old", lambda: [waiting_put(b"m n o")], "close q"):
        assert has_ended(operation)
        (result,) = [operation.error] if operation.error is not None else operation.results
        assert result.code == "CLOSED"
        put_in_part = world.messages()[1:]
        assert ("1 of the command's messages" in str(result)) is bool(put_in_part)


def test_a_deletion_ends_waits_on_the_queue_that_was_there() -> None:
    ends = []
    for _, (operation,) in at_each_moment("create q", lambda: [waiting_get()], "delete q"):
        ends.append(has_ended(operation))
        assert has_ended(operation) is isinstance(operation.error, QueueDoesNotExistError)
        assert has_ended(operation) or len(operation.owner.waiting) == 1  # type: ignore[attr-defined]
    # Before its call, it found no queue and waits for one; after that, it waited on the one that is gone.
    assert ends == sorted(ends)
    assert (ends[0], ends[-1]) == (False, True)


def test_moves_in_vain_do_not_keep_others_from_room_at_another_destination() -> None:
    def operations() -> list[Operation]:
        return [*(move() for _ in range(10)), move(destination=b"e")]

    before = "create q 0 m; create d 1 old; create e 1 old"
    for world, (*others, last) in at_each_moment(before, operations, "take e"):
        assert last.results == [b"m"]
        assert world.messages(b"e") == [b"m"]
        assert not any(map(has_ended, others))


@pytest.mark.parametrize("number", [1, 12])
def test_messages_serve_operations_in_the_order_in_which_they_came(number: int) -> None:
    messages = [b"%d" % one for one in range(number)]
    event = b"put q " + b" ".join(messages)
    waits = at_each_moment("create q", lambda: [waiting_get() for _ in range(14)], event.decode())
    for _, operations in waits:
        assert [one.results for one in operations[:number]] == [[message] for message in messages]
        assert not any(map(has_ended, operations[number:]))


def test_room_serves_puts_in_the_order_in_which_they_came() -> None:
    def operations() -> list[Operation]:
        return [waiting_put(b"%d" % number) for number in range(3)]

    for world, (first, *others) in at_each_moment("create q 1 old", operations, "take q"):
        assert first.results == [1]
        assert not any(map(has_ended, others))
        assert world.messages() == [b"0"]
        for number in (1, 2):
            world.take(b"q")
            world.settle()
            assert world.messages() == [b"%d" % number]


def test_a_client_that_leaves_at_any_moment_loses_no_message() -> None:
    waits = at_each_moment("create q", lambda: [waiting_get(), waiting_get()], "leave; put q m")
    for world, (_, second) in waits:
        assert has_ended(second)
        assert second.results == [b"m"]
        assert not world.lanes._in_use


def test_a_client_that_leaves_while_a_message_comes_puts_it_back() -> None:
    for world, (operation,) in at_each_moment("create q 0 m", lambda: [waiting_get()], "leave"):
        world.lanes.flush_put_backs([b"q"])
        world.settle()
        received = cast(Client, operation.owner).received or []
        assert [*received, *world.messages()] == [b"m"]


@pytest.mark.parametrize(
    ("before", "make", "expected"),
    [("create q", get, ""), ("create q 1 old", lambda **of: put(b"m", **of), "FULL")],
)
def test_a_wait_whose_time_is_up_at_any_moment_ends_once(
    before: str, make: Callable[..., Operation], expected: str
) -> None:
    def operations() -> list[Operation]:
        return [make(options=WAITS, wait=Wait(1.0), owner=Client())]

    for world, (operation,) in at_each_moment(before, operations, "pass_time"):
        world.pass_time()
        world.settle()
        assert has_ended(operation)
        assert outcome(operation) == expected
        assert not world.lanes._in_use


def test_an_operation_with_a_ticket_takes_one_message_whatever_comes_at_which_moment() -> None:
    """A client waits on two queues, and both get a message."""

    def operations() -> list[Operation]:
        wait = partial(Wait, None, ticket=Ticket())
        return [get(options=WAITS, wait=wait(), owner=Client(), name=name) for name in (b"q", b"d")]

    for world, pair in at_each_moment("create q; create d", operations, "put q m; put d m"):
        assert sorted(operation.results for operation in pair) == [[], [b"m"]]
        assert sorted(world.messages(name) for name in (b"q", b"d")) == [[], [b"m"]]
