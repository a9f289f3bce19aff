"""Waiting operations of a queue of jobs, in memory: what is tried when a job is due as their time is up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.batch import Due, Progress
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import UNIQUE, WAITS
from pressure_server.queues.operations.owners import NotifyOnSuccess
from pressure_server.queues.operations.wait import Wait, WaitCondition, WaiterCount
from pressure_server.queues.policy import Policy
from pressure_server.queues.waiting.waiting_operations import WaitingOperations


class Clock:
    """The clock of the driver, and its timers."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[list[Any]] = []

    def call_at(self, when: float, follows: Callable[..., None], *arguments: Any) -> Any:
        entry = [when, follows, arguments]
        self._timers.append(entry)

        def cancel() -> None:
            if entry in self._timers:
                self._timers.remove(entry)

        return MagicMock(cancel=cancel)

    def run_to(self, time: float) -> None:
        """Let time pass, and call what is due in order."""
        while self._timers and min(entry[0] for entry in self._timers) <= time:
            entry = min(self._timers, key=lambda one: cast(float, one[0]))
            self._timers.remove(entry)
            self.now = max(self.now, entry[0])
            entry[1](*entry[2])
        self.now = time


class World:
    """The waiting operations of one lane whose blocks are written down."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.host = MagicMock(is_in_flight=False)
        self.host.name = b"q"
        driver = MagicMock(is_stopping=False, waiters=WaiterCount(100), policy=Policy(put_timeout=None))
        driver.time = lambda: self.clock.now
        driver.call_at = self.clock.call_at
        driver.call_later = lambda seconds, follows: self.clock.call_at(self.clock.now + seconds, follows)
        self.waiting = WaitingOperations(self.host, driver)

    def wait(self, timeout: float, due: Due) -> Operation:
        """Begin a wait by a try in vain."""
        operation = Operation(verbs.GET, b"q", [], 1, NotifyOnSuccess(), wait=Wait(timeout), options=WAITS)
        self.replied([operation], due)
        return operation

    def replied(self, in_vain: list[Operation], due: Due) -> None:
        """Take the reply to a block that has tried these operations."""
        for operation in in_vain:
            assert operation.wait is not None
            operation.wait.condition, operation.wait.found_queue = WaitCondition.MESSAGE, True
        progress = Progress([])
        progress.must_wait, progress.due = in_vain, due
        self.waiting.requeue(progress)
        for operation in progress.ended:
            self.host.end(operation)
        self.waiting.watch(progress)


def test_a_wait_goes_on_until_a_job_that_is_due_within_milliseconds() -> None:
    world = World()
    operation = world.wait(1.0, Due(1.005, b"note"))
    world.clock.run_to(101.004)
    world.host.end.assert_not_called()
    world.clock.run_to(101.0065)
    world.host.wake_up.assert_called_once()
    (tried,) = world.waiting.next_operations([], woken=True)
    world.clock.run_to(101.02)
    world.host.end.assert_not_called()  # it is in flight
    assert tried is operation
    world.replied([tried], Due())
    world.host.end.assert_called_once_with(operation)


def test_a_wait_ends_in_time_if_no_job_is_due_soon() -> None:
    world = World()
    operation = world.wait(1.0, Due(1.02, b"note"))
    world.clock.run_to(101.0)
    world.host.end.assert_called_once_with(operation)


def test_a_wait_is_extended_only_once() -> None:
    world = World()
    operation = world.wait(1.0, Due(1.005, b"note"))
    world.clock.run_to(101.004)
    world.replied([], Due(0.005, b"note"))
    world.clock.run_to(101.0075)
    world.host.submit_first.assert_called_once_with(operation)


def test_a_job_that_another_command_has_made_ready_is_offered_to_those_in_line() -> None:
    """The reply to an INFO says that nothing is due any longer: the job is ready."""
    world = World()
    world.wait(1.0, Due(0.5, b"note"))
    world.clock.run_to(100.499)
    assert world.waiting.next_operations([], woken=False) == []
    world.replied([], Due())
    world.clock.run_to(100.4995)
    world.host.wake_up.assert_called_once()
    assert len(world.waiting.next_operations([], woken=True)) == 1


def test_a_job_that_was_taken_elsewhere_wakes_nobody() -> None:
    world = World()
    world.wait(1.0, Due(0.5, b"note"))
    world.clock.run_to(100.2)
    world.waiting.next_operations([], woken=False)
    world.replied([], Due(None, b""))
    world.clock.run_to(100.9)
    world.host.wake_up.assert_not_called()


def _waiting_put(world: World, *messages: bytes) -> Operation:
    put = Operation(verbs.PUT, b"q", list(messages), len(messages), NotifyOnSuccess(), options=UNIQUE)
    assert world.waiting.next_operations([put], woken=False) in ([], [put])
    return put


@pytest.mark.parametrize("leaves", ["cancelled", "expired"])
def test_a_put_of_a_queued_message_is_tried_when_the_put_before_it_leaves(leaves: str) -> None:
    world = World()
    first = _waiting_put(world, b"new")
    first.wait = Wait(1.0)
    first.wait.condition = WaitCondition.ROOM
    progress = Progress([])
    progress.must_wait = [first]
    world.waiting.requeue(progress)
    second = _waiting_put(world, b"queued")
    world.host.wake_up.assert_not_called()
    if leaves == "cancelled":
        first.cancelled = True
        world.waiting.remove(first)
    else:
        world.clock.run_to(101.0)
    world.host.wake_up.assert_called_once()
    assert world.waiting.next_operations([], woken=True) == [second]
