"""Queues that a put has created go when they are empty and unused: with all keys, and disturbing nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest

from pressure_server.backend.address import Address
from pressure_server.client import Queue
from pressure_server.queues.broker import Broker
from pressure_server.queues.expiry import Expiry
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.policy import Policy
from tests.support.native import NativeClient
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, join, keys_left, wait_for
from tests.support.waiters import Waiter, wait_for_waiting

TTL = "0.5"
# As many empty queues, and how many times their time to live they may be there, all looks included. On a
# machine with nothing else to do it is 1.3 to 1.45.
MANY = 15_000
LONGEST = 2


@pytest.fixture
def expiring(backend: Valkey, start_server: StartServer) -> Server:
    """A server on a backend without data, whose implicit queues live for half a second."""
    return start_server("--backend", backend.url, "--implicit-queue-ttl", TTL)


@pytest.fixture
def client(expiring: Server) -> Iterator[Client]:
    with expiring.client() as connected:
        yield connected


def a_queue_expires(client: Client, direct: Client) -> None:
    """Make one that nobody uses, and wait until it is gone: others, made before, had as long."""
    client.sadd("control", "m")
    assert client.spop("control") == b"m"
    assert direct.exists("__pressure__:control:bound") == 1
    wait_for(lambda: not direct.keys("*:control*"), "the unused queue to be deleted")


def test_an_empty_queue_goes_with_all_its_keys(client: Client, direct: Client) -> None:
    a_queue_expires(client, direct)
    assert keys_left(direct) == []
    assert client.sadd("control", "again") == 1


def test_one_that_holds_messages_or_was_created_on_purpose_or_is_closed_stays(
    client: Client, direct: Client
) -> None:
    client.sadd("full", "m")
    client.execute_command("PRESSURE.CREATE", "on purpose")
    client.sadd("closed", "m")
    client.spop("closed")
    client.execute_command("PRESSURE.CLOSE", "closed")
    a_queue_expires(client, direct)
    a_queue_expires(client, direct)
    assert set(client.scan_iter()) == {b"full", b"on purpose", b"closed"}


def test_one_that_somebody_waits_on_stays(client: Client, expiring: Server, direct: Client) -> None:
    client.sadd("q", "m")
    client.spop("q")
    with Waiter(expiring.port) as waiter:
        waiter.send("BLPOP", "q", 0)
        wait_for(lambda: client.info("clients")["blocked_clients"] == 1, "the client to wait")
        a_queue_expires(client, direct)
        a_queue_expires(client, direct)
        assert not waiter.has_reply()
        assert direct.exists("__pressure__:q:bound") == 1
        client.sadd("q", "late")
        assert waiter.reply() == [b"q", b"late"]
    wait_for(lambda: not keys_left(direct), "the queue to be deleted when nobody waits any longer")


def test_one_that_a_native_client_waits_on_stays(client: Client, direct: Client, backend: Valkey) -> None:
    client.sadd("q", "m")
    client.spop("q")
    got: list[bytes] = []
    with backend.client() as connection:
        native = NativeClient(connection, "q")
        thread = Thread(target=lambda: got.append(native.get()), daemon=True)
        thread.start()
        try:
            wait_for(lambda: not direct.exists("__pressure__:q:consumer_free"), "the native client to wait")
            a_queue_expires(client, direct)
            a_queue_expires(client, direct)
            assert not got
        finally:
            client.sadd("q", "late")
            join(thread)
    assert got == [b"late"]


@pytest.mark.slow
@pytest.mark.parametrize("in_its_turn", [False, True])
def test_one_that_our_python_client_waits_on_stays(
    client: Client, direct: Client, backend: Valkey, in_its_turn: bool
) -> None:
    client.sadd("q", "m")
    client.spop("q")
    if in_its_turn:
        direct.rpop("__pressure__:q:consumer_free")
    with Queue("q", backend.url) as queue, ThreadPoolExecutor() as threads:
        got = threads.submit(queue.get)
        try:
            if in_its_turn:
                wait_for(lambda: direct.info("clients")["blocked_clients"], "it to stand in line")
                direct.lpush("__pressure__:q:consumer_free", 0)
                wait_for(lambda: direct.exists("__pressure__:q:ext:consumer_turn"), "its turn")
            wait_for(lambda: direct.pubsub_numsub("__redis__:invalidate")[0][1], "it to wait")
            a_queue_expires(client, direct)
            a_queue_expires(client, direct)
            assert not got.done()
        finally:
            client.sadd("q", "late")
        assert got.result() == b"late"


def test_a_queue_that_cannot_be_read_is_told_of_once_and_the_others_go(
    client: Client, direct: Client, expiring: Server
) -> None:
    direct.mset({"__pressure__:broken:ext:settings": "no hash", "__pressure__:broken:bound": 0})
    for number in range(20):
        client.sadd(f"q{number}", "m")
        client.spop(f"q{number}")
    wait_for(lambda: not direct.keys("*:q*"), "the unused queues to be deleted")
    a_queue_expires(client, direct)
    assert len(keys_left(direct)) == 2
    (warning,) = [line for line in expiring.log.splitlines() if "WARNING" in line]
    assert "queue 'broken' will not be deleted when it is unused: " in warning
    assert "WRONGTYPE" in warning


def test_use_counts_from_the_last(client: Client, direct: Client) -> None:
    """What is put and taken between two looks leaves the queue as empty as it was, and yet it is used."""
    client.sadd("q", "m")
    client.spop("q")
    client.sadd("control", "m")
    client.spop("control")

    def gone_while_the_other_is_used() -> bool:
        assert client.sadd("q", "m") == 1
        assert client.spop("q") == b"m"
        assert direct.exists("__pressure__:q:bound") == 1
        return not direct.keys("*:control*")

    wait_for(gone_while_the_other_is_used, "the unused queue to be deleted")


@pytest.mark.slow
def test_two_servers_agree(
    expiring: Server, backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    """Since when a queue is unused is noted with it, so any server may find so; a put then makes it anew."""
    other = start_server("--backend", backend.url, "--implicit-queue-ttl", TTL)
    with expiring.client() as one, other.client() as two:
        for number in range(300):
            one.sadd(f"q{number}", "m")
            assert two.spop(f"q{number}") == b"m"
        wait_for(lambda: not keys_left(direct), "all queues to be deleted")
        assert two.sadd("q0", "m") == 1
        assert one.spop("q0") == b"m"


def test_zero_looks_for_none(backend: Valkey) -> None:
    async def main() -> tuple[int, int]:
        broker = Broker(
            Address(backend.url), prefix="__pressure__", peer_detection=PeerDetection(), policy=Policy()
        )
        tasks = len(asyncio.all_tasks())
        Expiry(broker, 0).start()
        with_zero = len(asyncio.all_tasks()) - tasks
        Expiry(broker, 1).start()
        return with_zero, len(asyncio.all_tasks()) - tasks

    assert asyncio.run(main()) == (0, 1)


def test_what_a_native_client_deletes_leaves_nothing_of_ours(
    client: Client, direct: Client, backend: Valkey
) -> None:
    """Also where it is created again at once: what we had kept is not taken for the new queue's."""
    with backend.client() as connection:
        native = NativeClient(connection, "q")
        for _ in range(20):
            client.sadd("q", *range(50))
            client.sismember("q", "7")
            native.delete()
            wait_for(lambda: not keys_left(direct), "our keys to go, too")
        client.sadd("q", *range(50))
        native.delete()
        native.create()
        native.put(b"1")
        assert client.sadd("q", "1", "2") == 1
        assert client.smembers("q") == {b"1", b"2"}


