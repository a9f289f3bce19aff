"""A backend that drops keys when its memory is full: refused, or allowed and repaired."""

from __future__ import annotations

from contextlib import suppress

import pytest
import redis

from tests.support.programs import Client, StartServer, StartValkey, run_command, wait_for
from tests.support.waiters import Waiter, is_refused

POLICY = ("--maxmemory-policy", "allkeys-lru")


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_backend_that_may_drop_any_key_is_refused_at_the_start(
    start_valkey: StartValkey, policy: str
) -> None:
    backend = start_valkey("--maxmemory-policy", policy)
    ended = run_command("serve", "--listen", "resp://127.0.0.1:0", "--backend", backend.url)
    assert ended.returncode == 1
    assert f"maxmemory-policy {policy}" in ended.stderr + ended.stdout
    assert "--allow-eviction" in ended.stderr + ended.stdout


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru"])
def test_one_that_drops_no_key_of_a_queue_is_not(
    start_valkey: StartValkey, start_server: StartServer, policy: str
) -> None:
    backend = start_valkey("--maxmemory-policy", policy)
    server = start_server("--backend", backend.url)
    with Waiter(server.port) as waiter:
        assert waiter("PRESSURE.READY") == b"OK"


@pytest.mark.slow
def test_a_server_whose_backend_changes_to_that_is_not_ready(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    with Waiter(server.port) as waiter, backend.client() as direct:
        direct.config_set("maxmemory-policy", "allkeys-lru")
        wait_for(lambda: is_refused(waiter("PRESSURE.READY"), "BACKEND"), "it to be not ready")
        assert "allkeys-lru" in str(waiter("PRESSURE.READY"))
        assert waiter("SADD", "q", "m") == 1
        direct.config_set("maxmemory-policy", "noeviction")
        wait_for(lambda: waiter("PRESSURE.READY") == b"OK", "it to be ready again")
    assert server.log.count("WARNING") == 1


def drop_all(direct: Client) -> None:
    """Have the backend drop what it has, as it does when its memory is full."""
    direct.config_set("maxmemory-samples", 64)
    direct.config_set("maxmemory", 1)

    def is_gone() -> bool:
        with suppress(redis.OutOfMemoryError):  # when nothing is left to be dropped
            direct.set("other", "x")
        return not direct.exists("__pressure__:q:bound")

    wait_for(is_gone, "keys to go")
    direct.config_set("maxmemory", 0)


def test_allowed_a_queue_that_was_dropped_is_empty_and_works(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey(*POLICY)
    server = start_server("--backend", backend.url, "--allow-eviction")
    with server.client() as client, backend.client() as direct:
        assert client.sadd("q", "a", "b") == 2
        drop_all(direct)
        assert client.scard("q") == 0
        assert client.sadd("q", "c") == 1
        assert client.spop("q") == b"c"
    assert "maxmemory-policy allkeys-lru" in server.log


# Keys of a queue, each of which the backend may have dropped alone, and what clients see then.
TOKENS = [":producer_free", ":consumer_free"]


@pytest.mark.parametrize("dropped", [*TOKENS, ":not_full", ":producer", ":consumer", ":ext:settings"])
def test_allowed_a_queue_of_which_a_part_was_dropped_is_repaired(
    start_valkey: StartValkey, start_server: StartServer, dropped: str
) -> None:
    backend = start_valkey(*POLICY)
    server = start_server(
        "--backend", backend.url, "--allow-eviction", "--auto-repair-after", "1", "--role-timeout", "15"
    )
    with server.client() as client, backend.client() as direct:
        assert client.sadd("q", "a", "b") == 2
        assert client.spop("q") == b"a"
        assert direct.delete(f"__pressure__:q{dropped}") == 1
        # Both wait for the role until it has been given back.
        assert client.sadd("q", "c") == 1
        assert client.spop("q") == b"b"
        assert client.spop("q") == b"c"
        if dropped in TOKENS:
            assert "Auto-repair gave the" in server.log
