"""What waits for a client, in memory: on which queues, and when another client ends the waits."""

from typing import Any, cast

from pressure_server.errors import UnblockedError
from pressure_server.net.waits import Waits
from pressure_server.queues.database import Database
from pressure_server.queues.operations.wait import Unblocking
from tests.unit.queues.operations_of import get


class Waiter:
    """What waits. Its wait ends if it is told to, unless it `gets` something."""

    def __init__(self, *, gets: bool = False) -> None:
        self.requests = 0
        self._gets = gets

    def unblock(self, unblocking: Unblocking) -> None:
        self.requests += 1
        if not self._gets:
            unblocking.take_effect()


class Lanes:
    """The lanes of a database in which operations wait."""

    def __init__(self) -> None:
        self.unblocked: list[Any] = []

    def unblock(self, operation: Any, unblocking: Unblocking) -> None:
        self.unblocked.append(operation)
        unblocking.take_effect()


def test_each_queue_is_named_once() -> None:
    waits = Waits()
    waits[Waiter()] = (b"a", b"b")
    waits[Waiter()] = (b"b", b"c")
    assert waits.queues == [b"a", b"b", b"c"]


async def test_the_answer_comes_when_nothing_waits_any_longer() -> None:
    waits, lanes, waiter, operation = Waits(), Lanes(), Waiter(), get()
    waits[waiter], waits[operation] = (b"a",), (b"b",)
    answer = waits.unblock(UnblockedError(), cast(Database, lanes))
    assert waits.are_to_end
    assert (waiter.requests, lanes.unblocked) == (1, [operation])
    for waiting in (waiter, operation):
        waits.answer_if_ended()
        assert not answer.done()
        del waits[waiting]
    waits.answer_if_ended()
    assert not waits.are_to_end
    assert await answer


async def test_a_wait_that_gets_something_was_not_ended() -> None:
    waits, waiter = Waits(), Waiter(gets=True)
    waits[waiter] = (b"a",)
    answer = waits.unblock(None, cast(Database, Lanes()))
    waits.clear()
    waits.answer_if_ended()
    assert not await answer


async def test_what_begins_to_wait_is_ended_only_during_a_request() -> None:
    waits, later, no_lanes = Waits(), Waiter(), cast(Database, Lanes())
    waits[later] = (b"a",)
    waits.end_all(no_lanes)
    waits.answer_if_ended()
    assert later.requests == 0
    waits.clear()
    answer = waits.unblock(None, no_lanes)
    waits[later] = (b"a",)
    waits.end_all(no_lanes)
    assert later.requests == 1
    waits.clear()
    waits.answer_if_ended()
    assert await answer
