"""Nodes of a cluster redirect to a node that is away, or to each other; settings that none can serve."""

import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from tests.cluster.conftest import another
from tests.support.cluster import Cluster, LegacyMove
from tests.support.measures import processor_seconds
from tests.support.nodes import wait_until
from tests.support.ports import free_ports
from tests.support.programs import StartServer, refused_start
from tests.support.traffic import KEY, PREFIX, start_on_cluster
from tests.support.waiters import Waiter, create, is_refused, wait_for_waiting

pytestmark = pytest.mark.clients
# What two servers may use in the second for which they look for the node. A busy loop opens thousands of
# connections, and uses the whole second.
CONNECTIONS, SECONDS = 250, 0.6
NO_TAG = "set --prefix to a name in braces, such as {pressure}"


async def move_to_a_node_that_is_away(move: LegacyMove) -> None:
    """Move the slot to a node whose port, as all nodes name it, refuses connections."""
    await move.target.announce_port(free_ports(1)[0])
    await move.begin()
    await move.migrate()
    await move.finish()


async def let_it_come_back(move: LegacyMove) -> None:
    """Let all nodes name the port of the node."""
    await move.target.announce_port(0)


async def move_only_by_the_source(move: LegacyMove) -> None:
    """Let the source say that the target has the slot, which still says that the source has it.

    Nodes of Valkey would soon agree again by themselves.
    """
    await move.begin()
    await move.migrate()
    await move.source.command("CLUSTER", "SETSLOT", move.slot, "NODE", move.target.identity)


async def let_them_agree(move: LegacyMove) -> None:
    """Tell the target, too."""
    await move.announce(move.target)


@pytest.mark.parametrize(
    ("lose", "find", "reason"),
    [
        (move_to_a_node_that_is_away, let_it_come_back, r"no connection to \S+: Connection refused"),
        (move_only_by_the_source, let_them_agree, "the nodes of the cluster redirect to each other"),
    ],
    ids=["away", "each other"],
)
async def test_servers_look_for_the_slot_without_haste(
    start_server: StartServer,
    cluster: Cluster,
    lose: Callable[[LegacyMove], Awaitable[None]],
    find: Callable[[LegacyMove], Awaitable[None]],
    reason: str,
) -> None:
    """After the grace of one server its clients get the reason. The other server has more time."""
    servers = [start_on_cluster(start_server, cluster, "--backend-grace", grace) for grace in ("1", "60")]

    name = lose.__name__

    async def connections() -> int:
        found = [await node.info("stats") for node in cluster.nodes]
        return sum(int(stats["total_connections_received"]) for stats in found)

    with ExitStack() as stack:
        for number, server in enumerate(servers):
            # The server watches keys only if clients wait.
            client = stack.enter_context(server.client())
            create(client, f"{name} {number}")
            stack.enter_context(Waiter(server.port)).send("BLPOP", f"{name} {number}", "0")
            wait_for_waiting(client, f"{name} {number}", consumers=1)
        hasty, patient = (stack.enter_context(Waiter(server.port)) for server in servers)
        length = hasty("RPUSH", "q", "a")
        move = await cluster.legacy_move(KEY, await another(cluster, await cluster.master_of(KEY)))
        await lose(move)
        used, opened = sum(map(processor_seconds, servers)), await connections()
        patient.send("RPUSH", "q", "b")
        refusal = hasty("RPUSH", "q", "never")
        used, opened = sum(map(processor_seconds, servers)) - used, await connections() - opened
        print(f"{opened} connections, {used:.2f} s of processor time")
        assert is_refused(refusal, "BACKEND")
        assert re.search(f"BACKEND the backend is away: {reason}", str(hasty("LLEN", "q")))
        assert opened < CONNECTIONS
        assert used < SECONDS
        assert not patient.has_reply()
        await find(move)
        assert patient.reply() == length + 1
        await wait_until(lambda: isinstance(hasty("LLEN", "q"), int), "the other server to find the slot")
        assert hasty("LRANGE", "q", -2, -1) == [b"a", b"b"]
    for server in servers:
        assert len(re.findall(reason, server.log)) == 1, server.log


@pytest.mark.parametrize(
    ("database", "options", "to_do"),
    [
        (3, ("--prefix", PREFIX), "which has no database 3: set 0 in --backend"),
        (0, (), f"{NO_TAG}, or give the cluster as redis+cluster://"),
        (0, ("--listen", "memcached://127.0.0.1:0?mode=kv"), NO_TAG),
    ],
)
def test_settings_that_no_cluster_can_serve(
    cluster: Cluster, database: int, options: tuple[str, ...], to_do: str
) -> None:
    url = f"redis://127.0.0.1:{cluster.nodes[0].port}/{database}"
    refusal = refused_start("--backend", url, *options)
    assert "is a node of a cluster" in refusal
    assert to_do in refusal
