"""Messages and room that become available without a put or a get: clients that wait are served at once.

The matrix has most of these events; here are those that it does not have.
"""

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
