"""Killed servers: messages that they have not delivered go back to the heads of their queues.

A peer puts them back within --proxy-timeout; else the next server on that backend does. Messages that a
client may have read come again. None is lost.
"""

import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pressure_server.lua.scripts import script_named
from tests.support.backend_relay import BackendRelay
from tests.support.faults import stopped
from tests.support.large import fill, large, number_of, queued
from tests.support.measures import heartbeats, identity
from tests.support.programs import (
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    records,
    wait_for,
    wait_until_settled,
)
from tests.support.waiters import Waiter, about, is_refused, packed, waiters

pytestmark = pytest.mark.usefixtures("no_error_in_the_log")

TIMEOUT = 1.0


def consumed(direct: Client, queue: str = "q") -> tuple[int, ...]:
    """Return the numbers of messages and bytes consumed from a queue."""
    values = direct.mget(f"__pressure__:{queue}:stats:consumed_{unit}" for unit in ("messages", "bytes"))
    return tuple(int(value or 0) for value in values)


def wait_until_recovered(dead: Server, direct: Client, timeout: float = 20) -> None:
    """Return when a peer has put the server's messages back, and has forgotten the server."""
    wait_for(lambda: identity(dead) not in heartbeats(direct), "the recovery", timeout)


@pytest.fixture
def backend(start_valkey: StartValkey) -> Valkey:
    """Return a backend without other servers."""
    return start_valkey()


@pytest.fixture
def take(backend: Valkey) -> Iterator[Any]:
    """Return a function that takes messages on a new connection, and does not read the reply."""
    opened: list[Waiter] = []

    def take(server: Server, *words: str | int, select: int = 0) -> Waiter:
        waiter = Waiter(server.port)
        opened.append(waiter)
        if select:
            assert waiter("SELECT", select) == b"OK"
        waiter.send(*words)
        wait_for(waiter.has_reply, "the reply to begin")
        return waiter

    yield take
    for waiter in opened:
        waiter.close()


@pytest.fixture
def start_peer(start_server: StartServer, backend: Valkey) -> StartServer:
    return partial(start_server, "--backend", backend.url, "--proxy-timeout", str(TIMEOUT))


@pytest.fixture
def peers(start_peer: StartServer) -> list[Server]:
    return [start_peer(), start_peer()]


@pytest.mark.alone
def test_messages_of_a_killed_server_are_back_within_the_timeout(
    peers: list[Server], direct: Client, take: Any
) -> None:
    dying, living = peers
    with living.client() as client:
        fill(client, 200)
        fill(client, 100, "r")
        take(dying, "SPOP", "q", 90)
        take(dying, "SPOP", "q", 90)
        transaction = Waiter(dying.port)
        for words in (("MULTI",), ("LPOP", "r"), ("LPOP", "q", 5), ("LPOP", "r", 80)):
            transaction(*words)
        transaction.send("EXEC")
        wait_for(transaction.has_reply, "the reply to begin")
        assert (len(queued(direct)), len(queued(direct, "r"))) == (15, 19)
        dying.process.kill()
        began = time.monotonic()
        wait_until_recovered(dying, direct)
        took = time.monotonic() - began
        assert queued(direct) == list(range(200))
        assert queued(direct, "r") == list(range(100))
        assert consumed(direct) == consumed(direct, "r") == (0, 0)
        assert not records(direct)
        assert 0.5 * TIMEOUT < took < 1.2 * TIMEOUT
        assert (
            living.log.count(
                "has died: 266 messages, not delivered or not acknowledged, went back to 2 queues"
            )
            == 1
        )
        print(f"266 messages were back after {took:.2f} seconds, with a timeout of {TIMEOUT:g}")
        transaction.close()
        assert client.lpop("q") == large(0)
        assert about(client, "q")[b"length"] == 199


