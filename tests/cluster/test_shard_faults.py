"""Faults of a cluster with shards: slots move, masters and servers die. Other shards go on."""

import asyncio
import re
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from tests.cluster.conftest import another
from tests.support.cluster import Cluster
from tests.support.http_requests import request
from tests.support.measures import processor_seconds
from tests.support.nodes import Engine, wait_until
from tests.support.programs import Server, StartServer, run_command, wait_for
from tests.support.protocols import BEANSTALK, RESP, Wire
from tests.support.sharded import LISTENERS, PLACEMENT, SHARDS, direct_to, queue_in, queue_in_each, url_of
from tests.support.traffic import traffic_on
from tests.support.waiters import AsyncWaiter, Waiter, is_refused, packed, wait_for_blocked

pytestmark = pytest.mark.clients
NODE_TIMEOUT = 1.0
MOVING = "are being moved to another node"
# Seconds: for how long a shard is away if its master dies, and a turn in a shard that has no part in it.
OUTAGE, UNDISTURBED = NODE_TIMEOUT + 3, 1.0
# Processor time of a server that follows its shards to another node, in seconds. A busy loop uses all.
USED = 0.5


def started(start_server: StartServer, cluster: Cluster, *options: str) -> Server:
    return start_server("--backend", url_of(cluster), "--backend-timeout", "1", *LISTENERS, *options)


@pytest.mark.alone  # how long others wait is measured
@pytest.mark.parametrize("engine", Engine)
async def test_slots_of_some_shards_move_under_load(
    start_server: StartServer, tmp_path: Path, engine: Engine
) -> None:
    """Redis moves them step by step: meanwhile the other shards serve. Valkey moves each at once."""
    moving, others = {2, 9}, set(range(SHARDS)) - {2, 9}
    async with Cluster(tmp_path, engine=engine) as cluster:
        server = started(start_server, cluster)
        async with traffic_on(server, queue_in_each("traffic")) as traffic:
            for shard in sorted(moving):
                key = PLACEMENT.prefixes[shard]
                target = await another(cluster, await cluster.master_of(key))
                if engine is Engine.VALKEY:
                    await cluster.move_atomically(key, target)
                    await traffic.go_on()
                    assert traffic.slowest(moving) < OUTAGE
                else:
                    move, before = await cluster.legacy_move(key, target), server.log.count(MOVING)
                    await move.begin()
                    await wait_until(partial(waits, server, before), "calls to wait")
                    await traffic.go_on(others)
                    await move.migrate()
                    await move.finish()
                    await traffic.go_on(moving)
                assert await cluster.master_of(key) is target
                assert traffic.slowest(others) < UNDISTURBED
        server.stop()
        assert "ERROR" not in server.log


def waits(server: Server, before: int) -> bool:
    """Return whether the log says once more that calls wait."""
    return server.log.count(MOVING) > before


async def test_waits_and_reservations_outlive_the_move_of_their_slots(
    start_server: StartServer, cluster: Cluster
) -> None:
    server = started(start_server, cluster)
    shard = 6
    key, waited, jobs = PLACEMENT.prefixes[shard], queue_in(shard, "waited"), queue_in(shard, "jobs")
    with server.client() as client, Waiter(server.port) as one, Waiter(server.port) as several:
        client.rpush(jobs, "job")
        _, job, *_ = one("PRESSURE.RESERVE", jobs, "TIMEOUT", 5)
        several.send("BLPOP", queue_in(1, "other"), waited, queue_in(12, "other"), 0)
        wait_for_blocked(client, 1)
        other = await another(cluster, await cluster.master_of(key))
        await cluster.move(key, other)
        client.rpush(waited, "message")
        assert several.reply() == [waited.encode(), b"message"]
        assert one("PRESSURE.ACK", jobs, job) == 1
        client.flushall()


