"""The memory account, in memory: which clients are throttled, resumed or evicted."""

import asyncio
import logging
from collections.abc import Callable
from operator import itemgetter
from typing import cast
from unittest import mock

import pytest

from pressure_server.errors import PressureError
from pressure_server.net.connection import Connection
from pressure_server.net.memory import MemoryAccount

MB = 1 << 20


class _Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self._now = 0.0
        self.timers: list[tuple[float, mock.Mock]] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        handle = mock.Mock(callback=callback)
        timer = self._now + delay, handle
        handle.cancel.side_effect = lambda: self.timers.remove(timer)
        self.timers.append(timer)
        return handle

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while due := sorted((timer for timer in self.timers if timer[0] <= end), key=itemgetter(0)):
            self.timers.remove(due[0])
            self._now, handle = due[0]
            handle.callback()
        self._now = end


class _Connection(Connection):
    """A connection of which the account sees what the test sets."""

    can_proceed = True
    is_receiving = True
    is_throttled = False

    def __init__(self) -> None:
        self.eviction: PressureError | None = None

    def throttle(self) -> None:
        self.is_throttled = True

    def resume(self) -> None:
        self.is_throttled = False

    def evict(self, why: PressureError) -> None:
        self.eviction = why


def connections(memory: MemoryAccount, *sizes: int) -> list[_Connection]:
    """Return connections that hold so many bytes, in this order."""
    made = [_Connection() for _ in sizes]
    for connection, size in zip(made, sizes, strict=True):
        memory.update(connection, size)
    return made


def throttled(connections: list[_Connection]) -> list[int]:
    return [number for number, connection in enumerate(connections) if connection.is_throttled]


def evicted(connections: list[_Connection]) -> list[int]:
    return [number for number, connection in enumerate(connections) if connection.eviction]


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def memory(clock: _Clock) -> MemoryAccount:
    """An account of 100 MiB, which throttles above 75 MiB; the largest request has 10 MiB."""
    return MemoryAccount(100 * MB, 10 * MB, cast(asyncio.AbstractEventLoop, clock))


def test_no_client_is_throttled_below_the_limit(memory: MemoryAccount) -> None:
    clients = connections(memory, *[MB] * 75)
    assert memory.held == 75 * MB
    assert throttled(clients) == []


def test_throttled_clients_continue_in_order_when_there_is_room(memory: MemoryAccount, clock: _Clock) -> None:
    clients = connections(memory, *[10 * MB - 1] * 8)
    assert throttled(clients) == list(range(8))
    clock.advance(0.1)
    assert throttled(clients) == list(range(2, 8))
    memory.update(clients[1], 0)
    clock.advance(0.1)
    assert throttled(clients) == []


def test_a_client_without_requests_gets_no_turn(memory: MemoryAccount, clock: _Clock) -> None:
    clients = connections(memory, *[10 * MB] * 9)
    clients[0].can_proceed = False
    clock.advance(0.1)
    assert throttled(clients) == [0, *range(2, 9)]
    clients[1].can_proceed = False
    clock.advance(0.1)
    assert throttled(clients) == [0, 1, *range(3, 9)]


def test_a_client_that_does_not_use_its_turn_is_evicted(memory: MemoryAccount, clock: _Clock) -> None:
    clients = connections(memory, *[8 * MB] * 9)
    memory.update(clients[8], 16 * MB)
    clock.advance(6)
    memory.update(clients[0], 9 * MB)
    clock.advance(6)
    assert evicted(clients) == [1]
    assert memory.evicted == 1
    assert memory.held == 73 * MB


def test_a_client_that_does_not_finish_a_small_request_in_its_turn_is_evicted(
    memory: MemoryAccount, clock: _Clock
) -> None:
    clients = connections(memory, *[100 << 10] * 800)
    clock.advance(0.1)
    having_turns = set(range(800)) - set(throttled(clients))
    clock.advance(10)
    assert evicted(clients) == sorted(having_turns)


def test_a_client_that_has_nothing_to_do_passes_its_turn_on(memory: MemoryAccount, clock: _Clock) -> None:
    """As workers that hold open reads or reserved jobs: the others need not wait for ten seconds each."""
    clients = connections(memory, *[100 << 10] * 800)
    for client in clients:
        client.is_receiving = False
    with_turns: set[int] = set()
    for _ in range(800):
        clock.advance(0.05)
        with_turns |= set(range(800)) - set(throttled(clients))
    assert with_turns == set(range(800))
    assert evicted(clients) == []


def test_above_the_limit_the_client_that_holds_most_is_evicted(memory: MemoryAccount) -> None:
    clients = connections(memory, *(number * MB for number in range(10, 15)))
    memory.update(clients[1], 60 * MB)
    assert evicted(clients) == [1]
    assert str(clients[1].eviction).startswith("closing this connection: the limit of 104857600 bytes")
    assert memory.held == 49 * MB
    memory.update(clients[1], 0)  # as when its connection has ended
    assert memory.held == 49 * MB


