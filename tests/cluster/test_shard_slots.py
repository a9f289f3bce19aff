"""Slots: no script of a server touches a key outside the slot of the keys that it declares.

A cluster moves each slot by itself. A script that leaves its slot works as long as both slots are on one
node, and fails half way after a move. Redis refuses a function of a library that does so, which makes the
workload fail; it lets other scripts do so, and MONITOR shows what each of them does.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.beanstalk_wire import Beanstalk
from tests.support.cluster import Cluster
from tests.support.http_requests import request
from tests.support.memcached_wire import MemcachedWire
from tests.support.programs import Client, Server, run_command, wait_for
from tests.support.sharded import (
    PLACEMENT,
    Call,
    base_of,
    calls_in,
    direct_to,
    faults_in,
    node_with,
    queue_in,
    queue_in_each,
    server_on,
    url_of,
    watched,
)
from tests.support.waiters import Waiter, wait_for_blocked

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters of Debian's Redis."""
    with Cluster(tmp_path_factory.mktemp("cluster")).started() as made:
        yield made


def use_sets_and_lists(server: Server, client: Client) -> None:
    names = queue_in_each()
    for name in names:
        client.sadd(name, "a", "b", "a")
        client.rpush(name, *range(20))
        client.srem(name, "a")
        client.sismember(name, "b")
        client.lrange(name, 0, -1)
        client.lrem(name, 1, "3")
        client.execute_command("PRESSURE.PUT", name, "x", "NX")
        client.execute_command("PRESSURE.GET", name, "NOWAIT")
        client.execute_command("PRESSURE.INFO", name)
        client.lpop(name, 2)
        client.memory_usage(name)
        client.object("idletime", name)
    client.sunion(names)
    with Waiter(server.port) as waiter:
        waiter.send("BLPOP", "w-1", "w-2", "w-3", 0)
        wait_for_blocked(client, 1)
        client.rpush("w-2", "message")
        assert waiter.reply() == [b"w-2", b"message"]


def use_queues_of_all_types(client: Client) -> None:
    for shard, kind in enumerate(("FIFO", "LIFO", "RANDOM", "JOBS", "LOG", "FIFO")):
        name = queue_in(shard, kind.lower())
        client.execute_command("PRESSURE.CREATE", name, "TYPE", kind, "BOUND", 50, "OVERFLOW", "OVERWRITE")
        for number in range(60):
            client.execute_command("PRESSURE.PUT", name, f"message {number}")
        client.execute_command("PRESSURE.ALTER", name, "BOUND", 20)
        client.execute_command("PRESSURE.ALTER", name, "MAX-BYTES", 100)
        client.execute_command("PRESSURE.LENGTH", name)
    unique = queue_in(9, "unique")
    client.execute_command("PRESSURE.CREATE", unique, "UNIQUE", "QUEUED")
    client.sadd(unique, "a", "a", "b")
    client.spop(unique, 5)
    client.execute_command("PRESSURE.CLOSE", unique)


def use_jobs(client: Client) -> None:
    names = queue_in_each("job")
    for name in names:
        client.execute_command("PRESSURE.CREATE", name, "TYPE", "JOBS")
        client.execute_command("PRESSURE.PUT", name, "delayed", "DELAY", "0.05")
        for priority in (3, 1, 2):
            client.execute_command("PRESSURE.PUT", name, "job", "PRIORITY", priority)
        client.execute_command("PRESSURE.PEEK", name, "READY")
    for verb, *words in (("ACK",), ("TOUCH",), ("RELEASE", "DELAY", "0.05"), ("BURY",)):
        for _ in names:
            queue, job, *_ = client.execute_command("PRESSURE.RESERVE", *names, "TIMEOUT", 20, "TTR", 60)
            client.execute_command(f"PRESSURE.{verb}", queue, job, *words)
    for name in names:
        client.execute_command("PRESSURE.KICK", name, 5)
        client.execute_command("PRESSURE.PAUSE", name, "0.01")
    short, dead = "{dead}short", "{dead}letters"
    client.execute_command("PRESSURE.CREATE", short, "TYPE", "JOBS", "MAX-DELIVERIES", 1, "DEAD-LETTER", dead)
    client.execute_command("PRESSURE.PUT", short, "job", "TTR", "0.1")
    client.execute_command("PRESSURE.RESERVE", short, "TTR", "0.05")
    wait_for(lambda: client.scard(dead) == 1, "the dead letter")
    client.execute_command("PRESSURE.PURGE", names[0])