def test_a_killed_server_is_recovered_in_all_shards(start_server: StartServer, cluster: Cluster) -> None:
    timeout = ("--proxy-timeout", "1")
    doomed, peer = (started(start_server, cluster, *timeout) for _ in range(2))
    # Replies that fill all buffers, so that the clients do not get them as a whole.
    names, jobs = [queue_in(shard, "taken") for shard in range(0, SHARDS, 3)], queue_in_each("reserved")
    messages = [b"%d" % number + bytes(1 << 20) for number in range(8)]
    with ExitStack() as stack:
        client, worker = stack.enter_context(peer.client()), stack.enter_context(Waiter(doomed.port))
        for queue in jobs:
            client.rpush(queue, "job")
            assert worker("PRESSURE.RESERVE", queue)[2] == b"job"
        for name in names:
            client.rpush(name, *messages, "last")
            wire = stack.enter_context(Wire(RESP, doomed, small_buffers=True))
            wire.send(packed("LPOP", name, len(messages)))
        wait_for(lambda: all(client.llen(name) == 1 for name in names), "all messages to be taken")
        doomed.kill()
        for name in names:
            wait_for(lambda name=name: client.llen(name) == 9, "the messages to be back")  # type: ignore[misc]
            assert client.lrange(name, 0, -1) == [*messages, b"last"]
        for queue in jobs:
            assert client.execute_command("PRESSURE.RESERVE", queue, "TIMEOUT", 20)[2] == b"job"
        wait_for(lambda: client.info("backend")["other_servers"] == 0, "the dead server to be forgotten")
        client.flushall()
    peer.stop()
    assert len([line for line in peer.log.splitlines() if "has died" in line]) == SHARDS


def test_a_new_server_recovers_a_killed_one_in_all_shards(
    start_server: StartServer, cluster: Cluster
) -> None:
    doomed = started(start_server, cluster, "--proxy-timeout", "1")
    jobs = queue_in_each("reserved")
    with doomed.client() as client:
        for queue in jobs:
            client.rpush(queue, "job")
            assert client.execute_command("PRESSURE.RESERVE", queue)[2] == b"job"
    doomed.kill()
    with started(start_server, cluster, "--proxy-timeout", "1").client() as client:
        for queue in jobs:
            assert client.execute_command("PRESSURE.RESERVE", queue, "TIMEOUT", 20)[2] == b"job"
        client.flushall()


@pytest.mark.slow
@pytest.mark.alone  # how long others wait is measured
async def test_a_master_is_killed_and_other_shards_serve_on(
    start_server: StartServer, tmp_path: Path
) -> None:
    nodes: Any = {"replicas": 1, "node_timeout": NODE_TIMEOUT, "full_coverage": False}
    async with Cluster(tmp_path, **nodes) as cluster:
        server = started(start_server, cluster, "--durability", "replica:1")
        master = await cluster.master_of(PLACEMENT.prefixes[3])
        masters = [await cluster.master_of(prefix) for prefix in PLACEMENT.prefixes]
        away = {shard for shard in range(SHARDS) if masters[shard] is master}
        others = set(range(SHARDS)) - away
        probes = [(await AsyncWaiter.connect(server.port), shard) for shard in sorted(away)]
        async with traffic_on(server, queue_in_each("traffic")) as traffic:
            master.kill()
            began = time.monotonic()

            async def outage(probe: AsyncWaiter, shard: int) -> float:
                # A read: a change would wait for the next replica.
                assert isinstance(await probe("LLEN", queue_in(shard, "probed")), int)
                return time.monotonic() - began

            outages = [asyncio.create_task(outage(*probe)) for probe in probes]
            await traffic.go_on(others)
            await cluster.wait_for_new_master(PLACEMENT.prefixes[3], master)
            longest = max(await asyncio.gather(*outages))
            undisturbed = traffic.slowest(others)
            print(f"outage {longest:.2f} s, elsewhere {undisturbed:.2f} s")
            await master.start()
            await cluster.wait_until_connected(master)
            await traffic.go_on(away)
        assert undisturbed < UNDISTURBED
        assert longest < OUTAGE
        server.stop()


async def test_a_server_starts_while_the_replica_of_one_shard_is_missing(
    start_server: StartServer, tmp_path: Path
) -> None:
    async with Cluster(tmp_path, replicas=1, full_coverage=False) as cluster:
        masters = [await cluster.master_of(prefix) for prefix in PLACEMENT.prefixes]
        master, other = masters[0], next(shard for shard in range(SHARDS) if masters[shard] is not masters[0])
        (replica,) = await cluster.replicas_of(master)
        replica.kill()
        with direct_to(master) as direct:
            wait_for(lambda: not direct.info("replication")["connected_slaves"], "the master to notice")
        server = started(start_server, cluster, "--durability", "replica:1", "--backend-grace", "1")
        assert "needs 1 connected replicas; the backend has 0" in server.log
        with server.client() as client:
            assert client.sadd(queue_in(other), "a") == 1
            with pytest.raises(redis.ResponseError, match="is not known to be safe"):
                client.sadd(queue_in(0), "a")
            await replica.start()
            await cluster.wait_until_connected(replica)

            def is_safe() -> bool:
                try:
                    return client.sadd(queue_in(0), "b") in (0, 1)
                except redis.ResponseError:
                    return False

            wait_for(is_safe, "puts to be safe")


