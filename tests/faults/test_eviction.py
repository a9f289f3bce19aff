"""A backend that drops keys when its memory is full is refused, or allowed and its queues are repaired."""

from contextlib import suppress

import pytest
import redis

from tests.support.programs import Client, StartServer, StartValkey, refused_start, wait_for
from tests.support.waiters import Waiter, is_refused

EVICTING = ("--maxmemory-policy", "allkeys-lru")


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_backend_that_may_drop_any_key_is_refused_at_the_start(
    start_valkey: StartValkey, policy: str
) -> None:
    error = refused_start("--backend", start_valkey("--maxmemory-policy", policy).url)
    assert f"maxmemory-policy {policy}" in error
    assert "--allow-eviction" in error


def test_a_backend_that_drops_no_key_of_a_queue_is_accepted(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    server = start_server("--backend", start_valkey("--maxmemory-policy", "volatile-lru").url)
    with Waiter(server.port) as waiter:
        assert waiter("PRESSURE.READY") == b"OK"


@pytest.mark.slow
def test_a_server_is_not_ready_while_its_backend_may_drop_any_key(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    with Waiter(server.port) as waiter, backend.client() as direct:
        direct.config_set("maxmemory-policy", "allkeys-lru")
        wait_for(lambda: is_refused(waiter("PRESSURE.READY"), "BACKEND"), "the server to be not ready")
        assert "allkeys-lru" in str(waiter("PRESSURE.READY"))
        assert waiter("SADD", "q", "m") == 1
        direct.config_set("maxmemory-policy", "noeviction")
        wait_for(lambda: waiter("PRESSURE.READY") == b"OK", "the server to be ready again")
    assert server.log.count("WARNING") == 1


def drop_all(direct: Client) -> None:
    """Let the backend drop its keys as if its memory were full."""
    direct.config_set("maxmemory-samples", 64)
    direct.config_set("maxmemory", 1)

    def is_gone() -> bool:
        with suppress(redis.OutOfMemoryError):  # when no key is left
            direct.set("other", "x")
        return not direct.exists("__pressure__:q:bound")

    wait_for(is_gone, "keys to go")
    direct.config_set("maxmemory", 0)


def test_if_eviction_is_allowed_a_dropped_queue_is_empty_and_works(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey(*EVICTING)
    server = start_server("--backend", backend.url, "--allow-eviction")
    with server.client() as client, backend.client() as direct:
        assert client.sadd("q", "a", "b") == 2
        drop_all(direct)
        assert client.scard("q") == 0
        assert client.sadd("q", "c") == 1
        assert client.spop("q") == b"c"
    assert "maxmemory-policy allkeys-lru" in server.log


@pytest.mark.parametrize(
    "dropped",
    [":producer_free", ":consumer_free", ":not_full", ":producer", ":consumer", ":ext:settings"],
)
def test_if_eviction_is_allowed_a_queue_without_one_of_its_keys_works(
    start_valkey: StartValkey, start_server: StartServer, dropped: str
) -> None:
    backend = start_valkey(*EVICTING)
    server = start_server(
        "--backend", backend.url, "--allow-eviction", "--auto-repair-after", "1", "--role-timeout", "15"
    )
    with server.client() as client, backend.client() as direct:
        assert client.sadd("q", "a", "b") == 2
        assert client.spop("q") == b"a"
        assert direct.delete(f"__pressure__:q{dropped}") == 1
        # These wait for a role until it is given back.
        assert client.sadd("q", "c") == 1
        assert client.spop("q") == b"b"
        assert client.spop("q") == b"c"
        if dropped.endswith("_free"):
            assert "Auto-repair gave the" in server.log