@pytest.mark.parametrize("is_embedded", [False, True])
def test_the_next_server_puts_the_messages_of_a_killed_one_back(
    start_server: StartServer, backend: Valkey, tmp_path: Path, take: Any, is_embedded: bool
) -> None:
    """A server with an embedded backend recovers at once: no other server can be alive."""
    options = ["--backend", backend.url, "--proxy-timeout", str(TIMEOUT)]
    if is_embedded:
        options = ["--backend", "embedded:", "--data-dir", str(tmp_path / "data"), "--proxy-timeout", "600"]
    server = start_server(*options)
    with server.client() as client:
        fill(client, 50)
    take(server, "LPOP", "q", 50)
    server.kill()
    with start_server(*options).client() as client:
        wait_for(lambda: client.llen("q") == 50, "the messages")
        assert [number_of(found) for found in client.lrange("q", 0, -1)] == list(range(50))
        assert about(client, "q")[b"consumed_messages"] == 0
        wait_for(lambda: client.info("backend")["other_servers"] == 0, "the server to be forgotten")


def test_messages_go_back_in_every_database(peers: list[Server], backend: Valkey, take: Any) -> None:
    dying, living = peers
    numbers = (0, 3, 7)
    for number in numbers:
        with living.client(db=number) as client:
            fill(client, 100)
        take(dying, "LPOP", "q", 100, select=number)
    dying.process.kill()
    for number in numbers:
        with backend.client(db=number) as direct:
            wait_until_recovered(dying, direct)
            assert queued(direct) == list(range(100))
            assert list(heartbeats(direct)) == [identity(living)]


def test_a_server_that_opens_a_database_twice_at_once_is_not_taken_for_dead(
    peers: list[Server], backend: Valkey
) -> None:
    stopping, other = peers
    with other.client(db=5) as client, backend.client(db=5) as direct:
        client.rpush("q", "a")
        with stopped(stopping.process):
            waiting = [Waiter(stopping.port) for _ in range(5)]
            for waiter in waiting:
                waiter.send("SELECT", 5)
        assert [waiter.reply() for waiter in waiting] == [b"OK"] * 5
        before = heartbeats(direct)[identity(stopping)]
        wait_for(lambda: heartbeats(direct)[identity(stopping)] != before, "another heartbeat")
        for waiter in waiting:
            waiter.close()
    assert "has died" not in other.log


@pytest.mark.parametrize("leaves", [True, False], ids=["its client leaves", "its client reads on"])
def test_a_server_that_was_taken_for_dead_puts_no_message_back_twice(
    peers: list[Server], direct: Client, take: Any, leaves: bool
) -> None:
    stopping, living = peers
    with living.client() as client:
        fill(client, 100)
        waiter = take(stopping, "LPOP", "q", 90)
        sign = heartbeats(direct)[identity(stopping)]
        with stopped(stopping.process):
            wait_until_recovered(stopping, direct)
            assert queued(direct) == list(range(100))
            if leaves:
                waiter.reset()
        wait_for(lambda: heartbeats(direct).get(identity(stopping), sign) != sign, "a new heartbeat")
        received = [] if leaves else [number_of(found) for found in waiter.reply()]
        # A peer has put the messages back, so the server must not.
        with stopping.client() as again:
            wait_for(lambda: again.info("clients")["connected_clients"] == 2 - leaves, "the client to leave")
            again.rpush("other", "x")
            assert again.lpop("other") == b"x"
        wait_until_settled(direct)
        assert queued(direct) == list(range(100))
        assert received == ([] if leaves else list(range(90)))  # these messages are doubled
        assert consumed(direct) == (0, 0)
    assert stopping.stop() == 0
    wait_for(lambda: list(heartbeats(direct)) == [identity(living)], "the server to sign off")