def use_logs(client: Client) -> None:
    for shard in (2, 7):
        log = queue_in(shard, "log")
        client.execute_command("PRESSURE.CREATE", log, "TYPE", "LOG")
        for group in ("g", "{h}"):
            client.execute_command("PRESSURE.GROUP", "CREATE", log, group)
            for number in range(5):
                client.execute_command("PRESSURE.PUT", log, f"message {number}")
            client.execute_command("PRESSURE.READ", log, "GROUP", group, "me", "COUNT", 3)
            client.spop(f"{log}+{group}")
            client.execute_command("PRESSURE.RESERVE", f"{log}+{group}", "other")
            client.execute_command("PRESSURE.GROUP", "SEEK", log, group, "FROM", 2)
            client.execute_command("PRESSURE.GROUP", "LIST", log)
        client.execute_command("PRESSURE.AT", log, 1, "COUNT", 2)
        client.execute_command("PRESSURE.GROUP", "DELETE", log, "g")


def use_one_shard_for_several_queues(client: Client) -> None:
    a, b, c = "{t}a", "{t}b", "{t}c"
    client.sadd(a, "1", "2", "3")
    client.smove(a, b, "1")
    client.lmove(a, b, "LEFT", "RIGHT")
    client.sunionstore(c, a, b)
    pipeline = client.pipeline()
    pipeline.watch(a)
    pipeline.multi()
    pipeline.sadd(b, "4")
    pipeline.spop(a)
    pipeline.delete(c)
    pipeline.execute()


def use_other_protocols(server: Server) -> None:
    with Beanstalk(server) as beanstalk, MemcachedWire(server) as memcached:
        for number, tube in enumerate(queue_in_each("tube")):
            beanstalk(f"use {tube}")
            beanstalk(f"watch {tube}")
            assert beanstalk(f"put {number} 0 60", b"job").startswith(b"INSERTED ")
            memcached.store(tube.encode() + b"m", b"message")
            memcached.get(tube.encode() + b"m")
        for number in range(16):
            job, _ = beanstalk("reserve-with-timeout 5")
            beanstalk(f"peek {job}")
            beanstalk(f"{'delete' if number % 2 else 'release'} {job}" + ("" if number % 2 else " 9 0"))
        beanstalk("pause-tube default 1")


def use_commands_of_operators(cluster: Cluster, server: Server, client: Client) -> None:
    broken = queue_in(5, "broken")
    client.sadd(broken, "a")
    with direct_to(node_with(cluster, broken)) as direct:
        direct.set(f"{base_of(broken)}:stats:produced_messages", "abc")
    where = ("--backend", url_of(cluster))
    run_command("doctor", "--repair", "--wait", "0.1", *where)
    run_command("queues", *where)
    wait_for(lambda: b"pressure_queues{" in request(server, "/metrics").body, "a round of the survey")
    client.delete(*client.keys("q-*"))
    client.flushall()


def let_queues_expire(cluster: Cluster, log: Path) -> None:
    expiring = server_on(cluster, log, "--implicit-queue-ttl", "0.2")
    names = queue_in_each("unused")
    with expiring.client() as client:
        for name in names:
            client.sadd(name, "a")
            client.spop(name)
        wait_for(lambda: client.dbsize() == 0, "the queues to expire")
    assert expiring.stop() == 0


