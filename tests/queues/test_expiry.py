"""Expiry of implicit queues: empty, unused queues are deleted with all their keys; others stay."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from pressure_server.backend.address import Address
from pressure_server.backend.watch import Armed, Watch
from pressure_server.client import Queue
from pressure_server.queues.broker import Broker
from pressure_server.queues.housekeeping import DeletionWatch
from pressure_server.queues.policy import Policy
from tests.support.measures import processor_seconds, seconds_in_line
from tests.support.native import NativeClient
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    keys_left,
    wait_for,
)
from tests.support.waiters import Waiter, create, wait_for_waiting

TTL = "0.5"
MANY = 15_000
# Processor seconds that the server and the backend may take to delete them all while a client uses a queue.
MOST_WORK = 8
COPY_QUEUE = """
local keys = redis.call('KEYS', '__pressure__:q0:*')
for number = 1, ARGV[1] - 1 do
  for _, key in ipairs(keys) do
    redis.call('COPY', key, (key:gsub('q0', 'q' .. number)))
  end
end
"""


@pytest.fixture
def expiring(backend: Valkey, start_server: StartServer) -> Server:
    """A server whose implicit queues expire after half a second, on a backend without data."""
    return start_server("--backend", backend.url, "--implicit-queue-ttl", TTL)


@pytest.fixture
def client(expiring: Server) -> Iterator[Client]:
    with expiring.client() as connected:
        yield connected


def leave_empty(client: Client, queue: str) -> None:
    """Create a queue by a put, and take its message."""
    assert client.sadd(queue, "m") == 1
    assert client.spop(queue) == b"m"


def wait_for_expiry(
    client: Client, direct: Client, times: int = 1, meanwhile: Callable[[], Any] = lambda: None
) -> None:
    """Return when a new, unused queue has expired: queues left unused before have had at least as long."""

    def is_control_deleted() -> bool:
        meanwhile()
        return not direct.keys("*:control*")

    for _ in range(times):
        leave_empty(client, "control")
        assert direct.exists("__pressure__:control:bound") == 1
        wait_for(is_control_deleted, "the unused queue to be deleted")


def test_an_unused_empty_queue_is_deleted_with_all_its_keys(client: Client, direct: Client) -> None:
    wait_for_expiry(client, direct)
    assert keys_left(direct) == []
    assert client.sadd("control", "again") == 1  # which creates the queue again


def test_a_group_with_a_time_to_live_stays_until_it_has_read_its_log(client: Client, direct: Client) -> None:
    create(client, "log", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
    client.execute_command("PRESSURE.ALTER", "log+g", "TTL", TTL)
    client.rpush("log", "m")
    wait_for_expiry(client, direct)
    (found,) = client.execute_command("PRESSURE.READ", "log", "GROUP", "g", "consumer")
    assert client.execute_command("PRESSURE.ACK", "log+g", found[0], "TOKEN", "consumer") == 1
    wait_for(lambda: not client.execute_command("PRESSURE.GROUP", "LIST", "log"), "the group to be deleted")


def test_full_and_closed_and_explicitly_created_queues_stay(client: Client, direct: Client) -> None:
    client.sadd("full", "m")
    client.execute_command("PRESSURE.CREATE", "on purpose")
    leave_empty(client, "closed")
    client.execute_command("PRESSURE.CLOSE", "closed")
    wait_for_expiry(client, direct, times=2)
    assert set(client.scan_iter()) == {b"full", b"on purpose", b"closed"}


@pytest.mark.parametrize("at_peer", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_queue_that_a_client_waits_on_stays(
    client: Client,
    expiring: Server,
    direct: Client,
    backend: Valkey,
    start_server: StartServer,
    at_peer: bool,
) -> None:
    # The peer itself deletes no unused queues.
    server = start_server("--backend", backend.url) if at_peer else expiring
    leave_empty(client, "q")
    with Waiter(server.port) as waiter, server.client() as connected:
        waiter.send("BLPOP", "q", 0)
        wait_for_waiting(connected, "q", consumers=1)
        wait_for_expiry(client, direct, times=4)
        assert not waiter.has_reply()
        assert direct.exists("__pressure__:q:bound") == 1
        client.sadd("q", "late")
        assert waiter.reply() == [b"q", b"late"]
    wait_for(lambda: not keys_left(direct), "the queue to be deleted after the wait")


@pytest.mark.parametrize(
    "kind",
    ["native", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("python", "python, in turn"))],
)
def test_a_queue_that_a_native_client_waits_on_stays(
    client: Client, direct: Client, backend: Valkey, kind: str
) -> None:
    leave_empty(client, "q")
    if kind == "python, in turn":
        direct.rpop("__pressure__:q:consumer_free")
    with backend.client() as own, Queue("q", backend.url) as queue, ThreadPoolExecutor() as threads:
        got = threads.submit(NativeClient(own, "q").get if kind == "native" else queue.get)
        try:
            if kind == "python, in turn":
                wait_for(lambda: direct.info("clients")["blocked_clients"], "the get to wait for its turn")
                direct.lpush("__pressure__:q:consumer_free", 0)
                wait_for(lambda: direct.exists("__pressure__:q:ext:consumer_turn"), "its turn")
            if kind == "native":
                wait_for(lambda: not direct.exists("__pressure__:q:consumer_free"), "the client to wait")
            else:
                wait_for(lambda: direct.pubsub_numsub("__redis__:invalidate")[0][1], "the get to wait")
            wait_for_expiry(client, direct, times=2)
            assert not got.done()
        finally:
            client.sadd("q", "late")
        assert got.result() == b"late"


def test_a_queue_with_broken_settings_is_reported_once_and_others_expire(
    client: Client, direct: Client, expiring: Server
) -> None:
    direct.mset({"__pressure__:broken:ext:settings": "no hash", "__pressure__:broken:bound": 0})
    for number in range(20):
        leave_empty(client, f"q{number}")
    wait_for(lambda: not direct.keys("*:q*"), "the unused queues to be deleted")
    wait_for_expiry(client, direct)
    assert len(keys_left(direct)) == 2
    (warning,) = [line for line in expiring.log.splitlines() if "WARNING" in line]
    assert "queue 'broken' will not be deleted when it is unused: " in warning
    assert "WRONGTYPE" in warning


def test_a_queue_in_use_does_not_expire(client: Client, direct: Client) -> None:
    def use() -> None:
        leave_empty(client, "q")
        assert direct.exists("__pressure__:q:bound") == 1

    wait_for_expiry(client, direct, meanwhile=use)


@pytest.mark.slow
def test_queues_used_by_two_servers_expire_and_can_be_created_again(
    expiring: Server, backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    other = start_server("--backend", backend.url, "--implicit-queue-ttl", TTL)
    with expiring.client() as one, other.client() as two:
        for number in range(300):
            one.sadd(f"q{number}", "m")
            assert two.spop(f"q{number}") == b"m"
        wait_for(lambda: not keys_left(direct), "all queues to be deleted")
        assert two.sadd("q0", "m") == 1
        assert one.spop("q0") == b"m"


def test_a_ttl_of_zero_disables_expiry(backend: Valkey, start_server: StartServer) -> None:
    client = start_server("--backend", backend.url, "--implicit-queue-ttl", "0").client()
    client.sadd("q", "m")
    client.spop("q")
    create(client, "own", "TTL", "0.1")

    async def expire() -> None:
        broker = Broker(Address(backend.url), prefix="__pressure__", policy=Policy())
        await broker.start()
        await broker.default_database.shards[0].housekeeping.expire([b"q", b"own"], 0)
        await broker.close()

    def own_is_gone() -> bool:
        asyncio.run(expire())
        return not client.exists("own")

    wait_for(own_is_gone, "the queue with a time to live of its own to be deleted")
    assert client.exists("q") == 1


def test_a_native_delete_also_deletes_the_keys_of_the_server(
    client: Client, direct: Client, backend: Valkey
) -> None:
    with backend.client() as connection:
        native = NativeClient(connection, "q")
        for _ in range(20):
            client.sadd("q", *range(50))
            client.sismember("q", "7")
            native.delete()
            wait_for(lambda: not keys_left(direct), "the server's own keys to go, too")
        # A queue created again at once does not have the old queue's members.
        client.sadd("q", *range(50))
        native.delete()
        native.create()
        native.put(b"1")
        assert client.sadd("q", "1", "2") == 1
        assert client.smembers("q") == {b"1", b"2"}


class _RecordingWatch:
    """A watch that only notes which callbacks wait for the backend's reply."""

    is_up = True

    def __init__(self) -> None:
        self.armed: list[Armed] = []

    def arm(self, _number: int, _keys: list[bytes], armed: Armed) -> None:
        self.armed.append(armed)


