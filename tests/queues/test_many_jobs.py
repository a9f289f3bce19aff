"""Thousands of jobs at once: steps are short for the backend, and no job is lost, doubled or out of order."""

import hashlib
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.module_servers import module_server
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, MEMCACHED, Wire
from tests.support.waiters import Waiter, about, create, waiters

# Microseconds that one call of the backend may take on a slow machine.
LONGEST_CALL = 300_000
# An exptime in seconds since 1970 that has passed, for memcached.
EXPIRED = 2_600_000


shared_server = module_server("--listen", "beanstalk://127.0.0.1:0", "--listen", "memcached://127.0.0.1:0")


def messages_of(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def fill(client: Client, queue: str, messages: list[bytes]) -> None:
    for first in range(0, len(messages), 1000):
        client.rpush(queue, *messages[first : first + 1000])


def put_marked(server: Server, queue: str, messages: list[bytes]) -> None:
    """Put messages that expire in 1000 seconds."""
    with Wire(MEMCACHED, server) as wire:
        for first in range(0, len(messages), 1000):
            some = messages[first : first + 1000]
            wire.send(
                b"".join(b"set %b 0 1000 %d\r\n%b\r\n" % (queue.encode(), len(one), one) for one in some)
            )
            assert wire.replies(len(some)) == [b"STORED"] * len(some)


def put(client: Client, queue: str, jobs: list[tuple[bytes, int]], *options: str | float) -> None:
    """Put messages with their priorities."""
    with client.pipeline(transaction=False) as pipeline:
        for message, priority in jobs:
            pipeline.execute_command("PRESSURE.PUT", queue, message, "PRIORITY", priority, *options)
        pipeline.execute()


def reserve(worker: Waiter, queue: str, count: int, *options: str | float) -> list[int]:
    """Reserve `count` jobs of a queue; return their ids."""
    ids: list[int] = []
    while len(ids) < count:
        wanted = min(1000, count - len(ids))
        ids += [job[1] for job in worker("PRESSURE.RESERVE", queue, "COUNT", wanted, *options)]
    return ids


def wait_until_due(direct: Client, queue: str, state: str) -> None:
    """Return when all jobs in that state are due, by the backend's clock."""
    key = f"__pressure__:{queue}:ext:{state}"
    last = direct.zrange(key, -1, -1, withscores=True)[0][1]
    wait_for(lambda: direct.time()[0] * 1000 > last, "the last job to be due")


@contextmanager
def short_calls(direct: Client) -> Iterator[None]:
    """Check that each call of the backend is short meanwhile."""
    direct.config_set("slowlog-log-slower-than", LONGEST_CALL)
    direct.slowlog_reset()
    yield
    assert [entry["duration"] for entry in direct.slowlog_get()] == []


@pytest.mark.alone
@pytest.mark.parametrize("ends", ["leaves", "has no time left"])
def test_all_dead_letters_arrive(client: Client, direct: Client, worker: Waiter, ends: str) -> None:
    create(client, "dead")
    create(client, "q", "TYPE", "jobs", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    sent = messages_of(4000)
    fill(client, "q", sent)
    if ends == "leaves":
        reserve(worker, "q", 4000)
        with short_calls(direct):
            worker.close()
            wait_for(lambda: client.llen("dead") == 4000, "the dead letters")
    else:
        reserve(worker, "q", 4000, "TTR", 1)
        wait_until_due(direct, "q", "reserved")
        with short_calls(direct):
            assert client.llen("q") == 0
        assert client.llen("dead") == 4000
    assert sorted(client.lrange("dead", 0, -1)) == sent
    assert about(client, "q")[b"buried"] == 0


TAKES: dict[str, Callable[[Client], bytes]] = {
    "LPOP": lambda client: client.lpop("q"),
    "PRESSURE.RESERVE": lambda client: client.execute_command("PRESSURE.RESERVE", "q")[2],
    "several queues": lambda client: client.execute_command("PRESSURE.RESERVE", "other", "q")[2],
    "LMOVE": lambda client: client.lmove("q", "other"),
    "EXEC": lambda client: client.pipeline().lpop("q").execute()[0],
}


@pytest.mark.parametrize("how", TAKES)
def test_the_best_of_many_jobs_that_are_due_at_once_is_taken_first(
    client: Client, direct: Client, how: str
) -> None:
    create(client, "other")
    create(client, "q", "TYPE", "jobs")
    order = random.Random(1).sample(range(3000), 3000)
    put(client, "q", [(b"%d" % priority, priority) for priority in order], "DELAY", 0.5)
    wait_until_due(direct, "q", "delayed")
    assert [TAKES[how](client) for _ in range(3)] == [b"0", b"1", b"2"]
    assert client.llen("q") == 2997


def test_a_move_into_a_queue_with_many_native_messages_loses_nothing(client: Client, direct: Client) -> None:
    create(client, "q", "TYPE", "jobs")
    client.rpush("other", "m")
    direct.lpush("__pressure__:q", *messages_of(2500))
    assert client.lmove("other", "q") == b"m"
    assert client.lrange("q", 0, -1) == [*messages_of(2500), b"m"]


@pytest.mark.parametrize("kind", ["jobs", "fifo"])
def test_the_length_has_all_reservations_that_have_ended_at_once(
    client: Client, direct: Client, worker: Waiter, kind: str
) -> None:
    create(client, "q", "TYPE", kind)
    fill(client, "q", messages_of(3000))
    reserve(worker, "q", 3000, "TTR", 1)
    wait_until_due(direct, "q", "reserved")
    assert client.llen("q") == 3000
    assert client.lrange("q", 0, -1) == messages_of(3000)


def test_a_list_with_many_reserved_messages_becomes_one_of_jobs_with_few_commands(
    client: Client, direct: Client, worker: Waiter
) -> None:
    fill(client, "q", messages_of(3000))
    reserve(worker, "q", 3000)
    direct.config_resetstat()
    assert client.execute_command("PRESSURE.PAUSE", "q", 0)
    assert direct.info("commandstats")["cmdstat_hmget"]["calls"] < 100
    found = about(client, "q")
    assert (found[b"reserved"], found[b"produced_bytes"], found[b"consumed_bytes"]) == (3000, 18_000, 0)


def test_a_lifo_shows_the_order_in_which_messages_are_taken(client: Client) -> None:
    create(client, "q", "TYPE", "lifo")
    priority = random.Random(1).randrange
    put(client, "q", [(b"%d" % number, priority(5)) for number in range(60)])
    shown = client.lrange("q", 0, -1)
    assert [client.lindex("q", at) for at in range(60)] == shown
    for first, last in ((0, 0), (3, 17), (20, 44), (59, 70), (60, 70)):
        assert client.lrange("q", first, last) == shown[first : last + 1]
    assert client.smembers("q") == set(shown)
    client.ltrim("q", 5, 49)
    assert client.lrange("q", 0, -1) == shown[5:50]
    assert [client.lpop("q") for _ in range(45)] == shown[5:50]


def test_a_group_that_seeks_reads_each_message_once(client: Client, worker: Waiter) -> None:
    create(client, "q", "TYPE", "log")
    client.execute_command("PRESSURE.GROUP", "CREATE", "q", "group")
    sent = messages_of(3000)
    fill(client, "q", sent)
    ids = reserve(worker, "q+group", 3000)
    for job in ids:
        worker.send("PRESSURE.RELEASE", "q+group", job)
    assert [worker.reply() for _ in ids] == [1] * 3000
    assert client.execute_command("PRESSURE.GROUP", "SEEK", "q", "group", "FROM", "HEAD") == b"OK"
    assert [message for _ in range(3) for message in client.lpop("q+group", 1000)] == sent
    assert client.llen("q+group") == 0


@pytest.mark.alone
@pytest.mark.parametrize("protocol", ["resp", "beanstalk"])
@pytest.mark.parametrize(("asked", "kicked"), [(2500, 2500), (3000, 3000), (9000, 3000), (0, 0)])
def test_a_kick_makes_as_many_jobs_ready_as_asked(
    server: Server, client: Client, direct: Client, worker: Waiter, protocol: str, asked: int, kicked: int
) -> None:
    create(client, "q", "TYPE", "jobs")
    fill(client, "q", messages_of(3000))
    ids = reserve(worker, "q", 3000)
    for job in ids:
        worker.send("PRESSURE.BURY", "q", job)
    assert [worker.reply() for _ in ids] == [1] * 3000
    put(client, "q", [(b"delayed", 1)], "DELAY", 1000)
    with short_calls(direct):
        if protocol == "resp":
            assert client.execute_command("PRESSURE.KICK", "q", asked) == kicked
        else:
            with Wire(BEANSTALK, server) as wire:
                assert wire(b"use q\r\n") == b"USING q"
                assert wire(b"kick %d\r\n" % asked) == b"KICKED %d" % kicked
    found = about(client, "q")
    assert (found[b"ready"], found[b"buried"], found[b"delayed"]) == (kicked, 3000 - kicked, 1)


@pytest.mark.parametrize("kind", ["fifo", "jobs", "lifo", "random"])
def test_expired_messages_make_room(server: Server, client: Client, kind: str) -> None:
    create(client, "q", "TYPE", kind, "BOUND", 1200, "OVERFLOW", "error")
    with Wire(MEMCACHED, server) as wire:
        wire.send(b"set q 0 %d 1\r\nm\r\n" % EXPIRED * 1200)
        assert wire.replies(1200) == [b"STORED"] * 1200
    assert client.rpush("q", "a", "b") > 0
    assert {b"a", b"b"} <= client.smembers("q")


@pytest.mark.alone
def test_equal_messages_with_marks_are_read_in_short_calls(
    server: Server, client: Client, direct: Client
) -> None:
    create(client, "q", "BOUND", 9000, "OVERFLOW", "error")
    create(client, "events", "TYPE", "log")
    client.execute_command("PRESSURE.GROUP", "CREATE", "events", "group")
    with Wire(MEMCACHED, server) as wire:
        for queue, expires in (("q", EXPIRED), ("q", 0), ("q", 1000), ("events", 1000)):
            wire.send(b"set %b 0 %d 1\r\nm\r\n" % (queue.encode(), expires) * 3000)
            assert wire.replies(3000) == [b"STORED"] * 3000
        with short_calls(direct):
            assert wire(b"get q/peek\r\n") == b"VALUE q/peek 0 1\r\nm\r\nEND"
            assert client.rpush("q", "a") > 0
            for _ in range(6):
                assert client.lpop("q", 1000) == [b"m"] * 1000
            for _ in range(3):
                assert client.lpop("events+group", 1000) == [b"m"] * 1000


@pytest.mark.alone
def test_equal_messages_with_marks_far_from_the_head_of_a_log_are_read_in_short_calls(
    server: Server, client: Client, direct: Client
) -> None:
    create(client, "events", "TYPE", "log")
    for group in ("slow", "fast"):
        client.execute_command("PRESSURE.GROUP", "CREATE", "events", group)
    put_marked(server, "events", [b"m"] * 12_000)
    with short_calls(direct):
        for _ in range(12):
            assert client.lpop("events+fast", 1000) == [b"m"] * 1000
        with client.pipeline(transaction=False) as pipeline:
            for offset in range(11_999, 10_999, -1):
                pipeline.execute_command("PRESSURE.AT", "events", offset)
            assert pipeline.execute() == [b"m"] * 1000
        found = client.execute_command("PRESSURE.AT", "events", 11_000, "COUNT", 1000)
        assert found == [b"m"] * 1000


@pytest.mark.alone
@pytest.mark.parametrize(
    ("sent", "removed", "left"),
    [
        ([b"a", b"b"] * 10_000, [b"a"], [b"b"] * 10_000),
        ([one for message in messages_of(3000) for one in (b"m", message)], messages_of(3000), [b"m"] * 3000),
    ],
    ids=["equal", "different"],
)
def test_messages_with_marks_are_removed_from_between_others_in_short_calls(
    server: Server, client: Client, direct: Client, sent: list[bytes], removed: list[bytes], left: list[bytes]
) -> None:
    create(client, "q")
    put_marked(server, "q", sent)
    with short_calls(direct):
        assert client.srem("q", *removed) == len(removed)
        assert client.llen("q") == len(left)
        for first in range(0, len(left), 1000):
            assert client.lpop("q", 1000) == left[first : first + 1000]


@pytest.mark.alone
def test_equal_messages_of_a_client_that_leaves_go_back_in_short_calls(
    client: Client, direct: Client, worker: Waiter
) -> None:
    create(client, "q")
    fill(client, "q", [b"same"] * 12_000)
    reserve(worker, "q", 12_000)
    with short_calls(direct):
        worker.close()
        wait_for(lambda: client.llen("q") == 12_000, "the messages to be back")


@pytest.mark.alone
@pytest.mark.parametrize("options", [("TYPE", "fifo"), ("TYPE", "jobs"), ("ACK", "NEXT")])
def test_a_pop_passes_over_expired_messages_in_short_calls(
    server: Server, client: Client, direct: Client, options: tuple[str, str]
) -> None:
    create(client, "q", *options)
    with Wire(MEMCACHED, server) as wire:
        wire.send(b"set q 0 %d 1\r\nm\r\n" % EXPIRED * 9000 + b"set q 0 0 4\r\nlast\r\n")
        assert wire.replies(9001) == [b"STORED"] * 9001
    with short_calls(direct):
        assert client.lpop("q") == b"last"


@pytest.mark.alone
def test_many_clients_that_wait_are_served_in_short_calls(
    server: Server, client: Client, direct: Client
) -> None:
    with waiters(server, 500) as movers:
        for mover in movers:
            mover.send("BLMOVE", "q", "moved", "LEFT", "RIGHT", 0)
        client.sadd("q", "first")
        assert movers[0].reply() == b"first"
        with short_calls(direct), client.pipeline(transaction=False) as pipeline:
            for message in messages_of(499):
                pipeline.sadd("q", message)
                pipeline.llen("q")
            pipeline.execute()
            assert [mover.reply() for mover in movers[1:]] == messages_of(499)


@pytest.mark.alone
def test_many_clients_that_wait_for_room_are_served_in_short_calls(
    server: Server, client: Client, direct: Client
) -> None:
    create(client, "q", "BOUND", 1)
    client.rpush("q", "first")
    with waiters(server, 200) as putters:
        for number, putter in enumerate(putters):
            putter.send("RPUSH" if number % 2 else "SADD", "q", number)
        wait_for(lambda: about(client, "q")[b"waiting_producers"] == 200, "the clients to wait")
        with short_calls(direct):
            with client.pipeline(transaction=False) as pipeline:
                for _ in range(100):
                    pipeline.lpop("q")
                    pipeline.llen("q")
                taken = pipeline.execute()[::2]
            taken += [client.blpop("q")[1] for _ in range(101 + taken.count(None))]
        assert sorted(filter(None, taken)) == sorted([b"first", *(b"%d" % number for number in range(200))])


@pytest.mark.alone
def test_a_transaction_looks_up_many_messages_in_a_short_call(client: Client, direct: Client) -> None:
    fill(client, "q", messages_of(20_000))
    with short_calls(direct), client.pipeline() as pipeline:
        pipeline.smismember("q", [*messages_of(1000), b"none"])
        pipeline.sadd("q", *messages_of(1000), *(b"new%d" % number for number in range(1000)))
        assert pipeline.execute() == [[1] * 1000 + [0], 1000]


@pytest.mark.alone
def test_equal_messages_are_found_and_removed_in_short_calls(client: Client, direct: Client) -> None:
    create(client, "q", "TYPE", "jobs")
    fill(client, "q", [b"same"] * 8000 + [b"other"])
    with short_calls(direct):
        assert client.sismember("q", "same")
        assert client.srem("q", "same", "none", "other") == 2
    assert client.llen("q") == 0
    assert not client.sismember("q", "same")
    assert client.srem("q", "same") == 0
    assert not direct.hexists("__pressure__:q:ext:settings", "removing")


@pytest.mark.alone
def test_copies_are_removed_in_short_calls(client: Client, direct: Client) -> None:
    create(client, "q", "TYPE", "jobs")
    fill(client, "q", [b"same"] * 6000 + [b"other"] + [b"same"] * 6000)
    with short_calls(direct):
        assert client.lrem("q", -7000, "same") == 7000
        assert client.lrem("q", 2500, "same") == 2500
    assert client.lrange("q", 0, -1) == [b"same"] * 2500 + [b"other"]
    with short_calls(direct):
        assert client.lrem("q", 0, "same") == 2500
        assert client.lrem("q", 0, "same") == 0
        assert client.lrem("q", 9999, "other") == 1
    assert client.llen("q") == 0


def test_a_removal_in_steps_has_removed_something_even_if_others_take_the_rest(
    client: Client, direct: Client
) -> None:
    create(client, "q", "TYPE", "jobs")
    assert client.srem("q", "same") == 0
    # The first steps have been done, and others have taken the rest.
    direct.hset("__pressure__:q:ext:settings", "removing", hashlib.sha1(b"same").hexdigest())
    assert [client.srem("q", message) for message in ("other", "same", "same")] == [0, 1, 0]


@pytest.mark.parametrize("text", ["m", "m" * 40, "m" * 41])
def test_texts_that_begin_with_each_other_are_not_mistaken(client: Client, text: str) -> None:
    create(client, "q", "TYPE", "jobs", "UNIQUE", "QUEUED")
    longer = text + "0000000000001"
    assert client.sadd("q", longer) == 1
    assert [client.sismember("q", one) for one in (text, longer)] == [0, 1]
    assert client.sadd("q", text, longer) == 1
    assert client.srem("q", text) == 1
    assert client.smembers("q") == {longer.encode()}


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["fifo", "jobs"])
def test_many_jobs_of_a_client_that_leaves_go_back_in_short_calls(
    server: Server, client: Client, direct: Client, worker: Waiter, kind: str
) -> None:
    create(client, "q", "TYPE", kind)
    fill(client, "q", messages_of(20_000))
    reserve(worker, "q", 20_000)
    with Waiter(server.port) as other:
        other.send("BLPOP", "q", 0)
        wait_for(lambda: about(client, "q")[b"waiting_consumers"] == 1, "the other client to wait")
        with short_calls(direct):
            worker.close()
            wait_for(lambda: client.llen("q") == 19_999, "the jobs to be back")
        assert other.reply() == [b"q", b"000000"]
    assert client.lrange("q", 0, -1) == messages_of(20_000)[1:]


@pytest.mark.alone
@pytest.mark.slow
def test_a_list_gets_the_jobs_of_a_dead_server_back_in_order(
    start_valkey: Callable[..., Valkey], start_server: StartServer
) -> None:
    valkey = start_valkey()
    server, dead = (start_server("--backend", valkey.url, "--proxy-timeout", "4") for _ in range(2))
    with server.client() as client, valkey.client() as direct, Waiter(dead.port) as worker:
        create(client, "q")
        fill(client, "q", messages_of(15_000))
        reserve(worker, "q", 15_000)
        dead.process.send_signal(signal.SIGKILL)
        with short_calls(direct):
            wait_for(lambda: client.llen("q") == 15_000, "the jobs to be back")
        assert client.lrange("q", 0, -1) == messages_of(15_000)
