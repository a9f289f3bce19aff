"""Sets that native clients change: the server's mirror of the list finds every message, and no others.

Random programs are in tests/simulate. Native clients do not know the mirror, nor the server's other keys.
"""

from collections.abc import Iterator

import pytest

from tests.support.module_servers import module_server
from tests.support.native import NativeClient, NativeSteps, native_gets, native_puts, run, step_until
from tests.support.programs import Client, Server, Valkey
from tests.support.small_library import small_library
from tests.support.waiters import create

BASE = "__pressure__:q"
LARGE = 5000
small_server = module_server(environment=small_library())


@pytest.fixture(params=["shared", "small"])
def sets(request: pytest.FixtureRequest, backend: Valkey) -> Iterator[Client]:
    """redis-py, connected to the usual server, or to one whose library has small limits."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    with server.client() as client:
        yield client


@pytest.fixture
def native(direct: Client) -> NativeClient:
    return NativeClient(direct, "q")


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def assert_finds_what_is_queued(sets: Client, direct: Client, candidates: list[bytes]) -> None:
    queued = set(direct.lrange(BASE, 0, -1))
    assert sets.smismember("q", candidates) == [int(candidate in queued) for candidate in candidates]


def assert_adds_what_is_not_queued(sets: Client, direct: Client, candidates: list[bytes]) -> None:
    queued = direct.lrange(BASE, 0, -1)
    new = len(set(candidates) - set(queued))
    assert sets.sadd("q", *candidates) == new
    assert direct.llen(BASE) == len(queued) + new


def test_messages_pass_between_a_set_and_a_native_client(client: Client, native: NativeClient) -> None:
    client.sadd("q", "x")
    assert native.get() == b"x"
    assert client.smismember("q", ["x", "x"]) == [0, 0]
    native.put(b"y")
    assert client.sismember("q", "y") == 1
    assert client.scard("q") == 1
    assert client.sadd("q", "y", "z") == 1
    assert client.spop("q") == b"y"
    assert native.get_non_blocking() == b"z"
    assert native.get_non_blocking() is None
    assert client.spop("q") is None


def test_a_set_forgets_a_queue_that_a_native_client_deletes(client: Client, native: NativeClient) -> None:
    client.sadd("q", "x", "y")
    native.delete()
    assert client.scard("q") == 0
    native.create(2)
    native.put(b"y")
    assert client.smismember("q", ["x", "y"]) == [0, 1]


def test_a_large_queue_of_a_native_client_is_mirrored_slice_by_slice(client: Client, direct: Client) -> None:
    create(client, "q")
    native_puts(direct, BASE, numbered(0, LARGE))
    probes = numbered(0, LARGE + 1000)[::397]
    assert_finds_what_is_queued(client, direct, probes)
    # Half of each batch is queued already.
    for first in range(LARGE - 500, LARGE + 500, 100):
        assert_adds_what_is_not_queued(client, direct, numbered(first, first + 200))
        assert_finds_what_is_queued(client, direct, probes)
    assert client.spop("q", LARGE + 600) == numbered(0, LARGE + 600)
    assert direct.scard(f"{BASE}:ext:members") == 0


@pytest.mark.parametrize("between", [1, 3, 999, 6000])
def test_the_mirror_follows_native_puts_and_gets(sets: Client, direct: Client, between: int) -> None:
    create(sets, "q")
    sets.sadd("q", b"own")
    for first in range(0, 3 * between, between):
        native_puts(direct, BASE, numbered(first, first + between))
        probes = [b"own", b"none", *numbered(first, first + between)[:: max(1, between // 5)]]
        assert_finds_what_is_queued(sets, direct, probes)
        assert_adds_what_is_not_queued(sets, direct, [b"own", b"%d" % first, b"new %d" % first])
        native_gets(direct, BASE, max(1, between // 2))
        assert_finds_what_is_queued(sets, direct, probes)


def test_the_mirror_forgets_messages_that_native_clients_take(sets: Client, direct: Client) -> None:
    create(sets, "q")
    largest = 0
    for first in range(0, 20_000, 500):
        sets.sadd("q", *numbered(first, first + 500))
        native_gets(direct, BASE, direct.llen(BASE))
        largest = max(largest, direct.scard(f"{BASE}:ext:members"))
    assert largest <= 3000
    sets.sadd("q", b"last")
    assert sets.spop("q", 2) == [b"last"]
    assert_finds_what_is_queued(sets, direct, [b"last", b"19999"])


def test_a_queue_that_is_created_during_a_native_delete_has_an_exact_mirror(
    client: Client, direct: Client
) -> None:
    create(client, "q")
    client.rpush("q", "a", "b")
    client.lpop("q")
    client.rpush("q", "c")
    delete = NativeSteps(direct, "q", "deleter").delete()
    step_until(delete, lambda: direct.exists(f"{BASE}:producer", f"{BASE}:consumer") == 0)
    creation = NativeSteps(direct, "q", "creator").create(0)
    step_until(creation, lambda: direct.llen(f"{BASE}:consumer_free") == 1)
    # The server becomes :consumer again, and stays it when the list is deleted.
    assert client.lpop("q") == b"b"
    assert client.sismember("q", "c") == 1
    run(delete)
    run(creation)
    run(NativeSteps(direct, "q", "native").put(b"x"))
    assert_finds_what_is_queued(client, direct, [b"c", b"x"])
