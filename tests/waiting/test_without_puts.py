"""Messages and room that become available without a put or a get: clients that wait are served at once."""

from collections.abc import Iterator

import pytest

from tests.support.native import NativeSteps, run, step_until
from tests.support.programs import Client, Server, Valkey
from tests.support.protocols import LISTEN, MEMCACHED, Wire, stored
from tests.support.waiters import Waiter, create, wait_for_blocked

# Seconds within which a client must be served that is woken; far less than the server's timeouts.
AT_ONCE = 2.0
LATE_ROLES = ("--role-timeout", "30")


@pytest.fixture(scope="module")
def servers(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("servers")
    started = [
        Server(folder / f"log-{number}", "--backend", shared_backend.url, *LISTEN, *LATE_ROLES)
        for number in range(2)
    ]
    yield started
    for server in started:
        server.end_well()


@pytest.fixture
def client(servers: list[Server], backend: Valkey) -> Iterator[Client]:
    """A client of the server on which others wait."""
    with servers[0].client() as connected:
        yield connected


@pytest.fixture
def waiter(servers: list[Server]) -> Iterator[Waiter]:
    with Waiter(servers[0].port) as connected:
        yield connected


@pytest.fixture(params=["same server", "other server"])
def actor(request: pytest.FixtureRequest, servers: list[Server], backend: Valkey) -> Iterator[Client]:
    """A client that makes messages or room available."""
    with servers[request.param == "other server"].client() as connected:
        yield connected


SEEKS = ("HEAD", "0")


@pytest.mark.parametrize("start", SEEKS)
@pytest.mark.parametrize(
    "line", ["BLPOP log+g 20", "PRESSURE.RESERVE log+g TIMEOUT 20", "PRESSURE.READ log GROUP g c TIMEOUT 20"]
)
def test_a_group_that_goes_back_has_messages(
    client: Client, waiter: Waiter, actor: Client, line: str, start: str
) -> None:
    create(client, "log", "TYPE", "LOG")
    for group in ("g", "h"):
        client.execute_command("PRESSURE.GROUP", "CREATE", "log", group)
    client.rpush("log", "m")
    assert client.lpop("log+g") == b"m"
    waiter.send(*line.split())
    wait_for_blocked(client, 1)
    actor.execute_command("PRESSURE.GROUP", "SEEK", "log", "g", "FROM", start)
    assert b"m" in _flat(waiter.reply(AT_ONCE))


def _flat(reply: object) -> list[object]:
    return [part for one in reply for part in _flat(one)] if isinstance(reply, list) else [reply]


@pytest.mark.parametrize(
    "line", ["PRESSURE.GROUP DELETE log slow", "DEL log+slow", "PRESSURE.DELETE log+slow"]
)
def test_a_log_has_room_when_its_slowest_group_is_deleted(
    client: Client, waiter: Waiter, actor: Client, line: str
) -> None:
    create(client, "log", "TYPE", "LOG", "BOUND", 1)
    for group in ("slow", "quick"):
        client.execute_command("PRESSURE.GROUP", "CREATE", "log", group)
    client.rpush("log", "m")
    assert client.lpop("log+quick") == b"m"
    waiter.send("RPUSH", "log", "n")
    wait_for_blocked(client, 1)
    actor.execute_command(*line.split())
    assert waiter.reply(AT_ONCE) == 1
    assert client.lpop("log+quick") == b"n"


def test_a_log_has_room_when_the_last_delivery_of_a_message_has_ended(
    client: Client, waiter: Waiter, actor: Client
) -> None:
    """Nobody uses the group when the reservation ends."""
    create(client, "log", "TYPE", "LOG", "BOUND", 1)
    client.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
    client.execute_command("PRESSURE.ALTER", "log+g", "MAX-DELIVERIES", 1)
    client.rpush("log", "m")
    actor.execute_command("PRESSURE.READ", "log", "GROUP", "g", "c", "TTR", "0.3")
    waiter.send("RPUSH", "log", "n")
    assert waiter.reply(AT_ONCE) == 1


@pytest.mark.parametrize("kind", ["FIFO", "JOBS", "LOG"])
def test_puts_into_a_full_queue_go_on_when_it_overwrites(
    client: Client, waiter: Waiter, actor: Client, kind: str
) -> None:
    create(client, "q", "TYPE", kind, "BOUND", 1, "OVERFLOW", "BLOCK")
    client.rpush("q", "m")
    waiter.send("RPUSH", "q", "n")
    wait_for_blocked(client, 1)
    actor.execute_command("PRESSURE.ALTER", "q", "OVERFLOW", "OVERWRITE")
    assert waiter.reply(AT_ONCE) == 1
    assert client.lrange("q", 0, -1) == [b"n"]


@pytest.mark.parametrize("kind", ["FIFO", "JOBS", "LOG", "LIFO", "RANDOM"])
@pytest.mark.parametrize("limit", ["BOUND", "MAX-BYTES"])
@pytest.mark.parametrize("line", ["RPUSH q n", "SADD q n", "LMOVE other q LEFT RIGHT"])
def test_a_queue_has_room_when_its_message_expires(
    servers: list[Server], client: Client, waiter: Waiter, kind: str, limit: str, line: str
) -> None:
    create(client, "q", "TYPE", kind, limit, 1, "OVERFLOW", "BLOCK")
    client.rpush("other", "n")
    with Wire(MEMCACHED, servers[0]) as wire:
        assert wire(stored(b"q", b"m", more=b"0 1")) == b"STORED"
    waiter.send(*line.split())
    assert waiter.reply(AT_ONCE) in (1, b"n")
    assert client.lrange("q", 0, -1) == [b"n"]


def test_a_put_waits_for_the_message_that_expires_first(
    servers: list[Server], client: Client, waiter: Waiter
) -> None:
    """There is room for two of its messages when both of the others have expired."""
    create(client, "q", "BOUND", 2, "OVERFLOW", "BLOCK")
    with Wire(MEMCACHED, servers[0]) as wire:
        assert wire(stored(b"q", b"m", more=b"0 1")) == b"STORED"
        assert wire(stored(b"q", b"m", more=b"0 2")) == b"STORED"
    waiter.send("RPUSH", "q", "n", "o")
    assert waiter.reply(2 * AT_ONCE) == 2
    assert client.lrange("q", 0, -1) == [b"n", b"o"]


def test_a_queue_that_becomes_one_of_jobs_needs_no_role(
    client: Client, direct: Client, waiter: Waiter, actor: Client
) -> None:
    create(client, "q")
    client.rpush("q", "m")
    holder = NativeSteps(direct, "q", "native").get()
    step_until(holder, lambda: not direct.llen("__pressure__:q:consumer_free"))
    waiter.send("BLPOP", "q", 20)
    wait_for_blocked(client, 1)
    actor.execute_command("PRESSURE.PUT", "q", "urgent", "PRIORITY", 5)
    assert waiter.reply(AT_ONCE) == [b"q", b"urgent"]
    run(holder)
