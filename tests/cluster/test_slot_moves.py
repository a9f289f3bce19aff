"""The slot of all queues moves to another master, in both ways. Clients notice a pause."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import redis

from tests.cluster.conftest import another
from tests.support.backend_relay import NO_REPLY, CallRelay
from tests.support.cluster import Cluster, ClusterNode
from tests.support.large import fill, number_of
from tests.support.native import NativeSteps, run, step_until
from tests.support.nodes import Engine, wait_until
from tests.support.programs import Client, Server, StartServer
from tests.support.protocols import MEMCACHED, Wire
from tests.support.traffic import KEY, OUTAGE, PREFIX, start_on_cluster, under_traffic
from tests.support.waiters import Waiter, wait_for_waiting

pytestmark = pytest.mark.clients
SOCKET = "socket"
MOVING = "are being moved to another node"


@pytest.fixture(scope="module", params=Engine)
def started_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three masters, which also listen on unix sockets in their folders."""
    made = Cluster(tmp_path_factory.mktemp("moves"), "--unixsocket", SOCKET, engine=request.param)
    with made.started():
        yield made


@pytest.fixture
def cluster(started_cluster: Cluster) -> Cluster:
    """Three masters without data."""

    async def flush() -> None:
        for node in started_cluster.nodes:
            await node.command("FLUSHALL")

    asyncio.run(flush())
    return started_cluster


@asynccontextmanager
async def moving(cluster: Cluster) -> AsyncIterator[None]:
    """Move the slot. Redis refuses calls while the block runs; Valkey moves the slot at once."""
    target = await another(cluster, await cluster.master_of(KEY))
    if cluster.engine is Engine.VALKEY:
        moves = asyncio.create_task(cluster.move_atomically(KEY, target))
        yield
        await moves
    else:
        move = await cluster.legacy_move(KEY, target)
        await move.begin()
        yield
        await move.migrate()
        await move.finish()


async def wait_until_refused(cluster: Cluster, server: Server) -> None:
    """Return when calls of the server are refused. Valkey refuses them only for a moment."""
    if cluster.engine is Engine.REDIS:
        await wait_until(lambda: MOVING in server.log, "calls to be refused")


async def test_a_slot_moves_under_load(start_server: StartServer, cluster: Cluster) -> None:
    server = start_on_cluster(start_server, cluster)
    for _ in range(2):
        async with under_traffic(server) as traffic, moving(cluster):
            await wait_until_refused(cluster, server)
        assert traffic.slowest() < OUTAGE


@pytest.mark.parametrize(("words", "reply"), [(("RPUSH", "q", "b"), 2), (("LPOP", "q"), b"a")])
async def test_a_lost_reply_is_asked_for_again_at_the_new_master(
    start_server: StartServer, cluster: Cluster, words: tuple[str, ...], reply: Any
) -> None:
    source = await cluster.master_of(KEY)
    try:
        with CallRelay(source.folder / SOCKET, prefix=PREFIX) as relay:
            await source.announce_port(relay.port)
            server = start_server("--backend", relay.url, "--prefix", PREFIX)
            with Waiter(server.port) as waiter:
                waiter("RPUSH", "q", "a")
                relay.plan(NO_REPLY, stays_shut=True)
                waiter.send(*words)
                await wait_until(lambda: relay.is_shut, "the reply to be lost")
                async with moving(cluster):
                    assert not waiter.has_reply()
                assert waiter.reply() == reply
                assert waiter("LRANGE", "q", 0, -1) == ([b"a", b"b"] if reply == 2 else [])
    finally:
        await cluster.announce_own_port(source)


async def test_the_messages_of_a_killed_server_are_back_after_the_move(
    start_server: StartServer, cluster: Cluster
) -> None:
    dying, living = (start_on_cluster(start_server, cluster, "--proxy-timeout", "1") for _ in range(2))
    with living.client() as client, Waiter(dying.port) as taking:
        fill(client, 50)
        taking.send("LPOP", "q", 50)
        await wait_until(lambda: taking.has_reply(), "the reply to begin")
        assert client.llen("q") == 0
        async with moving(cluster):
            dying.kill()
            await wait_until_refused(cluster, living)
        await wait_until(lambda: client.llen("q") == 50, "the messages to be back")
        assert [number_of(found) for found in client.lrange("q", 0, -1)] == list(range(50))