async def test_of_two_nodes_that_claim_a_slot_the_newer_one_is_used_once_they_meet(
    start_server: StartServer, tmp_path: Path
) -> None:
    """Until then the server stays at the older one. What that has answered meanwhile is lost, and told."""
    slot = key_slot(PLACEMENT.prefixes[3])
    async with Cluster(tmp_path, node_timeout=NODE_TIMEOUT, full_coverage=False) as cluster:
        masters = [await cluster.master_of(prefix) for prefix in PLACEMENT.prefixes]
        older = masters[3]
        newer, third = (node for node in cluster.nodes if node is not older)
        neighbour = next(shard for shard in range(SHARDS) if shard != 3 and masters[shard] is older)
        claimed, other = queue_in(3), queue_in(neighbour)
        server = started(start_server, cluster)
        with server.client() as client:
            assert [client.rpush(queue, "before") for queue in (claimed, other)] == [1, 1]
            for node in (newer, third):
                await older.command("CLUSTER", "FORGET", node.identity)
                await node.command("CLUSTER", "FORGET", older.identity)
            await newer.command("CLUSTER", "ADDSLOTS", slot)
            await newer.command("CLUSTER", "BUMPEPOCH")
            assert [client.rpush(queue, "between") for queue in (claimed, other)] == [2, 2]
            used = processor_seconds(server)
            await cluster.meet(newer, older)

            async def agree() -> bool:
                views = await older.views()
                return any(view.identity == newer.identity and slot in view.slots for view in views)

            await wait_until(agree, "the older node to hear of the newer one")
            assert [client.rpush(queue, "after") for queue in (claimed, other)] == [1, 3]
            used = processor_seconds(server) - used
            print(f"{used:.2f} s of processor time")
            assert used < USED
        server.stop()
        (moved,) = re.findall(r"shard 3 is on \S+ now, no longer on \S+", server.log)
        assert re.findall(r"\d{4,}", moved) == [str(newer.port), str(older.port)]
        assert server.log.count("backend shard 3 lacks the last 2 calls that it had answered") == 1


async def test_shards_whose_node_refuses_all_scripts_are_not_ready(
    start_server: StartServer, tmp_path: Path
) -> None:
    """After a cross-slot command in a script, Valkey 9.1.2 refuses all scripts until it is restarted."""
    async with Cluster(tmp_path, engine=Engine.VALKEY, full_coverage=False) as cluster:
        server = started(start_server, cluster, "--proxy-timeout", "1")
        masters = [await cluster.master_of(prefix) for prefix in PLACEMENT.prefixes]
        refusing = [shard for shard in range(SHARDS) if masters[shard] is masters[0]]
        script = "return redis.call('MGET', ARGV[1], ARGV[2])"
        with direct_to(masters[0]) as direct, server.client() as client:
            for _ in range(2):
                with pytest.raises(redis.ResponseError, match="non local key"):
                    direct.eval(script, 0, *(PLACEMENT.prefixes[shard] for shard in refusing[:2]))

            def not_ready() -> list[int]:
                lines = client.info("backend")
                return [shard for shard in range(SHARDS) if lines[f"shard_{shard}"]["status"] == "down"]

            wait_for(lambda: not_ready() == refusing, "the shards of the node not to be ready")
            assert client.execute_command("PRESSURE.READY")
            assert server.log.count("refuses this server's heartbeat, so it is not ready") == len(refusing)
            for shard in refusing:
                with pytest.raises(redis.ResponseError, match="non local key"):
                    client.sadd(queue_in(shard), "a")
            assert all(client.sadd(queue_in(shard), "a") for shard in set(range(SHARDS)) - {*refusing})
            masters[0].kill()
            await masters[0].start()
            wait_for(lambda: not not_ready(), "the shards to be ready")
            assert client.sadd(queue_in(refusing[0]), "a") == 1