def test_a_server_with_a_new_heartbeat_is_not_forgotten(direct: Client) -> None:
    def call(*words: str) -> Any:
        return direct.eval(
            script_named("upkeep/servers").text, 3, "peers", "death of a", "calls of a", *words
        )

    def sign(signed: str, epoch: str = "") -> Any:
        return call("sign", "a", signed, epoch)

    def epoch() -> Any:
        return direct.hget("calls of a", "epoch")

    assert sign("1 15", "1") is None
    assert sign("2 15") is None
    assert epoch() == b"1"
    assert call("bury", "a", "1 15") == call("forget", "a", "1 15") == 0
    assert direct.hgetall("peers") == {b"a": b"2 15"}
    assert not direct.exists("death of a")
    direct.hset("calls of a", "1", "something")
    assert call("bury", "a", "2 15") == 1
    assert epoch() == b"0"
    assert call("forget", "a", "2 15") == 0, "a server with a record was forgotten"
    direct.hdel("calls of a", "1")
    assert call("forget", "a", "2 15") == 1
    assert not direct.exists("peers", "calls of a")
    assert 0 < direct.ttl("death of a") <= 86400
    for number in (3, 4):
        assert sign(f"{number} 15", "2") == b"2 15", "the server does not learn of its death"
    assert sign("4 15", "1") == b"2 15"
    assert epoch() == b"2", "an ended epoch began again"
    assert call("bury", "a", "4 15") == 1
    assert sign("5 15") == b"4 15", "the server does not learn of its second death"
    assert epoch() == b"0", "a heartbeat without an epoch began one"
    assert call("forget", "a", "4 15") == 0
    direct.hset("calls of a", mapping={"7": "old data", "e8.1.1": "not put back"})
    assert call("leave", "a") == 0
    direct.hdel("calls of a", "e8.1.1")
    assert call("leave", "a") == 1
    assert not direct.exists("peers", "calls of a")


@pytest.mark.slow
@pytest.mark.parametrize("is_over", [True, False], ids=["after the recovery", "during the recovery"])
def test_a_put_without_a_reply_is_not_done_again_after_its_server_was_taken_for_dead(
    start_server: StartServer, backend: Valkey, direct: Client, is_over: bool
) -> None:
    """The server goes on, and sends a heartbeat, before the connection breaks that owes it the reply."""
    with BackendRelay(backend.socket) as relay, BackendRelay(backend.socket) as recovering:
        server = start_server("--backend", relay.url, "--proxy-timeout", str(TIMEOUT))
        living = start_server("--backend", recovering.url, "--proxy-timeout", str(TIMEOUT))

        def is_before_the_break(_reply: bytes) -> bool:
            return direct.llen("__pressure__:q") == 2 and "was lost" not in server.log

        def has_no_records() -> bool:
            epoch: bytes = direct.hget(f"__pressure__!calls:{identity(server).decode()}", "epoch")
            return epoch == b"0"

        with Waiter(server.port) as waiter, Waiter(server.port) as other:
            assert waiter("RPUSH", "q", "a") == 1
            wait_until_settled(direct)
            relay.hold(is_before_the_break)
            waiter.send("RPUSH", "q", "b")
            wait_for(lambda: direct.llen("__pressure__:q") == 2, "the call to be done")
            with stopped(server.process):
                if is_over:
                    wait_for(lambda: "has died" in living.log, "the end of the recovery")
                else:
                    # The peer does not learn that it has deleted the records.
                    recovering.hold(lambda _: has_no_records())
                    wait_for(has_no_records, "the records to be deleted")
                other.send("RPUSH", "other", "x")
            wait_for(lambda: direct.llen("__pressure__:other"), "the server to go on")
            relay.cuts = is_before_the_break
            relay.release()
            reply = waiter.reply()
            recovering.release()
        assert is_refused(reply, "BACKEND"), reply
        assert direct.lrange("__pressure__:q", 0, -1) == [b"b", b"a"]
        assert server.stop() == 0