class CurrentMaster:
    """A native client's connection: it follows when the slot has moved."""

    def __init__(self, connection: Client) -> None:
        self.connection = connection

    def execute_command(self, *words: Any) -> Any:
        return self.connection.execute_command(*words)


async def test_a_server_waits_for_the_turn_of_a_native_client(
    start_server: StartServer, cluster: Cluster
) -> None:
    server = start_on_cluster(start_server, cluster)
    with ExitStack() as stack:
        source = await cluster.master_of(KEY)
        connection: Any = CurrentMaster(stack.enter_context(direct(source)))
        native = NativeSteps(connection, "q", "native", prefix=PREFIX)
        run(native.create())
        puts = native.put(b"native")
        step_until(puts, lambda: not connection.execute_command("EXISTS", f"{PREFIX}:q:producer_free"))
        waiter = stack.enter_context(Waiter(server.port))
        waiter.send("RPUSH", "q", "server")
        await wait_until(lambda: has_blocked(source), "the server to wait in line")
        async with moving(cluster):
            assert not waiter.has_reply()
        target = await cluster.master_of(KEY)
        await wait_until(lambda: has_blocked(target), "the server to wait in line again")
        connection.connection = stack.enter_context(direct(target))
        run(puts)
        assert waiter.reply() == 2
        assert waiter("LRANGE", "q", 0, -1) == [b"native", b"server"]


def direct(node: ClusterNode) -> Client:
    """Return a synchronous client of a node."""
    return redis.Redis(port=node.port)


async def has_blocked(node: ClusterNode) -> bool:
    """Return whether clients are blocked at a node."""
    return (await node.info("clients"))["blocked_clients"] != "0"


async def test_a_lease_that_ends_while_the_slot_moves(start_server: StartServer, cluster: Cluster) -> None:
    server = start_on_cluster(start_server, cluster)
    with Waiter(server.port) as first, Waiter(server.port) as second:
        first("PRESSURE.CREATE", "jobs", "TYPE", "JOBS")
        job = first("PRESSURE.PUT", "jobs", "job", "TTR", "60")
        began = time.monotonic()
        assert first("PRESSURE.RESERVE", "jobs", "TTR", "0.5") == [b"jobs", job, b"job", 1]
        second.send("PRESSURE.RESERVE", "jobs", "TIMEOUT", "0")
        async with moving(cluster):
            await wait_until_refused(cluster, server)
            await wait_until(lambda: time.monotonic() > began + 1, "the lease to end")
        assert second.reply() == [b"jobs", job, b"job", 2]
        assert first("PRESSURE.ACK", "jobs", job) == 0
        assert second("PRESSURE.ACK", "jobs", job) == 1


async def test_a_script_that_reads_several_queues_waits_for_keys_that_have_left(
    start_server: StartServer, cluster: Cluster
) -> None:
    server = start_on_cluster(start_server, cluster)
    with Waiter(server.port) as client:
        for queue in ("a", "b"):
            client("RPUSH", queue, f"in {queue}")
        move = await cluster.legacy_move(KEY, await another(cluster, await cluster.master_of(KEY)))
        await move.begin()
        lists = {f"{PREFIX}:a".encode(), f"{PREFIX}:b".encode()}
        await move.migrate(*[key for key in await move.keys_left() if key not in lists])
        assert set(await move.keys_left()) == lists
        client.send("PRESSURE.RESERVE", "a", "b")
        await wait_until(lambda: MOVING in server.log, "the call to wait")
        await move.migrate()
        await move.finish()
        assert client.reply()[2] == b"in a"


