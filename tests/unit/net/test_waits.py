"""What waits for a client, in memory: on which queues, and when another client ends the waits."""

import asyncio
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


def test_the_answer_comes_when_nothing_waits_any_longer() -> None:
    async def play(waiter: Waiter) -> bool:
        waits, lanes, operation = Waits(), Lanes(), get()
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
        return await answer

    assert asyncio.run(play(Waiter()))


def test_a_wait_that_gets_something_was_not_ended() -> None:
    async def play() -> bool:
        waits, waiter = Waits(), Waiter(gets=True)
        waits[waiter] = (b"a",)
        answer = waits.unblock(None, cast(Database, Lanes()))
        waits.clear()
        waits.answer_if_ended()
        return await answer

    assert not asyncio.run(play())


def test_what_begins_to_wait_meanwhile_is_ended_too() -> None:
    async def play() -> bool:
        waits, later = Waits(), Waiter()
        answer = waits.unblock(None, cast(Database, Lanes()))
        waits[later] = (b"a",)
        waits.end_all(cast(Database, Lanes()))
        assert later.requests == 1
        waits.clear()
        waits.answer_if_ended()
        return await answer

    assert asyncio.run(play())


def test_without_a_request_nothing_is_ended() -> None:
    waits, waiter = Waits(), Waiter()
    waits[waiter] = (b"a",)
    waits.end_all(cast(Database, Lanes()))
    waits.answer_if_ended()
    assert waiter.requests == 0
