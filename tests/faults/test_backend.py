"""The backend: away and back, numbered databases, passwords, versions that are too old."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis

from pressure_server.backend.address import Address
from pressure_server.backend.watch import Watch
from tests.support.brokers import default_broker
from tests.support.faults import Impostor
from tests.support.programs import (
    Server,
    StartServer,
    StartValkey,
    Valkey,
    keys_left,
    refused_start,
    wait_for,
)
from tests.support.waiters import Waiter, is_refused


def test_a_started_broker_watches_keys(
    backend: Valkey, direct: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the native deletion of a queue that is used at once would not be noticed."""
    greet = Watch._greet

    async def greet_late(self: Watch, connection: Any, address: Address) -> None:
        for _ in range(1000):
            await asyncio.sleep(0)
        await greet(self, connection, address)

    monkeypatch.setattr(Watch, "_greet", greet_late)

    async def main() -> None:
        broker = default_broker(backend.url)
        await broker.start()
        # All its connections have its name.
        flags = [found["flags"] for found in direct.client_list() if found["name"] == broker.identity]
        await broker.close()
        assert any("t" in of_one for of_one in flags)

    asyncio.run(main())


def test_while_the_backend_is_away_operations_fail_at_once_and_then_work_again(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url, "--backend-grace", "0.2")
    with server.client() as client, Waiter(server.port) as waiter:
        assert client.sadd("q", "a") == 1
        valkey.kill()
        wait_for(lambda: is_refused(waiter("SADD", "q", "b"), "BACKEND"), "an error")
        assert is_refused(waiter("SPOP", "q"), "BACKEND")
        assert is_refused(waiter("KEYS", "*"), "BACKEND")
        assert client.ping()
        assert client.info("backend")["backend_link_status"] == "down"
        valkey.start()
        wait_for(lambda: waiter("SADD", "q", "c") in (0, 1), "the backend to be back")
        assert client.info("backend")["backend_link_status"] == "up"


def test_select_selects_the_backend_s_database_of_that_number(server: Server, backend: Valkey) -> None:
    with server.client(db=5) as client:
        assert client.sadd("q", "a") == 1
        assert client.client_info()["db"] == 5
    with backend.client(db=5) as direct:
        assert direct.lrange("__pressure__:q", 0, -1) == [b"a"]
    with server.client() as client:
        assert client.scard("q") == 0
        with pytest.raises(redis.ResponseError, match="DB index is out of range"):
            client.execute_command("SELECT", 16)
        assert client.scard("q") == 0


def test_clients_begin_in_the_database_of_the_backend_option(
    start_server: StartServer, backend: Valkey
) -> None:
    server = start_server("--backend", f"{backend.url}?db=3")
    with server.client() as client, backend.client(db=3) as direct:
        client.sadd("q", "a")
        assert direct.llen("__pressure__:q") == 1


def test_flushall_deletes_the_queues_of_all_databases_and_nothing_else(
    server: Server, backend: Valkey
) -> None:
    with backend.client() as direct, server.client() as client, server.client(db=2) as other:
        direct.set("foreign", "value")
        client.sadd("q", "a")
        other.sadd("q", "b")
        client.flushdb()
        assert (client.exists("q"), other.exists("q")) == (0, 1)
        client.flushall()
        assert other.exists("q") == 0
        assert keys_left(direct) == [b"foreign"]


def test_a_password_of_the_backend_is_used_and_not_shown(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey("--requirepass", "not&for%show")
    server = start_server("--backend", valkey.url.replace("unix://", "unix://:not&for%25show@"))
    with server.client() as client:
        assert client.sadd("q", "a") == 1
        assert "show" not in str(client.info())
    assert "show" not in server.log
    assert "NOAUTH" in refused_start("--backend", valkey.url)


def test_an_old_redis_is_refused_with_the_reason(tmp_path: Path) -> None:
    info = b"# Server\r\nredis_version:6.2.14\r\n"
    old = Impostor(tmp_path / "old", b"$%d\r\n%b\r\n" % (len(info), info))
    error = refused_start("--backend", f"unix://{old.path}")
    assert "is Redis 6.2.14; Redis 7.0, Valkey 7.2 or newer is needed" in error
