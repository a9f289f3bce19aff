"""Slots: no script of a server touches a key outside the slot of the keys that it declares.

A cluster moves each slot by itself. A script that leaves its slot works as long as both slots are on one
node, and fails half way after a move. Redis refuses a function of a library that does so, which makes the
workload fail; it lets other scripts do so, and MONITOR shows what each of them does.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.beanstalk_wire import Beanstalk
from tests.support.cluster import Cluster
from tests.support.http_requests import request
from tests.support.memcached_wire import MemcachedWire
from tests.support.programs import Client, Server, records, run_command, wait_for
from tests.support.sharded import (
    PLACEMENT,
    Call,
    base_of,
    calls_in,
    direct_to,
    faults_in,
    node_with,
    on_each,
    queue_in,
    queue_in_each,
    server_on,
    url_of,
    watched,
)
from tests.support.waiters import Waiter, wait_for_blocked

pytestmark = pytest.mark.clients


# Commands on a queue in each shard, {q}.
SETS_AND_LISTS = """
SADD {q} a b a|RPUSH {q} 0 1 2 3 4 5 6 7 8 9|SREM {q} a|SISMEMBER {q} b|LRANGE {q} 0 -1|LREM {q} 1 3
PRESSURE.PUT {q} x NX|PRESSURE.GET {q} NOWAIT|PRESSURE.INFO {q}|LPOP {q} 2|MEMORY USAGE {q}
OBJECT IDLETIME {q}
"""
JOBS = """
PRESSURE.CREATE {q} TYPE JOBS|PRESSURE.PUT {q} delayed DELAY 0.05|PRESSURE.PUT {q} job PRIORITY 3
PRESSURE.PUT {q} job PRIORITY 1|PRESSURE.PUT {q} job PRIORITY 2|PRESSURE.PEEK {q} READY
"""
DONE_JOBS = "PRESSURE.KICK {q} 5|PRESSURE.PAUSE {q} 0.01|PRESSURE.PURGE {q}"
# Commands on a queue of each type.
ALL_TYPES = f"""
PRESSURE.CREATE {{q}} TYPE {{q}} BOUND 50 OVERFLOW OVERWRITE|{"PRESSURE.PUT {q} message|" * 60}
PRESSURE.ALTER {{q}} BOUND 20|PRESSURE.ALTER {{q}} MAX-BYTES 100|PRESSURE.LENGTH {{q}}
"""
# Commands on a log and a group of it.
LOGS = """
PRESSURE.CREATE {q} IF NOT EXISTS TYPE LOG|PRESSURE.GROUP CREATE {q} {g}|RPUSH {q} 1 2 3 4 5
PRESSURE.READ {q} GROUP {g} me COUNT 3|SPOP {q}+{g}|PRESSURE.RESERVE {q}+{g} other
PRESSURE.GROUP SEEK {q} {g} FROM 2|PRESSURE.GROUP LIST {q}|PRESSURE.AT {q} 1 COUNT 2
"""
# Commands on queues of one shard.
ONE_SHARD = """
SADD {t}a 1 2 3|SMOVE {t}a {t}b 1|LMOVE {t}a {t}b LEFT RIGHT|SUNIONSTORE {t}c {t}a {t}b
WATCH {t}a|MULTI|SADD {t}b 4|SPOP {t}a|DEL {t}c|EXEC
PRESSURE.CREATE {u}a UNIQUE QUEUED|SADD {u}a a a b|SPOP {u}a 5|PRESSURE.CLOSE {u}a
PRESSURE.CREATE {d}a TYPE JOBS MAX-DELIVERIES 1 DEAD-LETTER {d}b|PRESSURE.PUT {d}a job TTR 0.1
PRESSURE.RESERVE {d}a TTR 0.05
"""


def do(client: Waiter, lines: str, **names: str) -> None:
    """Do the commands, with these names in them. None may be refused."""
    for line in lines.strip().replace("\n", "|").split("|"):
        for name, value in names.items():
            line = line.replace(f"{{{name}}}", value)
        if line:
            reply = client(*line.split())
            assert not isinstance(reply, Exception), (line, reply)


def use_all_commands(server: Server, client: Client) -> None:
    names, jobs = queue_in_each(), queue_in_each("job")
    with Waiter(server.port) as one:
        for name, job in zip(names, jobs, strict=True):
            do(one, SETS_AND_LISTS, q=name)
            do(one, JOBS, q=job)
        client.sunion(names)
        one.send("BLPOP", "w-1", "w-2", "w-3", 0)
        wait_for_blocked(client, 1)
        client.rpush("w-2", "message")
        assert one.reply() == [b"w-2", b"message"]
        for verb in ("ACK {q} {j}", "TOUCH {q} {j}", "RELEASE {q} {j} DELAY 0.05", "BURY {q} {j}"):
            for _ in jobs:
                queue, job, *_ = one("PRESSURE.RESERVE", *jobs, "TIMEOUT", 20, "TTR", 60)
                do(one, f"PRESSURE.{verb}", q=queue.decode(), j=str(job))
        for name in jobs:
            do(one, DONE_JOBS, q=name)
        for kind in ("FIFO", "LIFO", "RANDOM", "JOBS", "LOG"):
            do(one, ALL_TYPES, q=kind)
        for shard in (2, 7):
            for group in ("g", "{h}"):
                do(one, LOGS, q=queue_in(shard, "log"), g=group)
            do(one, "PRESSURE.GROUP DELETE {q} g", q=queue_in(shard, "log"))
        do(one, ONE_SHARD)
        wait_for(lambda: client.scard("{d}b") == 1, "the dead letter")


def use_other_protocols(server: Server) -> None:
    with Beanstalk(server) as beanstalk, MemcachedWire(server) as memcached:
        for number, tube in enumerate(queue_in_each("tube")):
            beanstalk(f"use {tube}")
            beanstalk(f"watch {tube}")
            assert beanstalk(f"put {number} 0 60", b"job").startswith(b"INSERTED ")
            name = tube.encode() + b"m"
            assert memcached.store(name, b"to " + name) == b"STORED"
            assert memcached.get(name) == b"to " + name
            assert memcached.get(name) is None
            assert memcached(b"delete " + name) == b"DELETED"
        for number in range(16):
            job, _ = beanstalk("reserve-with-timeout 5")
            beanstalk(f"peek {job}")
            beanstalk(f"delete {job}" if number % 2 else f"release {job} 9 0")
        beanstalk("pause-tube default 1")


def has_undelivered(cluster: Cluster) -> bool:
    """Return whether a node has a record of a call; those that begin with j are of no call."""
    found = on_each(cluster, records)
    return any(not field.startswith(b"j") for some in found for _, field in some)


def use_commands_of_operators(cluster: Cluster, server: Server, client: Client) -> None:
    for broken in (queue_in(5, "broken"), queue_in(15, "broken")):
        client.sadd(broken, "a")
        with direct_to(node_with(cluster, broken)) as direct:
            direct.set(f"{base_of(broken)}:stats:produced_messages", "abc")
    where = ("--backend", url_of(cluster))
    wait_for(lambda: not has_undelivered(cluster), "all replies to be acknowledged")
    repaired = run_command("doctor", "--repair", "--wait", "0.1", *where)
    assert repaired.stdout.endswith(" 2 with problems, 2 repaired, 0 not repaired\n"), repaired.stdout
    assert run_command("queues", *where).returncode == 0
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
            use_all_commands(server, client)
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
    keys = [key for keys in on_each(cluster, lambda direct: direct.keys("*")) for key in keys]
    assert all(key.startswith(tuple(PLACEMENT.prefixes)) for key in keys)


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
