"""Shards: a server whose queues are spread over the masters of a cluster, as its clients see it."""

import asyncio
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from pressure_server.client import Queue
from tests.support.beanstalk_wire import Beanstalk
from tests.support.cluster import Cluster
from tests.support.guards import reload
from tests.support.http_requests import request
from tests.support.native import NativeClient
from tests.support.nodes import LOCAL
from tests.support.ports import free_ports
from tests.support.programs import (
    Client,
    Server,
    StartServer,
    StartValkey,
    join,
    refused_start,
    run_command,
    wait_for,
)
from tests.support.sharded import (
    LISTENERS,
    PLACEMENT,
    SHARDS,
    direct_to,
    keys_of_queues,
    node_with,
    on_each,
    queue_in,
    queue_in_each,
    server_on,
    url_of,
)
from tests.support.waiters import Waiter, about, create, is_refused, wait_for_blocked, wait_for_waiting

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def sharing(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the cluster, for all tests that stop nothing."""
    started = server_on(cluster, tmp_path_factory.mktemp("server") / "log")
    yield started
    started.end_well()


@pytest.fixture
def server(cluster: Cluster, sharing: Server) -> Iterator[Server]:
    """That server, without queues. Each test must leave nothing but queues."""
    yield sharing
    with sharing.client() as client:
        wait_for(lambda: client.info("clients")["blocked_clients"] == 0, "blocked clients to go")
        client.flushall()
    assert not keys_of_queues(cluster)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as connected:
        yield connected


def test_puts_in_all_shards_create_queues_with_the_settings_of_the_file(
    cluster: Cluster, server: Server, tmp_path: Path
) -> None:
    config = tmp_path / "pressure.toml"
    config.write_text(
        "[queues.'q-*']\nbound = 9\n[queues.'{a}:*']\nmax-deliveries = 1\ndead-letter = '{a}failed'"
    )
    other = server_on(cluster, tmp_path / "log", "--config", str(config))
    with other.client() as client:
        for queue in (*queue_in_each(), "{a}:1"):
            client.rpush(queue, "m")
        assert {about(client, queue)[b"bound"] for queue in queue_in_each()} == {9}
        assert about(client, "{a}:1")[b"dead_letter"] == b"{a}failed"
        config.write_text("[queues.'q-*']\nmax-deliveries = 1\ndead-letter = 'failed'")
        reload(other, "settings of queues stay in force")
        done = run_command("queues", "apply", "--config", str(config), "--backend", url_of(cluster))
        assert done.returncode == 1
        assert "dead-letter none -> failed, refused: " in done.stdout
        client.rpush("after", "m")
        assert about(client, "after")[b"template"] == b""
    assert other.stop() == 0


def test_sets_and_lists_in_200_queues(client: Client) -> None:
    """All replies to pipelines are checked."""
    names = [f"queue-{number}" for number in range(200)]
    assert {PLACEMENT.shard_of(name.encode()) for name in names} == set(range(SHARDS))
    for name in names:
        client.sadd(name, f"{name}-a", "b")
    for words, replies in {
        ("SCARD",): [2] * 200,
        ("SISMEMBER", "b"): [1] * 200,
        ("SPOP",): [f"{name}-a".encode() for name in names],
        ("SREM", "b"): [1] * 200,
        ("RPUSH", "1", "2", "3"): [3] * 200,
        ("LRANGE", 0, -1): [[b"1", b"2", b"3"]] * 200,
        ("LPOP",): [b"1"] * 200,
        ("LLEN",): [2] * 200,
        ("TYPE",): [b"set"] * 200,
    }.items():
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.execute_command(words[0], name, *words[1:])
        assert pipeline.execute() == replies, words
    assert client.exists(*names, names[0]) == 201
    assert client.delete(*names[:100], names[0], "none") == 100
    assert client.exists(*names) == 100


def test_reads_of_sets_in_different_shards_are_joined(client: Client) -> None:
    names = queue_in_each()
    for number, name in enumerate(names):
        client.sadd(name, "common", f"own-{number}")
    assert client.sunion(names) == {b"common", *(b"own-%d" % number for number in range(SHARDS))}
    assert client.sinter(names) == {b"common"}
    assert client.sinter([*names, names[0]]) == {b"common"}
    assert client.sdiff([names[0], *names[2:]]) == {b"own-0"}
    assert client.sintercard(SHARDS, names) == 1


def test_pops_take_from_the_first_queue_that_has_messages(client: Client) -> None:
    names = queue_in_each()
    assert client.blpop(names, 0.05) is None
    assert client.execute_command("PRESSURE.RESERVE", *queue_in_each("job"), "TIMEOUT", "0.05") is None
    assert not client.info("clients")["blocked_clients"]
    client.rpush(names[7], "a", "b", "c")
    client.rpush(names[9], "d")
    client.rpush(names[15], "e")
    assert client.lmpop(SHARDS, *names, direction="LEFT", count=2) == [names[7].encode(), [b"a", b"b"]]
    assert client.blmpop(1, SHARDS, *names, direction="RIGHT", count=9) == [names[7].encode(), [b"c"]]
    assert client.blpop(names, 1) == (names[9].encode(), b"d")
    assert client.brpop(names, 1) == (names[15].encode(), b"e")
    assert client.exists(*names) == 3


def test_messages_in_all_shards_at_the_same_time_end_a_wait_once(server: Server, client: Client) -> None:
    names = queue_in_each()
    with Waiter(server.port) as waiter:
        for turn in range(20):
            waiter.send("BLPOP", *names, 0)
            # Before, at, or after the beginning of the wait.
            if turn % 2:
                wait_for_blocked(client, 1)
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.rpush(name, "message")
            pipeline.execute()
            taken, message = waiter.reply()
            assert message == b"message"
            wait_for(lambda: sum(client.llen(name) for name in names) == SHARDS - 1, "what goes back")
            assert client.llen(taken) == 0
            for name in names:
                client.delete(name)


@pytest.mark.parametrize("priorities", [7, 0], ids=["different", "equal"])
def test_a_reserve_gets_the_best_job_of_all_shards_and_of_equal_ones_the_oldest(
    client: Client, priorities: int
) -> None:
    names = queue_in_each("job")
    order = random.Random(1).sample(range(SHARDS), SHARDS)
    for number in order:
        create(client, names[number], "TYPE", "JOBS")
        words = (names[number], f"job {number}", "PRIORITY", number * priorities % SHARDS)
        client.execute_command("PRESSURE.PUT", *words)
    for number in sorted(order, key=lambda number: number * priorities % SHARDS):
        name, _, message, *_ = client.execute_command("PRESSURE.RESERVE", *names)
        assert (name, message) == (names[number].encode(), b"job %d" % number)
    assert client.execute_command("PRESSURE.RESERVE", *names) is None


def test_beanstalk_reserves_from_tubes_in_all_shards(server: Server, client: Client) -> None:
    tubes = queue_in_each("tube")
    with Beanstalk(server) as producer, Beanstalk(server) as worker:
        for tube in tubes:
            worker(f"watch {tube}")
        worker("ignore default")

        def put(tube: str) -> int:
            producer(f"use {tube}")
            reply = producer("put 10 0 60", tube.encode())
            return int(reply.removeprefix(b"INSERTED "))

        for turn, tube in enumerate(tubes * 2):
            job = None
            if turn % 2:
                job = put(tube)  # before the reserve
            worker.socket.sendall(b"reserve\r\n")
            if turn % 4 == 2:
                wait_for_blocked(client, 1)
            # Else it comes while the reserve begins.
            if job is None:
                job = put(tube)
            assert worker._stream.readline() == b"RESERVED %d %d\r\n" % (job, len(tube))
            assert worker._stream.readline() == tube.encode() + b"\r\n"
            assert worker(f"delete {job}") == b"DELETED"
        assert worker("reserve-with-timeout 0") == b"TIMED_OUT"


def test_job_ids_are_unique_over_all_shards(client: Client) -> None:
    names = queue_in_each("job")
    ids = []
    for name in names:
        create(client, name, "TYPE", "JOBS")
        pipeline = client.pipeline(transaction=False)
        for _ in range(70):  # more than a block
            pipeline.execute_command("PRESSURE.PUT", name, "job", "PRIORITY", 1)
        ids += pipeline.execute()
    assert len(set(ids)) == len(ids) == 70 * SHARDS
    assert all((job - 1) // 64 % SHARDS == number // 70 for number, job in enumerate(ids))


def test_beanstalk_finds_jobs_of_all_shards_by_their_ids(server: Server) -> None:
    tubes = queue_in_each("tube")
    jobs: dict[int, bytes] = {}
    with Beanstalk(server) as one:
        for tube in tubes:
            one(f"use {tube}")
            for _ in range(3):
                body = b"%b %d" % (tube.encode(), len(jobs))
                jobs[int(one("put 1 0 60", body).removeprefix(b"INSERTED "))] = body
    assert len(jobs) == 3 * SHARDS
    with Beanstalk(server) as other:  # it knows no tube
        for turn, (job, body) in enumerate(jobs.items()):
            assert other(f"peek {job}") == (job, body)
            if turn % 3:
                assert other(f"reserve-job {job}") == (job, body)
            for command, reply in (
                (("delete {}", b"DELETED"), ("peek {}", b"NOT_FOUND")),
                (("touch {}", b"TOUCHED"), ("bury {} 1", b"BURIED"), ("kick-job {}", b"KICKED")),
                (("release {} 5 0", b"RELEASED"), ("delete {}", b"DELETED"), ("peek {}", b"NOT_FOUND")),
            )[turn % 3]:
                assert other(command.format(job)) == reply
        assert other("peek 999999") == b"NOT_FOUND"


def test_jobs_are_found_by_their_ids_after_somebody_has_emptied_the_nodes(
    cluster: Cluster, server: Server
) -> None:
    for _ in range(2):
        with Beanstalk(server) as connection:
            jobs: list[bytes] = []
            for tube in queue_in_each("tube"):
                connection(f"use {tube}")
                jobs.append(connection("put 1 0 60", b"a").removeprefix(b"INSERTED "))
            assert len(set(jobs)) == SHARDS
            for job in jobs:
                assert connection(f"delete {job.decode()}") == b"DELETED"
        on_each(cluster, lambda direct: direct.flushall())


def test_scan_keys_and_dbsize_have_the_queues_of_all_shards(client: Client) -> None:
    names = {f"queue-{number}".encode() for number in range(150)}
    for name in names:
        client.sadd(name, "a")
    assert client.dbsize() == 150
    assert sorted(client.keys("*")) == sorted(names)
    assert sorted(client.keys("queue-1?")) == sorted(b"queue-1%d" % number for number in range(10))
    for count in (1, 3, 100, 1000):
        assert Counter(client.scan_iter(count=count)) == Counter(names)
    assert set(client.scan_iter("queue-2*", count=2)) == {n for n in names if n.startswith(b"queue-2")}
    assert client.randomkey() in names
    client.flushdb()
    assert client.dbsize() == 0


def test_flushdb_deletes_the_queues_of_all_shards_and_no_other_keys(cluster: Cluster, client: Client) -> None:
    for name in queue_in_each():
        client.sadd(name, "a")
    for number, name in enumerate(queue_in_each("job")):
        create(client, name, "TYPE", ["JOBS", "LOG", "LIFO"][number % 3])
        client.execute_command("PRESSURE.PUT", name, "job")
    other = "{x}other"
    with direct_to(asyncio.run(cluster.master_of(other))) as direct:
        direct.set(other, "stays")
    client.flushdb()
    assert client.dbsize() == 0
    assert not keys_of_queues(cluster)
    with direct_to(asyncio.run(cluster.master_of(other))) as direct:
        assert direct.getdel(other) == b"stays"


A, B = queue_in(1, "a"), queue_in(2, "b")
REFUSED = f"""
SMOVE {A} {B} 1|LMOVE {A} {B} LEFT LEFT|RPOPLPUSH {A} {B}|BLMOVE {A} {B} LEFT LEFT 0|BRPOPLPUSH {A} {B} 0
SUNIONSTORE {A} {A} {B}|SINTERSTORE {B} {A} {A}|SDIFFSTORE {A} {B} {A}|WATCH {A} {B}
PRESSURE.CREATE {A}j TYPE JOBS MAX-DELIVERIES 3 DEAD-LETTER {B}
PRESSURE.ALTER {A} MAX-DELIVERIES 3 DEAD-LETTER {B}
"""


def state_of(cluster: Cluster) -> dict[bytes, bytes]:
    """Return all keys of queues, with what they hold."""
    state: dict[bytes, bytes] = {}

    def dump(direct: Any) -> None:
        state.update({key: direct.dump(key) for key in direct.keys("*") if b"}:" in key})

    on_each(cluster, dump)
    return state


@pytest.mark.parametrize("line", REFUSED.strip().replace("\n", "|").split("|"))
def test_what_spans_shards_is_refused_and_does_nothing(
    cluster: Cluster, server: Server, client: Client, line: str
) -> None:
    create(client, A, "TYPE", "JOBS")
    client.sadd(A, "1", "2")
    client.sadd(B, "2", "3")
    before = state_of(cluster)
    with Waiter(server.port) as waiter:
        reply = waiter(*line.split())
        assert is_refused(reply, "CROSSSLOT")
        assert "are in different shards: give both the same {tag} in their names" in str(reply)
        assert waiter("SCARD", A) == 2
    assert state_of(cluster) == before


def test_a_transaction_over_shards_is_refused_and_does_nothing(
    cluster: Cluster, server: Server, client: Client
) -> None:
    client.sadd(A, "1")
    before = state_of(cluster)
    with Waiter(server.port) as waiter:
        waiter("MULTI")
        waiter("SADD", A, "2")
        waiter("SPOP", A)
        waiter("SADD", B, "2")
        assert is_refused(waiter("EXEC"), "CROSSSLOT")
        assert waiter("SCARD", A) == 1
        waiter("WATCH", B)
        waiter("MULTI")
        waiter("SADD", A, "2")
        assert is_refused(waiter("EXEC"), "CROSSSLOT")
        # The connection goes on, and no longer watches.
        waiter("MULTI")
        waiter("SCARD", A)
        assert waiter("EXEC") == [1]
    assert state_of(cluster) == before


@pytest.mark.parametrize("group", ["g", "{b}", "x+{y}"])
def test_groups_are_with_their_log(client: Client, group: str) -> None:
    log = queue_in(3, "log")
    create(client, log, "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", log, group)
    for number in range(3):
        client.execute_command("PRESSURE.PUT", log, f"message {number}")
    read = client.execute_command("PRESSURE.READ", log, "GROUP", group, "me", "COUNT", 10)
    assert len(read) == 3
    (found,) = client.execute_command("PRESSURE.GROUP", "LIST", log)
    described = found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
    assert (described[b"name"], described[b"pending"]) == (group.encode(), 3)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (["--shards", "8"], "are in 16 shards, not in 8: set --shards 16, or another --prefix"),
        (["--backend", "{url}/3"], "a cluster has only database 0"),
        (
            ["--listen", "memcached://127.0.0.1:0?mode=kv"],
            "values are kept on one node, and the backend is a cluster: use mode=queue",
        ),
    ],
)
def test_options_that_do_not_fit_the_cluster_are_refused(
    cluster: Cluster, server: Server, options: list[str], refusal: str
) -> None:
    url = url_of(cluster)
    refused = run_command("serve", "--backend", url, *(option.format(url=url) for option in options))
    assert refused.returncode in (1, 2)
    assert refusal in refused.stderr


def test_with_another_prefix_another_number_of_shards_is_used(
    cluster: Cluster, start_server: StartServer
) -> None:
    options = ("--backend", url_of(cluster), "--prefix", "other", "--shards", "3")
    started = start_server(*options)
    with started.client() as client:
        client.sadd("a", "1")
        client.flushall()
    started.end_well()
    assert "are in 3 shards, not in 16" in refused_start("--backend", url_of(cluster), "--prefix", "other")
    for command in ("queues", "doctor"):
        looked = run_command(command, *options[:-1], "4")
        assert looked.returncode != 0
        assert "are in 3 shards, not in 4" in looked.stderr


def test_a_single_backend_given_as_a_cluster_is_refused(start_valkey: StartValkey) -> None:
    (port,) = free_ports(1)
    start_valkey("--port", str(port), "--bind", LOCAL)
    refused = refused_start("--backend", f"redis+cluster://127.0.0.1:{port}")
    assert "is no node of a cluster: give it as redis://" in refused


def test_reports_know_the_queues_of_all_shards(cluster: Cluster, server: Server, client: Client) -> None:
    names = queue_in_each()
    for name in names:
        client.sadd(name, "a", "b")
    assert client.info("limits")["queues"] == SHARDS
    with pytest.raises(redis.ResponseError, match="DB index is out of range"):
        client.execute_command("SELECT", 1)
    options = ("--backend", url_of(cluster))
    listed = run_command("queues", *options)
    assert listed.returncode == 0, listed.stderr
    assert sorted(line.split()[0] for line in listed.stdout.splitlines()[1:]) == sorted(names)
    looked = run_command("doctor", "--wait", "0.2", *options)
    assert (looked.returncode, looked.stdout) == (0, f"{SHARDS} queues checked: no problems\n")
    where = run_command("where", names[3], *options)
    assert where.stdout == (
        f"prefix {PLACEMENT.prefixes[3].decode()}: on redis://127.0.0.1:{node_with(cluster, names[3]).port}\n"
    )
    counted = f'pressure_queues{{type="fifo"}} {SHARDS}.0'
    wait_for(lambda: counted in request(server, "/metrics").text, "a round of the survey")
    up = re.findall(r"^pressure_shard_up\{.*\} 1\.0$", request(server, "/metrics").text, re.MULTILINE)
    assert len(up) == SHARDS


def test_two_servers_share_all_shards(cluster: Cluster, server: Server, start_server: StartServer) -> None:
    other = start_server("--backend", url_of(cluster), *LISTENERS)
    names = queue_in_each()
    with server.client() as one, other.client() as two, Waiter(other.port) as waiter:
        for name in names:
            for putting in (one, two):
                waiter.send("BLPOP", *names, 0)
                wait_for_blocked(two, 1)
                putting.rpush(name, "message")
                assert waiter.reply() == [name.encode(), b"message"]
            two.rpush(name, "back")
            assert one.lpop(name) == b"back"
        with Beanstalk(server) as here, Beanstalk(other) as there:
            for name in queue_in_each("tube"):
                here(f"use {name}")
                job = int(here("put 1 0 60", b"x").removeprefix(b"INSERTED "))
                assert there(f"peek {job}") == (job, b"x")
                assert there(f"delete {job}") == b"DELETED"
        wait_for(lambda: one.info("backend")["other_servers"] == 1, "the servers to know each other")
    other.end_well()


def test_native_clients_use_a_queue_with_the_prefix_of_its_shard(
    cluster: Cluster, server: Server, client: Client
) -> None:
    for shard in (0, 6, 11):
        name = queue_in(shard, "native")
        create(client, name, "BOUND", 2)
        prefix = about(client, name)[b"prefix"].decode()
        assert prefix.encode() == PLACEMENT.prefixes[shard]
        node = node_with(cluster, name)
        library = Queue(name, f"redis://{node.host}:{node.port}", prefix=prefix)
        library.put(b"1", timeout=5)
        client.rpush(name, "2")
        assert library.get(timeout=5) == b"1"
        with direct_to(node) as direct:
            native = NativeClient(direct, name, prefix=prefix)
            assert native.get() == b"2"
            with Waiter(server.port) as waiter:
                waiter.send("BLPOP", name, queue_in(shard + 1), 0)
                wait_for_waiting(client, name, consumers=1)
                native.put(b"3")
                assert waiter.reply() == [name.encode(), b"3"]
            client.rpush(name, "4", "5")
            full = threading.Thread(target=native.put, args=(b"6",))
            full.start()
            assert client.lpop(name) == b"4"
            join(full)
            assert client.lrange(name, 0, -1) == [b"5", b"6"]
        library.delete()
        assert not client.exists(name)
