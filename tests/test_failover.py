"""Failover: a cluster whose slots move and whose masters die, and a master that Sentinel replaces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.support.cluster import Cluster
from tests.support.nodes import Engine, Node, wait_until
from tests.support.programs import Server, StartServer
from tests.support.sentinel import NAME, SentinelSet

pytestmark = pytest.mark.clients
PREFIX = "{p}"
KEY = b"{p}:traffic"
# Seconds: a failover takes the node timeout, an election and 2 seconds until the new master serves.
NODE_TIMEOUT, OUTAGE = 1.0, 4.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters with a replica each."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), replicas=1, node_timeout=NODE_TIMEOUT)
    asyncio.run(made.__aenter__())
    yield made
    asyncio.run(made.__aexit__(None, None, None))


class Traffic:
    """A client that puts messages and takes them, one after the other, and what has become of them."""

    def __init__(self, server: Server) -> None:
        self._client: Any = redis.asyncio.Redis(port=server.port, socket_timeout=None)
        self.put: list[bytes] = []
        self.got: list[bytes] = []
        # Puts of which it is not known whether they are safe: they are done, and may come. And how many
        # messages went back, because it was not known of their takes.
        self.unsure: set[bytes] = set()
        self.went_back = 0
        self.longest = 0.0
        self.is_to_end = False

    async def run(self) -> None:
        """Go on until `is_to_end`."""
        while not self.is_to_end:
            message = b"%d" % len(self.put)
            began = time.monotonic()
            self.put.append(message)
            try:
                assert await self._client.rpush("traffic", message)
            except redis.ResponseError as error:
                self._check_unsafe(error)
                self.unsure.add(message)
            if len(self.put) % 3:
                await self._take()
            self.longest = max(self.longest, time.monotonic() - began)

    async def goes_on(self) -> None:
        """Return when some more messages have been put."""
        count = len(self.put)

        async def has_more() -> bool:
            return len(self.put) > count + 20

        await wait_until(has_more, "traffic")

    async def _take(self) -> bool:
        try:
            message = await self._client.lpop("traffic")
        except redis.ResponseError as error:
            self._check_unsafe(error)
            self.went_back += 1
            return True
        if message is not None:
            self.got.append(message)
        return message is not None

    def _check_unsafe(self, error: redis.ResponseError) -> None:
        if "not known to be safe" not in str(error):
            raise error

    async def end(self) -> None:
        """End. Every message must have come once, and in order if nothing went back."""
        while await self._take():
            pass
        await self._client.aclose()
        sure = [message for message in self.got if message not in self.unsure]
        assert sorted(sure, key=int) == [message for message in self.put if message not in self.unsure]
        assert self.unsure or self.went_back or self.got == self.put


@asynccontextmanager
async def under_traffic(server: Server) -> AsyncIterator[Traffic]:
    """Yield the traffic, with a client that waits and one that has reserved a job beside it; check all."""
    # Any: redis-py's commands are typed as synchronous or asynchronous.
    client: Any = redis.asyncio.Redis(port=server.port, socket_timeout=None)
    waiting: Any = redis.asyncio.Redis(port=server.port, socket_timeout=None)
    await client.rpush("jobs", "job")
    _, job, *_ = await client.execute_command("PRESSURE.RESERVE", "jobs", "TIMEOUT", "1")
    waits = asyncio.create_task(waiting.blpop(["waited for"], 0))
    traffic = Traffic(server)
    running = asyncio.create_task(traffic.run())
    await traffic.goes_on()
    yield traffic
    await traffic.goes_on()
    traffic.is_to_end = True
    await running
    await traffic.end()
    await client.rpush("waited for", "message")
    assert await asyncio.wait_for(waits, 10) == (b"waited for", b"message")
    assert await client.execute_command("PRESSURE.ACK", "jobs", job) == 1
    for one in (client, waiting):
        await one.aclose()


def started(start_server: StartServer, cluster: Cluster, *options: str) -> Server:
    """Return a server on a cluster."""
    url = f"redis://127.0.0.1:{cluster.nodes[0].port}"
    return start_server("--backend", url, "--prefix", PREFIX, "--backend-timeout", "1", *options)


async def another(cluster: Cluster, master: Node) -> Any:
    return next(node for node in cluster.nodes[:3] if node is not master)


def test_a_slot_moves_step_by_step_under_load(start_server: StartServer, cluster: Cluster) -> None:
    server = started(start_server, cluster)

    async def play() -> None:
        for _ in range(2):
            async with under_traffic(server):
                move = await cluster.legacy_move(KEY, await another(cluster, await cluster.master_of(KEY)))
                await move.begin()
                # Calls are refused from now on, and are sent again.
                await wait_until(lambda: said(server, "are being moved to another node"), "calls to wait")
                await move.migrate()
                await move.finish()

    asyncio.run(play())


async def has(node: Node, key: str) -> bool:
    """Return whether a node has a key."""
    return bool(await node.command("EXISTS", key))


async def said(server: Server, text: str) -> bool:
    """Return whether the log has a text."""
    return text in server.log


def test_a_slot_moves_at_once_under_load(start_server: StartServer, tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, engine=Engine.VALKEY) as cluster:
            server = started(start_server, cluster)
            for _ in range(2):
                async with under_traffic(server) as traffic:
                    target = await another(cluster, await cluster.master_of(KEY))
                    await cluster.move_atomically(KEY, target)
                assert traffic.longest < OUTAGE

    asyncio.run(play())


def test_a_master_of_a_cluster_dies_under_load(start_server: StartServer, cluster: Cluster) -> None:
    server = started(start_server, cluster, "--durability", "replica:1")

    async def play() -> None:
        master = await cluster.master_of(KEY)
        async with under_traffic(server) as traffic:
            master.kill()
            await cluster.wait_for_new_master(KEY, master)
            await master.start()
            await cluster.wait_until_connected(master)
        assert traffic.longest < NODE_TIMEOUT + OUTAGE

    asyncio.run(play())


def test_a_replica_of_a_cluster_is_promoted_under_load(start_server: StartServer, cluster: Cluster) -> None:
    server = started(start_server, cluster)

    async def play() -> None:
        async with under_traffic(server) as traffic:
            master = await cluster.master_of(KEY)
            await cluster.fail_over((await cluster.replicas_of(master))[0])
        assert traffic.longest < OUTAGE

    asyncio.run(play())


def test_a_cluster_needs_a_prefix_with_a_tag(start_server: StartServer, cluster: Cluster) -> None:
    url = f"redis://127.0.0.1:{cluster.nodes[0].port}"
    with pytest.raises(AssertionError) as refused:
        start_server("--backend", url)
    assert "is a node of a cluster" in str(refused.value)
    assert "--prefix" in str(refused.value)


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[SentinelSet]:
    """A master with a replica, and three Sentinels."""
    made = SentinelSet(tmp_path / "sentinels")
    asyncio.run(made.__aenter__())
    yield made
    asyncio.run(made.__aexit__(None, None, None))


def watched(start_server: StartServer, sentinels: SentinelSet, *options: str) -> Server:
    """Return a server whose backend is the master that Sentinels name."""
    url = f"redis+sentinel://{sentinels.addresses}/{NAME}/0"
    return start_server("--backend", url, "--backend-timeout", "1", *options)


@pytest.mark.parametrize("how", [Node.kill, Node.pause])
def test_sentinel_replaces_the_master_under_load(
    start_server: StartServer, sentinels: SentinelSet, how: Any
) -> None:
    server = watched(start_server, sentinels, "--durability", "replica:1", "--backend-grace", "60")

    async def play() -> None:
        master = await sentinels.master()
        async with under_traffic(server):
            how(master)
            new = await sentinels.wait_for_new_master(master, timeout=50)
            # It comes back as a master, and Sentinel makes it a replica.
            if how is Node.kill:
                await master.start()
            else:
                master.resume()
            await sentinels.wait_until_settled()
            assert await sentinels.master() is new

    asyncio.run(play())


def test_the_last_known_master_serves_while_all_sentinels_are_away(
    start_server: StartServer, sentinels: SentinelSet
) -> None:
    server = watched(start_server, sentinels)
    for sentinel in sentinels.sentinels:
        sentinel.kill()

    async def play() -> None:
        await wait_until(lambda: said(server, "no Sentinel of"), "the log to say so")
        async with under_traffic(server):
            await sentinels.nodes[0].command("CLIENT", "KILL", "TYPE", "normal")
        await sentinels.start_sentinel(sentinels.sentinels[0])
        await wait_until(lambda: said(server, "name the master again"), "the log to say so")

    asyncio.run(play())
    assert server.log.count("no Sentinel of") == 1


def test_the_calls_that_a_new_master_lacks_are_counted(
    start_server: StartServer, sentinels: SentinelSet
) -> None:
    server = watched(start_server, sentinels, "--http", "http://127.0.0.1:0", "--backend-grace", "60")

    async def play() -> None:
        master = await sentinels.master()
        client: Any = redis.asyncio.Redis(port=server.port, socket_timeout=None)
        await client.rpush("q", "kept")
        await wait_until(lambda: has(sentinels.nodes[1], "__pressure__:q"), "the replica to have the message")
        await master.command("ACL", "SETUSER", "default", "-psync", "-sync")
        await master.command("CLIENT", "KILL", "TYPE", "replica")
        for number in range(7):
            await client.rpush("q", f"lost {number}")
        master.kill()
        await sentinels.wait_for_new_master(master, timeout=50)
        assert await client.lrange("q", 0, -1) == [b"kept"]
        await client.aclose()

    asyncio.run(play())
    assert "lacks the last 7 calls that it had answered" in server.log
