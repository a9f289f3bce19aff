"""A backend whose master Sentinels name: it is replaced, they are away, they answer what is no longer so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.support.nodes import Node, wait_until
from tests.support.programs import Server, StartServer
from tests.support.sentinel import NAME, SentinelSet
from tests.support.traffic import said, under_traffic

pytestmark = pytest.mark.clients


async def has(node: Node, key: str) -> bool:
    """Return whether a node has a key."""
    return bool(await node.command("EXISTS", key))


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