def test_a_notification_of_the_creation_does_not_end_the_watch_for_the_deletion() -> None:
    """A client waited for the queue, so the key was watched when this server's put created the queue."""
    watch, deleted = _RecordingWatch(), list[bytes]()
    watched = DeletionWatch(cast(Watch, watch), 0, b"__pressure__", deleted.append)
    watched.note(b"q", exists=True)  # the reply to the put
    assert watched.forget(b"q")  # the notification
    (armed,) = watch.armed
    armed(1, None)
    assert watched.forget(b"q")
    assert deleted == []


def test_a_queue_that_a_native_client_polls_stays(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    # The backend reports a key's idle time in whole seconds, so less than one second may count as one.
    server = start_server("--backend", backend.url, "--implicit-queue-ttl", "1.5")
    with server.client() as client:
        leave_empty(client, "polled")

        def poll() -> None:
            # A get that finds no message only takes the role and gives it back.
            assert NativeClient(direct, "polled").get_non_blocking() is None
            assert direct.exists("__pressure__:polled:bound")

        wait_for_expiry(client, direct, times=2, meanwhile=poll)


@pytest.mark.alone
def test_many_queues_expire_in_time_and_block_no_client(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    ttl = 2.0
    backend = start_valkey()
    unlimited = start_server("--backend", backend.url)
    with backend.client() as direct, unlimited.client() as client:
        leave_empty(client, "q0")
        unlimited.stop()
        direct.eval(COPY_QUEUE, 0, MANY)
        wait_for(
            lambda: direct.object("idletime", f"__pressure__:q{MANY - 1}:producer_free") >= ttl, "idle queues"
        )
        server = start_server("--backend", backend.url, "--implicit-queue-ttl", str(ttl))
        began, worked = time.monotonic(), processor_seconds(backend)
        waited = list[float]()
        with server.client() as client:
            # At most 15 keys remain: those of the used queue and those of the server.
            while direct.dbsize() > 15:
                asked, in_line = time.monotonic(), seconds_in_line(server, backend)
                client.sadd("used", "m")
                ended = time.monotonic()
                waited.append(ended - asked - (seconds_in_line(server, backend) - in_line))
                assert asked - began < TIMEOUT
            work = processor_seconds(server) + processor_seconds(backend) - worked
        # Without the time for which a busy machine had no processor for them. Steps that are too long show in
        # most of the waits.
        waited.sort()
        slow = waited[len(waited) * 99 // 100]
        assert list(direct.scan_iter("__pressure__:*:bound")) == [b"__pressure__:used:bound"]
        assert work <= MOST_WORK
        assert slow < 0.1