@pytest.mark.slow
def test_one_that_somebody_waits_on_at_a_server_that_does_not_look_stays(
    client: Client, direct: Client, backend: Valkey, start_server: StartServer
) -> None:
    other = start_server("--backend", backend.url)
    client.sadd("q", "m")
    client.spop("q")
    with Waiter(other.port) as waiter:
        waiter.send("BLPOP", "q", 0)
        with other.client() as waits_there:
            wait_for_waiting(waits_there, "q", consumers=1)
        for _ in range(4):
            a_queue_expires(client, direct)
        assert not waiter.has_reply()
        client.sadd("q", "late")
        assert waiter.reply() == [b"q", b"late"]


def test_one_that_a_native_client_polls_stays(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    """It finds nothing, and leaves no other trace than that it has given its role back."""
    # The backend knows in whole seconds how long a key has been idle: less than one may look like one.
    server = start_server("--backend", backend.url, "--implicit-queue-ttl", "1.5")
    with server.client() as client:
        client.sadd("polled", "m")
        client.spop("polled")
        for _ in range(2):
            client.sadd("control", "m")
            client.spop("control")

            def gone_while_the_other_is_polled() -> bool:
                assert NativeClient(direct, "polled").get_non_blocking() is None
                assert direct.exists("__pressure__:polled:bound")
                return not direct.keys("*:control*")

            wait_for(gone_while_the_other_is_polled, "the unused queue to be deleted")


def leave_empty_queues(direct: Client, count: int) -> None:
    """What a put and a get leave of each of so many queues."""
    for first in range(0, count, 1000):
        pipeline = direct.pipeline(transaction=False)
        for number in range(first, min(first + 1000, count)):
            base = f"__pressure__:q{number}"
            pipeline.mset(
                {
                    f"{base}:bound": 0,
                    f"{base}:producer": "pressure-server:x",
                    f"{base}:consumer": "pressure-server:x",
                }
                | {
                    f"{base}:stats:{what}_{unit}": 1
                    for what in ("produced", "consumed")
                    for unit in ("messages", "bytes")
                }
            )
            for token in ("producer_free", "consumer_free", "not_full"):
                pipeline.lpush(f"{base}:{token}", 1)
            pipeline.hset(f"{base}:ext:settings", mapping={"overflow": "block", "made": "1.1", "implicit": 1})
        pipeline.execute()


@pytest.mark.alone
def test_many_queues_go_in_time_and_hold_up_nobody(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    ttl = 2.0
    backend = start_valkey()
    with backend.client() as direct:
        leave_empty_queues(direct, MANY)
        wait_for(
            lambda: direct.object("idletime", f"__pressure__:q{MANY - 1}:producer_free") >= ttl, "idle queues"
        )
        server = start_server("--backend", backend.url, "--implicit-queue-ttl", str(ttl))
        began = time.monotonic()
        slowest = 0.0
        with server.client() as client:
            # What is left then: the queue that is used, what the server notes, and what it keeps.
            while direct.dbsize() > 15:
                asked = time.monotonic()
                client.sadd("used", "m")
                slowest = max(slowest, time.monotonic() - asked)
                assert asked - began < 20
        took = time.monotonic() - began
        print(f"{MANY} queues were gone after {took:.2f} s, the slowest SADD took {1000 * slowest:.0f} ms")
        assert list(direct.scan_iter("__pressure__:*:bound")) == [b"__pressure__:used:bound"]
        assert took <= LONGEST * ttl
        assert slowest < 0.2
