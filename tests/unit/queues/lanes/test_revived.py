"""The search for reservations that a failover has revived: which of them are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from pressure_server.errors import BackendAwayError, QueueDoesNotExistError
from pressure_server.queues.lanes.revived import Revived
from pressure_server.queues.operations.operation import Verb
from pressure_server.queues.shard import Shard

Told = tuple[bytes, bytes, int, bytes]

OWNER = b"=1"


class FakeShard:
    """A shard, its link and its reservations. `told` has what the backend knows: for each queue its pages."""

    database_number = 0
    name = "backend"
    prefix = b"p"

    def __init__(self, told: dict[bytes, list[list[Told]]]) -> None:
        self.link = self.reservations = self.role_turns = self
        self.ended_turns = 0
        self.loop = asyncio.get_running_loop()
        self.told = told
        self.on_their_way: list[tuple[bytes, int, int]] = []
        self.given_up: list[tuple[bytes, int, int, bytes]] = []
        self.errors: list[Exception] = []
        # Called while the backend tells.
        self.meanwhile: Callable[[], None] = lambda: None

    def when_back(self, follows: Callable[[], None]) -> None:
        self.loop.call_soon(follows)

    async def command(self, *words: bytes) -> list[bytes]:
        assert words == (b"HKEYS", b"p!calls:me")
        return [b"epoch", b"last", b"7", *(b"jp:" + name for name in self.told), b"jp:gone"]

    async def run_each(self, _verb: Verb, names: list[bytes], arguments: list[bytes]) -> list[Any]:
        await asyncio.sleep(0)
        if self.errors:
            return [self.errors.pop()]
        if names == [b"gone"]:
            return [QueueDoesNotExistError("gone")]
        self.meanwhile()
        pages, at = self.told[names[0]], int(arguments[0])
        return [[b"%d" % ((at + 1) % len(pages)), *map(list, pages[at])]]

    async def end_noted_turns(self) -> None:
        self.ended_turns += 1

    def undelivered(self) -> list[tuple[bytes, int, int]]:
        return self.on_their_way

    def give_up(self, name: bytes, jobs: list[tuple[int, int]], owner: bytes) -> None:
        self.given_up += [(name, *job, owner) for job in jobs]


def told(job: int, reserves: int = 1, last: int | None = None, owner: bytes = OWNER) -> Told:
    return b"%013x" % job, b"%013x" % (last or job), reserves, owner


async def search(shard: FakeShard, *jobs_of_clients: tuple[int, bytes, int, int]) -> list[Any]:
    """Search until all is done. Return what has been given up."""
    revived = Revived(cast(Shard, shard), b"p!calls:me", lambda: jobs_of_clients)
    revived.search()
    while revived.is_searching:  # noqa: ASYNC110 -- all that it waits for is a step of this loop
        await asyncio.sleep(0)
    return shard.given_up


async def test_what_no_client_has_is_given_up() -> None:
    shard = FakeShard({b"q": [[told(1), told(2, 5)], [told(3)]], b"r": [[told(4, owner=b"=2")]]})
    shard.on_their_way = [(b"q", 1, 1)]
    given_up = await search(shard, (0, b"q", 2, 5))
    assert given_up == [(b"q", 3, 1, OWNER), (b"r", 4, 1, b"=2")]
    assert shard.ended_turns == 1


async def test_the_same_id_elsewhere_or_reserved_at_another_time_is_another_reservation() -> None:
    shard = FakeShard({b"q": [[told(1, 2)]]})
    given_up = await search(shard, (0, b"r", 1, 2), (3, b"q", 1, 2), (0, b"q", 1, 3))
    assert given_up == [(b"q", 1, 2, OWNER)]


async def test_of_a_range_only_the_jobs_that_no_client_has_are_given_up() -> None:
    shard = FakeShard({b"q": [[told(1, last=4)]]})
    given_up = await search(shard, (0, b"q", 2, 1), (0, b"q", 4, 1))
    assert [job for _, job, _, _ in given_up] == [1, 3]


async def test_what_clients_get_while_the_backend_tells_stays() -> None:
    shard = FakeShard({b"q": [[told(1)], [told(2)]]})
    shard.meanwhile = lambda: shard.on_their_way.append((b"q", 1, 1))
    assert await search(shard) == [(b"q", 2, 1, OWNER)]


@pytest.mark.parametrize("lost", [1, 3])
async def test_the_search_begins_again_when_the_backend_is_lost(lost: int) -> None:
    shard = FakeShard({b"q": [[told(1)]]})
    shard.errors = [BackendAwayError("away")] * lost
    assert await search(shard) == [(b"q", 1, 1, OWNER)]