def test_a_server_with_an_unreadable_record_is_not_forgotten(
    peers: list[Server], direct: Client, take: Any
) -> None:
    """Its other messages go back, and the peer logs the record once."""
    dying, living = peers
    with living.client() as client:
        fill(client, 100)
        fill(client, 100, "bad")
    take(dying, "LPOP", "q", 90)
    take(dying, "LPOP", "bad", 90)
    # The record of the first call, whose messages are the oldest.
    field, key, record = min(
        (int(field), key, record) for (key, field), record in records(direct).items() if b":bad" in record
    )
    direct.hset(key, field, b"\xc1")
    dying.process.kill()
    wait_for(lambda: queued(direct) == list(range(100)), "the messages")
    wait_for(lambda: "1 record of its messages cannot be put back yet" in living.log, "the warning")
    assert identity(dying) in heartbeats(direct)
    direct.hset(key, field, record)
    wait_for(lambda: queued(direct, "bad") == list(range(100)), "the others")
    wait_until_recovered(dying, direct)
    assert living.log.count("cannot be put back yet") == 1
    assert identity(living) in heartbeats(direct)


def test_the_backend_is_told_soon_what_was_delivered(
    start_server: StartServer, backend: Valkey, direct: Client
) -> None:
    server = start_server("--backend", backend.url)
    with server.client() as client:
        client.rpush("q", *range(20))
        for _ in range(20):
            client.lpop("q")
            done = time.monotonic()
            wait_until_settled(direct)
            assert time.monotonic() - done < 1


def test_a_client_that_polls_an_empty_queue_leaves_no_record(
    start_server: StartServer, backend: Valkey, direct: Client
) -> None:
    """The server is never idle."""
    server = start_server("--backend", backend.url)
    with server.client() as client, Waiter(server.port) as polling:
        client.rpush("q", "a", "b")
        polling("LPOP", "q")
        polling("LPOP", "q")
        for _ in range(300):
            polling.socket.sendall(b"LPOP q\r\n" * 2)
            if not records(direct):
                break
        assert not records(direct)


@pytest.mark.alone
@pytest.mark.parametrize(("clients", "most"), [(1, 1.1), (50, 0.5)])
def test_a_get_needs_about_one_call_of_the_backend(
    start_server: StartServer, backend: Valkey, direct: Client, clients: int, most: float
) -> None:
    """The next call acknowledges a delivery."""
    server = start_server("--backend", backend.url)
    each = 3000 // clients
    with server.client() as client:
        client.rpush("q", *range(3000))
    wait_until_settled(direct)

    def calls() -> int:
        return int(direct.info("commandstats")["cmdstat_fcall"]["calls"])

    before = calls()
    with waiters(server, clients) as waiting:
        for _ in range(each):
            for waiter in waiting:
                waiter.send("SPOP", "q")
            for waiter in waiting:
                assert waiter.reply() is not None
        wait_until_settled(direct)
        made = calls() - before
    print(f"{clients} clients: {made / (each * clients):.3f} calls for a get")
    assert made <= most * each * clients


@pytest.mark.slow
def test_only_the_undelivered_messages_of_a_call_go_back(
    peers: list[Server], backend: Valkey, direct: Client
) -> None:
    """Ten clients that do not read, and one that does, share calls."""
    dying, living = peers
    with living.client() as client:
        client.rpush("q", *range(2000))
        for number in range(10):
            client.rpush(f"large-{number}", *(b"x" * 1_000_000 for _ in range(8)))
    with waiters(dying, 10) as slow, Waiter(dying.port) as fast:
        with stopped(backend.process):
            fast.socket.sendall(packed("LPOP", "q") * 500)
            for number, waiter in enumerate(slow):
                # The reply with a message comes after one that is not read.
                waiter.socket.sendall(packed("LPOP", f"large-{number}", 8) + packed("LPOP", "q"))
            fast.socket.sendall(packed("LPOP", "q") * 1000)
        taken = [int(fast.reply()) for _ in range(1500)]
        wait_for(lambda: direct.llen("__pressure__:q") == 490, "the gets")

        def recorded() -> int:
            """Return how many messages, which are numbers, are in records."""
            return sum(len(re.findall(rb"[\xa1-\xa4]\d+", record)) for record in records(direct).values())

        before = recorded()
        wait_for(lambda: recorded() <= 10, "records to be cut down")
        dying.process.kill()
        wait_until_recovered(dying, direct)
        back = [int(found) for found in direct.lrange("__pressure__:q", 0, -1)][::-1]
        assert sorted(back + taken) == list(range(2000))
        assert back == sorted(back)
        assert not records(direct)
        print(f"records of {before} messages were cut down; {len(back) - 490} of 1510 messages came back")


