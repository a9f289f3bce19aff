"""Failover in a cluster: masters that die, hand over, are cut off, or load their data."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.network import Network
from tests.support.nodes import wait_until
from tests.support.programs import StartServer
from tests.support.traffic import KEY, NODE_TIMEOUT, OUTAGE, start_on_cluster, under_traffic

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters with a replica each."""
    folder = tmp_path_factory.mktemp("cluster")
    with (
        Network() as network,
        Cluster(folder, replicas=1, node_timeout=NODE_TIMEOUT, network=network).started() as made,
    ):
        yield made


async def test_a_master_of_a_cluster_dies_under_load(start_server: StartServer, cluster: Cluster) -> None:
    server = start_on_cluster(start_server, cluster, "--durability", "replica:1")
    master = await cluster.master_of(KEY)
    async with under_traffic(server) as traffic:
        master.kill()
        await cluster.wait_for_new_master(KEY, master)
        await master.start()
        await cluster.wait_until_connected(master)
    assert traffic.slowest() < NODE_TIMEOUT + OUTAGE


async def test_a_replica_of_a_cluster_is_promoted_under_load(
    start_server: StartServer, cluster: Cluster
) -> None:
    server = start_on_cluster(start_server, cluster)
    async with under_traffic(server) as traffic:
        master = await cluster.master_of(KEY)
        await cluster.fail_over((await cluster.replicas_of(master))[0])
    assert traffic.slowest() < OUTAGE


async def test_a_master_that_is_cut_off_loses_nothing_acknowledged(
    start_server: StartServer, cluster: Cluster
) -> None:
    """It serves until the node timeout has passed, and its replica is promoted. Later it is a replica."""
    server = start_on_cluster(start_server, cluster, "--durability", "replica:1")
    master = await cluster.master_of(KEY)
    async with under_traffic(server) as traffic:
        # See test_messages_whose_put_back_is_lost_are_back_after_a_failover.
        traffic.takes = False
        await traffic.go_on()
        with cluster.cut(master, cluster.nodes):
            new = await cluster.wait_for_new_master(KEY, master)
            await wait_until(lambda: f":{new.port} now" in server.log, "the server to use the new master")
        await cluster.wait_until_connected(master)
        traffic.takes = True
    assert traffic.ledger.unsure
    assert traffic.slowest() < NODE_TIMEOUT + OUTAGE


async def test_calls_wait_while_a_node_loads_its_data(start_server: StartServer, tmp_path: Path) -> None:
    """A master that has loaded its data answers CLUSTERDOWN for two seconds."""
    slowly = ("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
    async with Cluster(tmp_path, *slowly, "--save", "3600 1", masters=1) as cluster:
        (node,) = cluster.nodes
        server = start_on_cluster(start_server, cluster)
        async with under_traffic(server):
            await node.command(
                "EVAL", "for i = 1, ARGV[1] do redis.call('SET', KEYS[1] .. i, i) end", 1, "{p}", 500
            )
            node.stop()
            node.launch()
            await wait_until(lambda: "LOADING" in server.log, "the node to be loading")
        assert server.log.count("LOADING") == 1
