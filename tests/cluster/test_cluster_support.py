"""The support for tests on a cluster and with Sentinel: nodes start, slots move, masters change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from tests.support.cluster import Cluster
from tests.support.network import Network
from tests.support.nodes import Engine, Login
from tests.support.sentinel import SentinelSet

pytestmark = pytest.mark.clients
each_engine = pytest.mark.parametrize("engine", Engine)
# Seconds: twice of what a start takes here is two to four.
START = 8.0


@pytest.fixture(scope="module", params=Engine)
def six(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters with a replica each."""
    folder = tmp_path_factory.mktemp("cluster")
    with (
        Network() as network,
        Cluster(folder, replicas=1, engine=request.param, network=network).started() as cluster,
    ):
        yield cluster


@pytest.mark.parametrize("replicas", [0, 1])
@each_engine
def test_a_cluster_starts_soon_and_ends_after_a_failure(
    tmp_path: Path, engine: Engine, replicas: int
) -> None:
    cluster = Cluster(tmp_path, replicas=replicas, engine=engine)

    async def play() -> None:
        begin = time.monotonic()
        async with cluster:
            assert time.monotonic() - begin < START
            for node in cluster.nodes[:3]:
                assert len(await cluster.replicas_of(node)) == replicas
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(play())
    assert not any(node.is_running for node in cluster.nodes)


def test_a_slot_moves_in_steps(six: Cluster) -> None:
    async def play() -> None:
        source = await six.master_of("{steps}")
        target = next(node for node in six.nodes[:3] if node is not source)
        for key in ("{steps}1", "{steps}2"):
            await source.command("SET", key, key)
        move = await six.legacy_move("{steps}", target)
        await move.begin()
        await move.migrate("{steps}1")
        assert await move.keys_left() == [b"{steps}2"]
        with pytest.raises(redis.exceptions.AskError, match=rf" {target.host}:{target.port}$"):
            await source.command("GET", "{steps}1")
        assert await source.command("GET", "{steps}2") == b"{steps}2"
        await move.migrate()
        await move.finish()
        assert await six.master_of("{steps}") is target
        assert await target.command("GET", "{steps}1") == b"{steps}1"

    asyncio.run(play())


def test_a_slot_moves_at_once(six: Cluster) -> None:
    async def play() -> None:
        source = await six.master_of("a")
        target = next(node for node in six.nodes[:3] if node is not source)
        await source.command("SET", "a", "1")
        await six.move("a", target)
        assert await six.master_of("a") is target
        if six.engine is Engine.VALKEY:
            await six.move_atomically("a", source)
        else:
            await six.move("a", source)
        assert await six.master_of("a") is source
        assert await source.command("GET", "a") == b"1"

    asyncio.run(play())


def test_a_replica_takes_over_when_it_is_told_to(six: Cluster) -> None:
    async def play() -> None:
        old = await six.master_of("a")
        (replica,) = await six.replicas_of(old)
        await six.fail_over(replica)
        assert await six.master_of("a") is replica
        await six.fail_over(old)
        assert await six.master_of("a") is old

    asyncio.run(play())


@pytest.mark.parametrize("how", ["killed", "paused", "cut off"])
def test_a_replica_takes_over_from_a_master_that_is_away(six: Cluster, how: str) -> None:
    async def play() -> None:
        old = await six.master_of("a")
        if how == "killed":
            old.kill()
            new = await six.wait_for_new_master("a", old)
            await old.start()
        elif how == "paused":
            old.pause()
            new = await six.wait_for_new_master("a", old)
            old.resume()
        else:
            with six.cut(old, six.nodes):
                # It serves until the node timeout has passed, and claims its slots until it is back.
                assert await old.command("SET", "a", "lost")
                new = await six.wait_for_new_master("a", old)
                assert key_slot(b"a") in await six.slots_of(old)
        await six.wait_until_agreed()
        now = await six.master_of("a")
        # Valkey may elect the old master again as soon as it is back.
        assert now is new or (how == "cut off" and six.engine is Engine.VALKEY)
        await six.wait_until_connected(old if now is new else new)

    asyncio.run(play())


def test_sentinel_replaces_a_killed_master(tmp_path: Path) -> None:
    async def play() -> None:
        logins = Login("one", "ada"), Login("two")
        begin = time.monotonic()
        redundant = SentinelSet(tmp_path, login=logins[0], sentinel_login=logins[1])
        async with redundant:
            assert time.monotonic() - begin < START
            old = await redundant.master()
            await old.command("SET", "a", "1")
            assert await old.command("WAIT", 1, 1000) == 1
            old.kill()
            new = await redundant.wait_for_new_master(old)
            assert await new.command("GET", "a") == b"1"
            await old.start()
            await redundant.wait_until_settled()
            assert await redundant.master() is new

    asyncio.run(play())


def test_a_sentinel_that_was_paused_tells_of_the_old_master(tmp_path: Path) -> None:
    async def play() -> None:
        async with SentinelSet(tmp_path) as redundant:
            old, stale = await redundant.master(), redundant.sentinels[2]
            stale.pause()
            new = await redundant.fail_over()
            stale.resume()
            told = {await redundant.told_by(stale)}
            assert told <= {old, new}
            assert await redundant.master() is new

    asyncio.run(play())
