"""The memory account, in memory: which clients are throttled, go on, or are evicted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from pressure_server.app import memory_limit
from pressure_server.errors import BufferLimitError
from pressure_server.net.memory import MemoryAccount

MB = 1 << 20


class _Call:
    def __init__(self, when: float, follows: Callable[[], object]) -> None:
        self.when = when
        self.follows: Callable[[], object] | None = follows

    def cancel(self) -> None:
        self.follows = None


class _Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self._now = 0.0
        self._calls: list[_Call] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        self._calls.append(_Call(self._now + delay, callback))
        return cast(asyncio.TimerHandle, self._calls[-1])

    def pass_(self, seconds: float) -> None:
        until = self._now + seconds
        while due := sorted((c for c in self._calls if c.when <= until), key=lambda c: c.when):
            self._calls.remove(due[0])
            self._now = max(self._now, due[0].when)
            if due[0].follows is not None:
                due[0].follows()
        self._now = until


class _Holder:
    def __init__(self) -> None:
        self.can_proceed = True
        self.is_deferred = False
        self.why: BufferLimitError | None = None

    def throttle(self) -> None:
        self.is_deferred = True

    def resume(self) -> None:
        self.is_deferred = False

    def evict(self, why: BufferLimitError) -> None:
        self.why = why


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def memory(clock: _Clock) -> MemoryAccount:
    """An account of 100 MiB, which throttles above 75 MiB; the largest request has 10 MiB."""
    return MemoryAccount(100 * MB, 10 * MB, clock)


def test_no_client_is_throttled_below_the_limit(memory: MemoryAccount) -> None:
    holders = [_Holder() for _ in range(75)]
    for holder in holders:
        memory.update(holder, MB)
    assert memory.held == 75 * MB
    assert not any(holder.is_deferred for holder in holders)


def test_throttled_clients_continue_in_order_when_there_is_room(memory: MemoryAccount, clock: _Clock) -> None:
    holders = [_Holder() for _ in range(8)]
    for holder in holders:
        memory.update(holder, 10 * MB - 1)
    assert all(holder.is_deferred for holder in holders)
    clock.pass_(0.1)
    assert [holder.is_deferred for holder in holders] == [False] * 2 + [True] * 6
    memory.update(holders[1], 0)
    clock.pass_(0.1)
    assert not any(holder.is_deferred for holder in holders)


def test_a_client_without_requests_gets_no_turn(memory: MemoryAccount, clock: _Clock) -> None:
    holders = [_Holder() for _ in range(9)]
    holders[0].can_proceed = False
    for holder in holders:
        memory.update(holder, 10 * MB)
    clock.pass_(0.1)
    assert [holder.is_deferred for holder in holders] == [True, False] + [True] * 7
    holders[1].can_proceed = False
    clock.pass_(0.1)
    assert [holder.is_deferred for holder in holders] == [True, True, False] + [True] * 6


def test_a_client_that_does_not_use_its_turn_is_evicted(memory: MemoryAccount, clock: _Clock) -> None:
    holders = [_Holder() for _ in range(9)]
    for holder in holders:
        memory.update(holder, 10 * MB - 2 * MB)
    memory.update(holders[8], 16 * MB)
    clock.pass_(6)
    memory.update(holders[0], 9 * MB)
    clock.pass_(6)
    assert [holder.why is not None for holder in holders] == [False, True] + [False] * 7
    assert memory.evicted == 1
    assert memory.held == 73 * MB


def test_above_the_limit_the_client_that_holds_most_is_evicted(memory: MemoryAccount) -> None:
    holders = [_Holder() for _ in range(5)]
    for number, holder in enumerate(holders):
        memory.update(holder, (number + 10) * MB)
    memory.update(holders[1], 60 * MB)
    assert [holder.why is not None for holder in holders] == [False, True, False, False, False]
    assert str(holders[1].why).startswith("closing this connection: the limit of 104857600 bytes")
    assert memory.held == 49 * MB
    memory.update(holders[1], 0)  # as when its connection has ended
    assert memory.held == 49 * MB


def test_throttled_clients_do_not_all_continue_at_once(memory: MemoryAccount, clock: _Clock) -> None:
    """There must be room for what each client may bring in one read."""
    large, small = _Holder(), [_Holder() for _ in range(100)]
    memory.update(large, 70 * MB)
    for holder in small:
        memory.update(holder, 60 << 10)
    assert sum(holder.is_deferred for holder in small) == 100
    memory.update(large, 65 * MB)
    clock.pass_(0.06)
    assert 60 < sum(holder.is_deferred for holder in small) < 100
    clock.pass_(1)
    assert sum(holder.is_deferred for holder in small) == 0


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
