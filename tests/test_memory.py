"""The memory account: throttling, resumption and eviction of clients; and a container's memory limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import cast

import pytest

from pressure_server.app import memory_limit
from pressure_server.errors import BufferLimitError
from pressure_server.net.memory import MemoryAccount

MB = 1 << 20


class _Timer:
    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback = callback

    def cancel(self) -> None:
        self.callback = lambda: None


class _Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[_Timer] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        self._timers.append(_Timer(self._now + delay, callback))
        return cast(asyncio.TimerHandle, self._timers[-1])

    def advance(self, seconds: float) -> None:
        until = self._now + seconds
        while due := [timer for timer in self._timers if timer.when <= until]:
            timer = min(due, key=attrgetter("when"))
            self._timers.remove(timer)
            self._now = max(self._now, timer.when)
            timer.callback()
        self._now = until


class _Holder:
    """A client that holds memory."""

    def __init__(self) -> None:
        self.can_proceed = True
        self.is_throttled = False
        self.eviction: BufferLimitError | None = None

    def throttle(self) -> None:
        self.is_throttled = True

    def resume(self) -> None:
        self.is_throttled = False

    def evict(self, why: BufferLimitError) -> None:
        self.eviction = why


def holders_of(memory: MemoryAccount, sizes: Iterable[int]) -> list[_Holder]:
    """Return clients that hold memory of these sizes, in bytes."""
    holders = []
    for size in sizes:
        holders.append(_Holder())
        memory.update(holders[-1], size)
    return holders


def throttled(holders: list[_Holder]) -> list[bool]:
    return [holder.is_throttled for holder in holders]


def evicted(holders: list[_Holder]) -> list[bool]:
    return [holder.eviction is not None for holder in holders]


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def memory(clock: _Clock) -> MemoryAccount:
    """An account with a limit of 100 MiB, which throttles above 75 MiB. A request has at most 10 MiB."""
    return MemoryAccount(100 * MB, 10 * MB, clock)


def test_no_client_is_throttled_below_the_limit(memory: MemoryAccount) -> None:
    holders = holders_of(memory, [MB] * 75)
    assert memory.held == 75 * MB
    assert not any(throttled(holders))


def test_throttled_clients_continue_in_order_when_there_is_room(memory: MemoryAccount, clock: _Clock) -> None:
    holders = holders_of(memory, [10 * MB - 1] * 8)
    assert all(throttled(holders))
    clock.advance(0.1)
    assert throttled(holders) == [False] * 2 + [True] * 6
    memory.update(holders[1], 0)
    clock.advance(0.1)
    assert not any(throttled(holders))


def test_a_client_without_requests_gets_no_turn(memory: MemoryAccount, clock: _Clock) -> None:
    holders = [_Holder() for _ in range(9)]
    holders[0].can_proceed = False
    for holder in holders:
        memory.update(holder, 10 * MB)
    clock.advance(0.1)
    assert throttled(holders) == [True, False] + [True] * 7
    holders[1].can_proceed = False
    clock.advance(0.1)
    assert throttled(holders) == [True, True, False] + [True] * 6


def test_a_client_that_does_not_use_its_turn_is_evicted(memory: MemoryAccount, clock: _Clock) -> None:
    holders = holders_of(memory, [8 * MB] * 9)
    memory.update(holders[8], 16 * MB)
    clock.advance(6)
    memory.update(holders[0], 9 * MB)
    clock.advance(6)
    assert evicted(holders) == [False, True] + [False] * 7
    assert memory.evicted == 1
    assert memory.held == 73 * MB


def test_above_the_limit_the_client_that_holds_most_is_evicted(memory: MemoryAccount) -> None:
    holders = holders_of(memory, [number * MB for number in range(10, 15)])
    memory.update(holders[1], 60 * MB)
    assert evicted(holders) == [False, True, False, False, False]
    assert str(holders[1].eviction).startswith("closing this connection: the limit of 104857600 bytes")
    assert memory.held == 49 * MB
    memory.update(holders[1], 0)  # the evicted client's connection ends
    assert memory.held == 49 * MB


def test_throttled_clients_do_not_all_continue_at_once(memory: MemoryAccount, clock: _Clock) -> None:
    """The account leaves room for one read of each resumed client."""
    large, *small = holders_of(memory, [70 * MB] + [60 << 10] * 100)
    assert sum(throttled(small)) == 100
    memory.update(large, 65 * MB)
    clock.advance(0.06)
    assert 60 < sum(throttled(small)) < 100
    clock.advance(1)
    assert sum(throttled(small)) == 0


@pytest.mark.parametrize(
    ("files", "own", "found"),
    [
        ({}, "", None),
        ({"memory.max": "max\n"}, "0::/\n", None),
        ({"memory.max": "1048576\n"}, "0::/\n", 1048576),
        ({"a/memory.max": "2097152\n", "a/b/memory.max": "max"}, "0::/a/b\n", 2097152),
        ({"memory/memory.limit_in_bytes": "3145728\n"}, "7:memory:/\n", 3145728),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "", None),
    ],
)
def test_a_container_s_memory_limit_is_found(
    tmp_path: Path, files: dict[str, str], own: str, found: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    (tmp_path / "own").write_text(own)
    whole = memory_limit.memory_limit(tmp_path / "none", tmp_path / "none")
    assert whole > 64 * MB
    assert memory_limit.memory_limit(tmp_path / "groups", tmp_path / "own") == (found or whole)