def test_no_script_leaves_the_slot_of_its_keys(cluster: Cluster, tmp_path: Path) -> None:
    with watched(cluster) as calls:
        options = ("--proxy-timeout", "1")
        server, other = (server_on(cluster, tmp_path / f"log-{n}", *options) for n in range(2))
        with server.client() as client:
            use_sets_and_lists(server, client)
            use_queues_of_all_types(client)
            use_jobs(client)
            use_logs(client)
            use_one_shard_for_several_queues(client)
            use_other_protocols(server)
            # A server dies with a job reserved in each shard; its peer puts them back.
            with other.client() as doomed:
                for name in queue_in_each("rescued"):
                    doomed.rpush(name, "job")
                    assert doomed.execute_command("PRESSURE.RESERVE", name)
                other.process.kill()
                for name in queue_in_each("rescued"):
                    assert client.execute_command("PRESSURE.RESERVE", name, "TIMEOUT", 20)
            use_commands_of_operators(cluster, server, client)
        assert server.stop() == 0
        let_queues_expire(cluster, tmp_path / "expiring")
    assert not faults_in(calls)
    # The workload has really been seen, in all shards.
    functions = {bytes(call.words[1]) for call in calls if call.words[0].upper() == b"FCALL"}
    scripts = {bytes(call.words[1]) for call in calls if call.words[0].upper() != b"FCALL"}
    assert functions
    assert len(scripts) >= 5, scripts
    prefixes = [prefix + b":" for prefix in PLACEMENT.prefixes]
    assert all(any(call.keys[0].startswith(prefix) for call in calls) for prefix in prefixes)
    assert sum(len(call.commands) for call in calls) > 10_000
    # No key is outside the shards.
    assert all(key.startswith(tuple(PLACEMENT.prefixes)) for key in keys_of(cluster))


def keys_of(cluster: Cluster) -> list[bytes]:
    """Return the keys of all nodes."""
    found: list[bytes] = []
    for node in cluster.nodes:
        with direct_to(node) as direct:
            found += direct.keys("*")
    return found


def test_a_script_that_leaves_its_slot_is_found(cluster: Cluster) -> None:
    """The check can fail: Redis itself does not refuse such a script."""
    ours, *others = PLACEMENT.prefixes
    node = asyncio.run(cluster.master_of(ours))
    neighbour = next(one for one in others if asyncio.run(cluster.master_of(one)) is node)

    def calls_of(first: bytes, other: bytes) -> list[Call]:
        with watched(cluster) as calls, direct_to(node) as direct:
            direct.eval("return redis.call('GET', ARGV[1])", 1, first, other)
        return calls

    assert not faults_in(calls_of(ours + b"!a", ours + b":b"))
    (fault,) = faults_in(calls_of(ours + b"!a", neighbour + b":b"))
    assert "leaves the slot" in fault


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'1.5 [0 lua] "HSET" "__pressure__:{1}:a" "f" "__pressure__:{1}:b"', ""),
        (b'1.5 [0 lua] "HSET" "__pressure__:{1}:a" "f" "__pressure__:{2}:b"', "leaves the slot"),
        (b'1.5 [0 lua] "GET" "__pressure__:{2}:a"', "leaves the slot"),
        (b'1.5 [0 lua] "GET" "__pressure__:a"', "leaves the slot"),
        (b'1.5 [0 lua] "GET" "other"', "has no key of this server"),
        (b'1.5 [0 lua] "TIME"', ""),
    ],
)
def test_the_check_reads_lines_of_monitor(line: bytes, fault: str) -> None:
    call = b'1.0 [0 127.0.0.1:5] "FCALL" "f" "2" "__pressure__:{1}:a" "__pressure__:{1}!g" "\\"a\\" \\x00"'
    found: Any = faults_in(calls_in([call, line]))
    assert (fault in found[0]) if fault else not found