def test_throttled_clients_do_not_all_continue_at_once(memory: MemoryAccount, clock: _Clock) -> None:
    """One read of each resumed client must fit below the threshold."""
    large, *small = connections(memory, 70 * MB, *[60 << 10] * 100)
    assert len(throttled(small)) == 100
    memory.update(large, 65 * MB)
    clock.advance(0.06)
    assert 60 < len(throttled(small)) < 100
    clock.advance(1)
    assert throttled(small) == []


def test_a_throttled_client_that_holds_nothing_any_longer_goes_on(memory: MemoryAccount) -> None:
    clients = connections(memory, *[10 * MB] * 8)
    assert memory.throttled == 8
    memory.update(clients[3], 0)
    assert throttled(clients) == [0, 1, 2, 4, 5, 6, 7]
    assert (memory.throttled, memory.held) == (7, 70 * MB)


def test_the_next_in_line_has_its_turn_when_one_ends(memory: MemoryAccount, clock: _Clock) -> None:
    """At once, and not with the next regular check."""
    clients = connections(memory, *[9 * MB] * 9)
    clock.advance(0.05)
    assert throttled(clients) == list(range(1, 9))
    memory.update(clients[0], 0)
    memory.update(clients[8], 18 * MB)  # still above the threshold
    clock.advance(0)
    assert throttled(clients) == list(range(2, 9))


def test_checks_are_made_while_clients_are_throttled_and_one_at_a_time(
    memory: MemoryAccount, clock: _Clock
) -> None:
    clients = connections(memory, *[9 * MB] * 9)
    assert len(clock.timers) == 1
    clock.advance(0.05)
    memory.update(clients[0], 0)  # its turn ends: a check comes at once, in place of the next one
    assert [when for when, _ in clock.timers] == [clock.time()]
    for client in clients:
        memory.update(client, 0)
    clock.advance(1)
    assert clock.timers == []


@pytest.mark.parametrize(("size", "is_evicted"), [(100 * MB, False), (100 * MB + 1, True)])
def test_exactly_at_the_limit_nobody_is_evicted(memory: MemoryAccount, size: int, is_evicted: bool) -> None:
    (client,) = connections(memory, size)
    assert (client.eviction is not None) is is_evicted
    assert client.is_throttled is not is_evicted
    assert memory.held == (0 if is_evicted else size)


def test_as_many_are_evicted_as_it_takes_and_the_largest_first(memory: MemoryAccount) -> None:
    clients = connections(memory, 40 * MB, 20 * MB, 30 * MB)
    memory.update(clients[1], 50 * MB)
    assert evicted(clients) == [1]
    memory.update(clients[2], 61 * MB)
    assert evicted(clients) == [1, 2]
    assert memory.held == 40 * MB
    more = connections(memory, 30 * MB, 30 * MB)
    memory.update(more[0], 60 * MB)
    assert (evicted(clients), evicted(more)) == ([1, 2], [0])
    memory.update(more[1], 60 * MB)
    assert evicted(more) == [0]
    (last,) = connections(memory, 61 * MB)
    assert evicted([*clients, *more, last]) == [1, 2, 3, 5]
    assert memory.held == 100 * MB  # exactly the limit


@pytest.mark.parametrize(("size", "left"), [(5 * MB, 5), (5 * MB + 1, 6)])
def test_exactly_at_the_threshold_throttled_clients_go_on(
    memory: MemoryAccount, clock: _Clock, size: int, left: int
) -> None:
    clients = connections(memory, *[10 * MB] * 8)
    clock.advance(0.05)
    assert memory.throttled == 6
    memory.update(clients[0], size)
    clock.advance(0.05)
    assert memory.throttled == left


def test_clients_that_hold_less_than_before_are_not_throttled(memory: MemoryAccount, clock: _Clock) -> None:
    clients = connections(memory, *[8 * MB] * 10)
    clock.advance(0.05)
    assert throttled(clients) == list(range(2, 10))
    memory.update(clients[0], 7 * MB)
    assert throttled(clients) == list(range(2, 10))


def test_the_log_says_at_most_once_in_ten_seconds_what_was_done(
    memory: MemoryAccount, clock: _Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    throttling = "buffers hold 80 of 100 MiB (--max-buffered-bytes): throttling clients with more than 4 KiB"
    (first,) = connections(memory, 80 * MB)
    assert caplog.messages == [throttling]
    for seconds, times in ((5, 1), (5, 2)):
        memory.update(first, 0)
        clock.advance(seconds)
        memory.update(first, 80 * MB)
        assert caplog.messages == [throttling] * times
    memory.update(first, 200 * MB)
    memory.update(first, 120 * MB)
    dropped = "disconnected a client whose buffers held 200 of 100 MiB (--max-buffered-bytes)"
    assert caplog.messages[2:] == [dropped]