def record_of(base: str, message: str) -> bytes:
    """Return the record of a call that took a message from a native queue, as in records.lua."""
    no, nothing = b"\xc2", b"\x90"
    key, word = (bytes([0xA0 + len(text)]) + text.encode() for text in (base, message))
    return b"\x93\x01" + no + b"\x91\x95" + key + no + b"\x00\x91\x91" + word + nothing


# A script, because half a million commands would take seconds of the test's processor time.
_MAKE_QUEUES = """
for number = ARGV[1], ARGV[2] do
    local base = '__pressure__:q' .. number
    redis.call('SET', base .. ':bound', 0)
    for _, token in ipairs({'producer_free', 'consumer_free', 'not_full'}) do
        redis.call('LPUSH', base .. ':' .. token, 1)
    end
    redis.call('LPUSH', base, 'x', 'y')
end
"""


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_recovery_from_forty_thousand_queues_keeps_the_peers_alive(
    start_peer: StartServer, direct: Client
) -> None:
    """The peers send heartbeats during the recovery."""
    dying, living, third = [start_peer() for _ in range(3)]
    count = 40_000
    with living.client() as client, Waiter(dying.port) as waiter:
        for first in range(0, count, 5000):
            direct.eval(_MAKE_QUEUES, 0, first, first + 5000 - 1)
        fill(client, 100)
        client.rpush("small", "a")
        # The second reply comes after one that is not read.
        waiter.socket.sendall(packed("LPOP", "q", 90) + packed("LPOP", "small"))
        wait_for(lambda: direct.llen("__pressure__:small") == 0, "the record")
        wait_for(lambda: direct.llen("__pressure__:q") == 10, "the others")
        # Add a record of each tenth queue.
        ((key, _), *_) = records(direct)
        with direct.pipeline(transaction=False) as pipeline:
            for number in range(0, count, 10):
                pipeline.hset(key, 1_000_000 + number, record_of(f"__pressure__:q{number}", "a"))
                pipeline.set(f"__pressure__:q{number}:stats:consumed_messages", 1)
            pipeline.execute()
        dying.process.kill()
        began = time.monotonic()
        wait_until_recovered(dying, direct, 120)
        took = time.monotonic() - began
        assert queued(direct) == list(range(100))
        assert direct.lrange("__pressure__:q10", 0, -1) == [b"y", b"x", b"a"]
        assert not records(direct)
        assert heartbeats(direct).keys() == {identity(living), identity(third)}
    print(f"{count} queues, 10002 of them with a record: recovered after {took:.1f} seconds")
    died = f"server '{identity(dying).decode()}' has died"
    assert living.log.count(died) + third.log.count(died) == 1


def test_a_server_that_was_stopped_sends_a_heartbeat_before_it_takes_a_message(
    peers: list[Server], direct: Client
) -> None:
    """A peer recovers only messages of servers with a heartbeat."""
    stopping, living = peers
    with living.client() as client, Waiter(stopping.port) as waiting:
        client.rpush("q", "a")
        name = identity(stopping).decode()
        stopping.process.send_signal(signal.SIGSTOP)
        wait_until_recovered(stopping, direct)
        waiting.send("LPOP", "q")
        signed: list[bool] = []
        with direct.monitor() as monitor:
            stopping.process.send_signal(signal.SIGCONT)
            for heard in monitor.listen():
                if name in heard["command"] and heard["command"].startswith(("EVAL", "FCALL")):
                    signed.append(f" sign {name} " in heard["command"])
                if signed[-1:] == [False]:
                    break
        assert signed[0]
        assert waiting.reply() == b"a"
