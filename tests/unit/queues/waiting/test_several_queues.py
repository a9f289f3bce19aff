"""Waits on several queues in memory: one operation ends them, whatever happens at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import cast

import pytest

from pressure_server.errors import UnblockedError
from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.options import WAITS
from pressure_server.queues.operations.owners import Waiter
from pressure_server.queues.operations.wait import Unblocking, Wait, WaiterCount
from pressure_server.queues.waiting.several_queues import SeveralQueues
from tests.unit.queues.operations_of import WaitingClient, wait_of


class Lanes:
    """Lanes in which nothing is done."""

    is_up = True
    waiters = WaiterCount(10)

    def __init__(self) -> None:
        self.shards = [self]
        self.joined: list[Operation] = []
        self.cancelled: list[Operation] = []

    def join(self, operation: Operation) -> None:
        self.joined.append(operation)

    def submit(self, operation: Operation) -> None:
        self.joined.append(operation)

    def cancel(self, operation: Operation) -> None:
        self.cancelled.append(operation)

    def due_soon(self, _name: bytes) -> float | None:
        return None

    def shard_of(self, _name: bytes) -> Lanes:
        return self


class World:
    """A wait on two queues that has begun."""

    def __init__(self, timeout: float | None = None, to_try: Sequence[bytes] = ()) -> None:
        self.lanes = Lanes()
        self.client = WaitingClient()
        self.put_back: list[Operation] = []
        self.several = SeveralQueues(cast(Database, self.lanes), verbs.GET, WAITS, self.client)
        deadline = inf if timeout is None else asyncio.get_running_loop().time() + timeout
        waiting = self.several.first_ended([b"a", b"b"], to_try, [], 1, Wait(), deadline)
        self.task = asyncio.create_task(waiting)

    @property
    def waiter(self) -> Waiter:
        """What waits for the client."""
        (waiter,) = self.client.waiters
        return waiter

    async def try_in_vain(self, *numbers: int) -> None:
        """Let some of the operations find nothing, one after the other."""
        for number in numbers:
            await asyncio.sleep(0)
            operation = self.lanes.joined[number]
            operation.owner.wait_began(operation)
            await asyncio.sleep(0)

    def send(self, number: int) -> Wait:
        """Let one of the operations be in flight. Return its wait."""
        wait = wait_of(self.lanes.joined[number])
        assert wait.ticket is not None
        assert wait.ticket.try_acquire(wait, lambda: None)
        return wait

    def serve(self, number: int) -> Operation:
        """End one of the operations with a message."""
        operation = self.lanes.joined[number]
        operation.results = [b"m"]
        delivery = Delivery(1, lambda: None, self.put_back.append)
        delivery.add([operation])
        operation.owner.completed(operation)
        return operation


async def test_the_first_operation_that_ends_ends_the_wait_and_later_ones_go_back() -> None:
    world = World()
    await asyncio.sleep(0)
    served, late = world.serve(1), world.serve(0)
    assert await world.task is served
    assert (world.client.taken, world.put_back) == ([served], [late])
    world.several.end()
    assert set(world.lanes.cancelled) == set(world.lanes.joined)


async def test_a_message_that_comes_after_the_cancellation_goes_back() -> None:
    """In the same iteration of the event loop, when the coroutine has not noticed the cancellation yet."""
    world = World()
    await asyncio.sleep(0)
    world.task.cancel()
    served = world.serve(0)
    assert (world.client.taken, world.put_back) == ([], [served])
    with pytest.raises(asyncio.CancelledError):
        await world.task


async def test_an_operation_in_flight_outlives_the_time() -> None:
    world = World(timeout=0.001)
    await asyncio.sleep(0)
    in_flight = world.send(0)
    ended, _ = await asyncio.wait((world.task,), timeout=0.05)
    assert not ended
    assert in_flight.expired
    served = world.serve(0)
    assert await world.task is served


async def test_a_wait_without_an_operation_in_flight_ends_with_its_time() -> None:
    world = World(timeout=0.001)
    assert await world.task is None
    assert world.several.take_unblocking_effect() is None


@pytest.mark.parametrize("gets", [True, False])
async def test_a_client_does_not_wait_before_all_queues_were_tried(gets: bool) -> None:
    """A client that closes its side while the second queue is tried still gets what that has."""
    world = World(to_try=(b"a", b"b"))
    await world.try_in_vain(0)
    assert world.client.waits == []
    if gets:
        served = world.serve(1)
        assert await world.task is served
    else:
        await world.try_in_vain(1)
    assert world.client.waits == ([] if gets else [[b"a", b"b"]])
    world.task.cancel()


@pytest.mark.parametrize("error", [None, UnblockedError()])
async def test_a_client_that_is_unblocked_gets_nothing(error: UnblockedError | None) -> None:
    world, unblocking = World(to_try=(b"a", b"b")), Unblocking(error)
    await world.try_in_vain(0, 1)
    waiter = world.waiter
    waiter.unblock(unblocking)
    assert await world.task is None
    assert not unblocking.has_ended_wait  # the command may look again
    assert world.several.take_unblocking_effect() is error
    assert unblocking.has_ended_wait
    world.several.end()
    waiter.unblock(Unblocking())  # too late


async def test_an_operation_in_flight_outlives_the_unblocking() -> None:
    world, unblocking = World(to_try=(b"a", b"b")), Unblocking()
    await world.try_in_vain(0, 1)
    world.send(1)
    world.waiter.unblock(unblocking)
    await asyncio.sleep(0)
    assert not world.task.done()
    served = world.serve(1)
    assert await world.task is served
    assert not unblocking.has_ended_wait
