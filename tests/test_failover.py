"""Failover in a cluster: masters that die, hand over, are cut off, or load their data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import StartServer
from tests.support.traffic import KEY, NODE_TIMEOUT, OUTAGE, start_on_cluster, under_traffic

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters with a replica each."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), replicas=1, node_timeout=NODE_TIMEOUT)
    asyncio.run(made.__aenter__())
    yield made
    asyncio.run(made.__aexit__(None, None, None))


def test_a_master_of_a_cluster_dies_under_load(start_server: StartServer, cluster: Cluster) -> None:
    server = start_on_cluster(start_server, cluster, "--durability", "replica:1")

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
    server = start_on_cluster(start_server, cluster)

    async def play() -> None:
        async with under_traffic(server) as traffic:
            master = await cluster.master_of(KEY)
            await cluster.fail_over((await cluster.replicas_of(master))[0])
        assert traffic.longest < OUTAGE

    asyncio.run(play())