QUEUES = [b"q%d" % number for number in range(30)]
LISTINGS: dict[tuple[str, ...], Any] = {
    ("KEYS", "*"): QUEUES,
    ("SCAN", "0", "COUNT", "1000"): [b"0", QUEUES],
    ("DBSIZE",): len(QUEUES),
    ("PRESSURE.LIST",): QUEUES,
    ("FLUSHDB",): b"OK",
    ("FLUSHALL",): b"OK",
}


def in_any_order(reply: Any) -> Any:
    """Return a reply with its names in order."""
    return sorted(map(in_any_order, reply), key=str) if isinstance(reply, list) else reply


@pytest.mark.parametrize("words", LISTINGS, ids=" ".join)
@pytest.mark.parametrize("moved", ["no keys", "some keys", "all keys"])
async def test_what_concerns_all_queues_waits_for_those_whose_keys_have_moved(
    start_server: StartServer, cluster: Cluster, words: tuple[str, ...], moved: str
) -> None:
    server = start_on_cluster(start_server, cluster)
    with Waiter(server.port) as client:
        for queue in QUEUES:
            client("RPUSH", queue, "message")
        move = await cluster.legacy_move(KEY, await another(cluster, await cluster.master_of(KEY)))
        await move.begin()
        keys = await move.keys_left()
        if gone := {"no keys": [], "some keys": keys[::2], "all keys": keys}[moved]:
            await move.migrate(*gone)
        client.send(*words)
        await wait_until(lambda: MOVING in server.log, "the call to wait")
        assert not client.has_reply()
        await move.migrate()
        await move.finish()
        assert in_any_order(client.reply()) == in_any_order(LISTINGS[words])
        if words[0].startswith("FLUSH"):
            assert client("KEYS", "*") == []


async def test_a_scan_misses_nothing_if_the_slot_moves_between_two_steps(
    start_server: StartServer, cluster: Cluster
) -> None:
    server = start_on_cluster(start_server, cluster)
    with Waiter(server.port) as client:
        for queue in QUEUES:
            client("RPUSH", queue, "message")
        cursor, found = client("SCAN", "0", "COUNT", "1")
        while len(found) < len(QUEUES) / 2:
            cursor, some = client("SCAN", cursor, "COUNT", "1")
            found += some
        async with moving(cluster):
            pass
        while cursor != b"0":
            cursor, some = client("SCAN", cursor, "COUNT", "1")
            found += some
        assert set(found) == set(QUEUES)


async def test_clients_wait_on_while_the_slot_moves(start_server: StartServer, cluster: Cluster) -> None:
    server = start_on_cluster(start_server, cluster)
    with server.client() as client, ExitStack() as stack:
        client.execute_command("PRESSURE.CREATE", "full", "BOUND", "1")
        client.rpush("full", "a")
        putting, taking, leaving = (stack.enter_context(Waiter(server.port)) for _ in range(3))
        putting.send("PRESSURE.PUT", "full", "b", "TIMEOUT", "0")
        taking.send("BLPOP", "empty", "0")
        leaving.send("BLPOP", "other", "0.3")
        wait_for_waiting(client, "full", producers=1)
        async with moving(cluster):
            assert leaving.reply(timeout=5) is None
            assert not putting.has_reply()
        assert client.lpop("full") == b"a"
        assert putting.reply() == 1
        client.rpush("empty", "c")
        assert taking.reply() == [b"empty", b"c"]


async def test_values_of_memcached_move_too(start_server: StartServer, cluster: Cluster) -> None:
    server = start_on_cluster(start_server, cluster, "--listen", "memcached://127.0.0.1:0?mode=kv")
    with Wire(MEMCACHED, server) as wire:
        assert wire.ask(b"set a 0 0 1\r\nA") == [b"STORED"]
        async with moving(cluster):
            wire.ask(b"set b 0 0 1\r\nB", lines=0)
            await wait_until_refused(cluster, server)
        assert wire.line() == b"STORED\r\n"
        found = wire.ask(b"get a b", lines=5)
        assert found == [b"VALUE a 0 1", b"A", b"VALUE b 0 1", b"B", b"END"]
