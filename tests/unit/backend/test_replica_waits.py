"""WAIT for clients, in memory: rounds on one connection, and which clients each round answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, cast

import pytest

from pressure_server.backend import replica_waits
from pressure_server.backend.link import Timeouts
from pressure_server.backend.replica_waits import Deadline, ReplicaWaits
from pressure_server.backend.route import Route
from pressure_server.errors import BackendError, StoppingError
from tests.unit.conftest import InLoop


class _Connection:
    """A connection whose rounds a test answers: `asked` has the arguments of each WAIT."""

    def __init__(self) -> None:
        self.opened = 0
        self.is_closed = False
        self.asked: list[tuple[int, int]] = []
        self.counts: asyncio.Queue[int | Exception] = asyncio.Queue()
        self.writes = 0

    async def command(self, name: bytes, *words: bytes) -> Any:
        if name != b"WAIT":
            self.writes += 1
            return None
        self.asked.append((int(words[0]), int(words[1])))
        count = await self.counts.get()
        if isinstance(count, Exception):
            raise count
        return count

    def close(self) -> None:
        self.is_closed = True


class _Route:
    """A route whose address opens nothing."""

    @property
    def address(self) -> _Route:
        return self

    async def open(self, connection: _Connection) -> None:
        connection.opened += 1


@pytest.fixture
def connection() -> _Connection:
    return _Connection()


@pytest.fixture
def waits(in_loop: InLoop, connection: _Connection, monkeypatch: pytest.MonkeyPatch) -> ReplicaWaits:
    """Waits that use the connection."""

    async def greet(*_arguments: object) -> None: ...

    monkeypatch.setattr(replica_waits, "BackendConnection", lambda _timeout: connection)
    monkeypatch.setattr(replica_waits, "greet", greet)
    made: ReplicaWaits = in_loop(lambda: ReplicaWaits(cast(Route, _Route()), "name", b"key", Timeouts()))
    return made


async def _until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 # each pass lets the tasks of the test go on
        await asyncio.sleep(0)


async def test_a_round_answers_the_clients_whose_replicas_are_there(
    waits: ReplicaWaits, connection: _Connection
) -> None:
    one, two = (asyncio.create_task(waits.wait(number, Deadline(inf))) for number in (1, 2))
    await _until(lambda: connection.asked)
    connection.counts.put_nowait(1)
    assert await one == 1
    await _until(lambda: len(connection.asked) == 2)
    assert not two.done()
    connection.counts.put_nowait(2)
    assert await two == 2
    assert connection.asked == [(2, 100), (2, 100)]
    assert (connection.opened, connection.writes) == (1, 2)
    await _until(lambda: connection.is_closed)


async def test_a_client_that_comes_during_a_round_waits_for_the_next(
    waits: ReplicaWaits, connection: _Connection
) -> None:
    one = asyncio.create_task(waits.wait(1, Deadline(inf)))
    await _until(lambda: connection.asked)
    late = asyncio.create_task(waits.wait(1, Deadline(inf)))
    await asyncio.sleep(0)
    connection.counts.put_nowait(1)
    assert await one == 1
    await _until(lambda: len(connection.asked) == 2)
    assert not late.done()  # the write of the first round was before its own
    connection.counts.put_nowait(1)
    assert await late == 1


async def test_a_client_whose_time_is_up_gets_the_count(waits: ReplicaWaits, connection: _Connection) -> None:
    patient, hurried = (asyncio.create_task(waits.wait(3, Deadline(at))) for at in (inf, 0))
    await _until(lambda: connection.asked)
    assert connection.asked == [(3, 1)]  # milliseconds: 0 would be for ever
    connection.counts.put_nowait(1)
    assert await hurried == 1
    assert not patient.done()
    patient.cancel()


async def test_a_client_whose_deadline_becomes_earlier_gets_the_count_of_the_round(
    waits: ReplicaWaits, connection: _Connection
) -> None:
    deadline = Deadline(inf)
    task = asyncio.create_task(waits.wait(3, deadline))
    await _until(lambda: connection.asked)
    connection.counts.put_nowait(1)
    await _until(lambda: len(connection.asked) == 2)
    assert not task.done()
    deadline.at = 0.0
    connection.counts.put_nowait(2)
    assert await task == 2


async def test_clients_that_have_left_end_the_rounds(waits: ReplicaWaits, connection: _Connection) -> None:
    task = asyncio.create_task(waits.wait(1, Deadline(inf)))
    await _until(lambda: connection.asked)
    task.cancel()
    await asyncio.sleep(0)
    connection.counts.put_nowait(0)
    await _until(lambda: connection.is_closed)
    assert len(connection.asked) == 1


async def test_an_error_ends_all_waits_and_the_next_one_opens_a_connection(
    waits: ReplicaWaits, connection: _Connection
) -> None:
    tasks = [asyncio.create_task(waits.wait(1, Deadline(inf))) for _ in range(2)]
    await _until(lambda: connection.asked)
    connection.counts.put_nowait(BackendError("away"))
    for task in tasks:
        with pytest.raises(BackendError, match="away"):
            await task
    again = asyncio.create_task(waits.wait(0, Deadline(inf)))
    connection.counts.put_nowait(0)
    assert await again == 0
    assert connection.opened == 2


async def test_the_end_of_the_server_ends_all_waits(waits: ReplicaWaits, connection: _Connection) -> None:
    task = asyncio.create_task(waits.wait(1, Deadline(inf)))
    await _until(lambda: connection.asked)
    waits.end()
    with pytest.raises(StoppingError):
        await task
    with pytest.raises(StoppingError):
        await waits.wait(0, Deadline(inf))
    await _until(lambda: connection.is_closed)