def _check_commands_of_the_shell(backend: str, away: str, there: str) -> None:
    """Check what the commands say of queues that are away, and of others."""
    for words, status, shown, error in (
        (("queues",), 1, there, "queues are missing: shard 0 is away: "),
        (("doctor", "--wait", "0.1"), 2, "no problems", "queues are missing: shard 0 is away: "),
        (("doctor", "--wait", "0.1", away), 2, "", "shard 0 is away: "),
        (("where", there), 0, "prefix ", ""),
        (("where", away), 1, "", "shard 0 is away: "),
    ):
        told = run_command(*words, "--backend", backend)
        assert (told.returncode, bool(told.stdout)) == (status, bool(shown)), words
        assert shown in told.stdout
        assert away not in told.stdout
        assert error in told.stderr


async def test_with_a_dead_master_the_server_is_ready_and_the_survey_goes_on(
    start_server: StartServer, tmp_path: Path
) -> None:
    async with Cluster(tmp_path, full_coverage=False) as cluster:
        server = started(start_server, cluster, "--backend-grace", "0.5")
        masters = [await cluster.master_of(prefix) for prefix in PLACEMENT.prefixes]
        # Not the last ones: what follows them is still looked at.
        dead = masters[0]
        alive = [shard for shard in range(SHARDS) if masters[shard] is not dead]
        waits = [f"{{{queue_in(shard)}}}waits" for shard in (0, alive[0])]
        with server.client() as client, Waiter(server.port) as waiter, Waiter(server.port) as waiting:
            # Long before the kill: the waiting client has no call in flight then.
            waiting.send("BLPOP", *waits, 0)
            wait_for_blocked(client, 1)
            for queue in queue_in_each():
                client.sadd(queue, "a")
            wait_for(lambda: messages_counted(server) == SHARDS, "the survey to see all queues")
            dead.kill()
            # Of a put that was under way it is not known whether it has been done.
            wait_for(
                lambda: str(waiter("SADD", queue_in(0), "b")).startswith("BACKEND shard 0 is away"),
                "the server to give up",
            )
            assert client.execute_command("PRESSURE.READY")
            for shard in alive:
                assert client.sadd(queue_in(shard), "b") == 1
            client.rpush(waits[1], "m")
            assert waiting.reply() == [waits[1].encode(), b"m"]
            # Commands on several queues do not wait for those that are away.
            both = queue_in(0), queue_in(alive[0])
            for words in (("BLPOP", *both, 0), ("LMPOP", 2, *both, "LEFT"), ("PRESSURE.RESERVE", *both)):
                client.sadd(both[1], "c")
                assert both[1].encode() in waiter(*words), words
            waiter("PRESSURE.ACK", both[1], 1)
            client.delete(both[1])
            client.sadd(both[1], "a", "b")
            # The queues of the dead master keep their figures.
            wait_for(lambda: messages_counted(server) == SHARDS + len(alive), "the survey to see the puts")
            up = re.findall(r'pressure_shard_up\{[^}]*shard="(\d+)"[^}]*\} 1\.0', metrics(server))
            assert sorted(map(int, up)) == alive
            # INFO and stats do not wait either. They count the queues of the other shards.
            about = client.info("everything")
            assert about["shard_0"]["status"] == "down"
            there = len([*alive, waits[1]])
            assert about["queues"] == about["queues_listed"] == about["db0"]["keys"] == there
            assert not about["queues_complete"]
            with Wire(BEANSTALK, server) as beanstalk:
                beanstalk.send(b"stats\r\n")
                lines = beanstalk.exactly(int(beanstalk.line().split()[1]))
                assert b"\ncurrent-jobs-ready: %d\n" % (2 * len(alive)) in lines
            _check_commands_of_the_shell(url_of(cluster), queue_in(0), queue_in(alive[0]))
            # Commands on all queues need all shards.
            assert is_refused(waiter("DBSIZE"), "BACKEND")
            assert waiter("PING") in ("PONG", b"PONG")
            waiting.send("BLPOP", *waits, 0)
            wait_for_blocked(client, 1)
            await dead.start()
            wait_for(lambda: not is_refused(waiter("DBSIZE"), "BACKEND"), "the shards to be back")
            client.rpush(waits[0], "n")
            assert waiting.reply() == [waits[0].encode(), b"n"]


def metrics(server: Server) -> str:
    return request(server, "/metrics").text


def messages_counted(server: Server) -> float:
    """Return the number of messages in all queues, as the metrics have it."""
    found = re.findall(r"^pressure_messages(?:\{[^}]*\})? ([\d.]+)$", metrics(server), re.MULTILINE)
    return sum(map(float, found))
