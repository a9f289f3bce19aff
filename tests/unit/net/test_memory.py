"""The memory account, in memory: which clients are throttled, resumed or evicted."""

import asyncio
import logging
from typing import cast

import pytest

from pressure_server.errors import PressureError
from pressure_server.net.connection import Connection
from pressure_server.net.memory import MemoryAccount
from tests.unit.clock import Clock

MB = 1 << 20


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
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> MemoryAccount:
    """An account of 100 MiB, which throttles above 75 MiB; the largest request has 10 MiB."""
    return MemoryAccount(100 * MB, 10 * MB, cast(asyncio.AbstractEventLoop, clock))


def test_throttled_clients_continue_in_order_when_there_is_room(memory: MemoryAccount, clock: Clock) -> None:
    clients = connections(memory, *[10 * MB - 1] * 7)
    assert throttled(clients) == []
    clients += connections(memory, 10 * MB - 1)
    assert throttled(clients) == list(range(8))
    clock.run_for(0.1)
    assert throttled(clients) == list(range(2, 8))
    memory.update(clients[3], 0)  # it holds nothing any longer
    assert throttled(clients) == [2, *range(4, 8)]
    memory.update(clients[1], 0)
    clock.run_for(0.1)
    assert throttled(clients) == []
    assert (memory.throttled, memory.held) == (0, 6 * (10 * MB - 1))


def test_a_client_without_requests_gets_no_turn(memory: MemoryAccount, clock: Clock) -> None:
    clients = connections(memory, *[10 * MB] * 9)
    clients[0].can_proceed = False
    clock.run_for(0.1)
    assert throttled(clients) == [0, *range(2, 9)]
    clients[1].can_proceed = False
    clock.run_for(0.1)
    assert throttled(clients) == [0, 1, *range(3, 9)]


def test_a_client_that_does_not_use_its_turn_is_evicted(memory: MemoryAccount, clock: Clock) -> None:
    clients = connections(memory, *[8 * MB] * 9)
    memory.update(clients[8], 16 * MB)
    clock.run_for(6)
    memory.update(clients[0], 9 * MB)
    clock.run_for(6)
    assert evicted(clients) == [1]
    assert memory.evicted == 1
    assert memory.held == 73 * MB


@pytest.mark.parametrize("is_receiving", [True, False])
def test_a_client_that_does_not_finish_a_small_request_in_its_turn_is_evicted(
    memory: MemoryAccount, clock: Clock, is_receiving: bool
) -> None:
    """One that has nothing to do passes its turn on, such as a worker that holds reserved jobs."""
    clients = connections(memory, *[100 << 10] * 800)
    for client in clients:
        client.is_receiving = is_receiving
    clock.run_for(0.1)
    with_turns = set(range(800)) - set(throttled(clients))
    if is_receiving:
        clock.run_for(10)
        assert evicted(clients) == sorted(with_turns)
        return
    for _ in range(800):
        clock.run_for(0.05)
        with_turns |= set(range(800)) - set(throttled(clients))
    assert with_turns == set(range(800))
    assert evicted(clients) == []


def test_throttled_clients_do_not_all_continue_at_once(memory: MemoryAccount, clock: Clock) -> None:
    """One read of each resumed client must fit below the threshold."""
    large, *small = connections(memory, 70 * MB, *[60 << 10] * 100)
    assert len(throttled(small)) == 100
    memory.update(large, 65 * MB)
    clock.run_for(0.06)
    assert 60 < len(throttled(small)) < 100
    clock.run_for(1)
    assert throttled(small) == []


def test_the_next_in_line_has_its_turn_when_one_ends(memory: MemoryAccount, clock: Clock) -> None:
    """At once, and not with the next regular check."""
    clients = connections(memory, *[9 * MB] * 9)
    clock.run_for(0.05)
    assert throttled(clients) == list(range(1, 9))
    memory.update(clients[0], 0)
    memory.update(clients[8], 18 * MB)  # still above the threshold
    clock.run_for(0)
    assert throttled(clients) == list(range(2, 9))


def test_checks_are_made_while_clients_are_throttled_and_one_at_a_time(
    memory: MemoryAccount, clock: Clock
) -> None:
    clients = connections(memory, *[9 * MB] * 9)
    assert len(clock.timers) == 1
    clock.run_for(0.05)
    memory.update(clients[0], 0)  # its turn ends: a check comes at once, in place of the next one
    assert clock.timers == [clock.time()]
    for client in clients:
        memory.update(client, 0)
    clock.run_for(1)
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
    assert str(clients[1].eviction).startswith("closing this connection: the limit of 104857600 bytes")
    memory.update(clients[1], 0)  # as when its connection has ended
    assert memory.held == 70 * MB
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
    memory: MemoryAccount, clock: Clock, size: int, left: int
) -> None:
    clients = connections(memory, *[10 * MB] * 8)
    clock.run_for(0.05)
    assert memory.throttled == 6
    memory.update(clients[0], size)
    clock.run_for(0.05)
    assert memory.throttled == left


def test_clients_that_hold_less_than_before_are_not_throttled(memory: MemoryAccount, clock: Clock) -> None:
    clients = connections(memory, *[8 * MB] * 10)
    clock.run_for(0.05)
    assert throttled(clients) == list(range(2, 10))
    memory.update(clients[0], 7 * MB)
    assert throttled(clients) == list(range(2, 10))


def test_the_log_says_at_most_once_in_ten_seconds_what_was_done(
    memory: MemoryAccount, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    throttling = "buffers hold 80 of 100 MiB (--max-buffered-bytes): throttling clients with more than 4 KiB"
    (first,) = connections(memory, 80 * MB)
    assert caplog.messages == [throttling]
    for seconds, times in ((5, 1), (5, 2)):
        memory.update(first, 0)
        clock.run_for(seconds)
        memory.update(first, 80 * MB)
        assert caplog.messages == [throttling] * times
    memory.update(first, 200 * MB)
    memory.update(first, 120 * MB)
    dropped = "disconnected a client whose buffers held 200 of 100 MiB (--max-buffered-bytes)"
    assert caplog.messages[2:] == [dropped]
