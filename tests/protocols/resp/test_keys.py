"""Queues as keys: names, types, deletion, scans and flushing."""

import os
import time

import pytest
import redis

from tests.support.programs import Client, StartServer, Valkey, keys_left, wait_for
from tests.support.waiters import Waiter, create, is_refused, wait_for_blocked


def test_delete_leaves_no_key(client: Client, direct: Client) -> None:
    client.sadd("q", "a", "b")
    client.rpush("q", "a")
    client.sadd("other", "x")
    assert client.delete("q", "none", "q") == 1
    assert not direct.keys("__pressure__:q*")
    assert client.unlink("other") == 1
    assert not keys_left(direct)


@pytest.mark.slow
def test_delete_removes_keys_left_by_two_simultaneous_native_deletes(client: Client, direct: Client) -> None:
    direct.lpush("__pressure__:q:not_full", 0)
    direct.lpush("__pressure__:q:closed", 0, 0)
    with pytest.raises(redis.ResponseError, match="INUSE"):
        client.sadd("q", "a")
    assert client.delete("q") == 0
    assert client.sadd("q", "a") == 1


def test_an_invalid_index_is_rebuilt(client: Client, direct: Client) -> None:
    client.sadd("q", "a", "b")
    direct.set("__pressure__:q:ext:index", "no index")
    assert client.sadd("q", "b", "c") == 1
    assert client.smismember("q", ["a", "b", "c", "d"]) == [1, 1, 1, 0]


def test_keys_and_scans_see_queues_only(client: Client, direct: Client) -> None:
    direct.set("foreign", "1")
    direct.set("foreign:bound", "1")
    names = {b"a", b"ab", b"b[1]", b"c:d", b"e*", b"\xff"}
    for name in names:
        client.sadd(name, "message")
    assert set(client.keys("*")) == names
    assert set(client.keys("a*")) == {b"a", b"ab"}
    assert client.keys("b\\[1\\]") == [b"b[1]"]
    assert set(client.scan_iter(count=1)) == names
    assert set(client.scan_iter(match="?")) == {b"a", b"\xff"}
    assert set(client.scan_iter(_type="set")) == names
    assert set(client.scan_iter(_type="list")) == set()
    assert client.dbsize() == len(names)
    assert client.randomkey() in names
    client.flushall()
    assert client.randomkey() is None
    assert client.dbsize() == 0
    assert set(keys_left(direct)) == {b"foreign", b"foreign:bound"}


@pytest.mark.parametrize("command", ["FLUSHDB", "FLUSHALL SYNC"])
def test_flushing_waits_for_all_roles_at_once_and_deletes_all_other_queues(
    backend: Valkey, direct: Client, start_server: StartServer, command: str
) -> None:
    """Native clients hold roles of some queues, and another queue's key has the wrong type."""
    server = start_server("--backend", backend.url, "--role-timeout", "1")
    with server.client() as client, Waiter(server.port) as waiter:
        stuck = [b"stuck-%d" % number for number in range(8)]
        for number, name in enumerate(stuck):
            client.sadd(name, "a")
            client.sadd(f"free-{number}", "a")
            direct.delete(b"__pressure__:%b:producer_free" % name)
        client.sadd("odd", "a")
        direct.set("__pressure__:odd", "no list")
        began = time.monotonic()
        reply = waiter(*command.split())
        assert time.monotonic() - began < 4
        assert is_refused(reply, "INUSE") or is_refused(reply, "BACKEND"), reply
        assert client.keys() == [b"odd"]
        assert not direct.keys("__pressure__:free*")


@pytest.mark.parametrize("command", ["FLUSHDB", "FLUSHALL", "DEL stuck free"])
def test_a_delete_goes_on_after_its_client_has_disconnected(
    backend: Valkey, direct: Client, start_server: StartServer, command: str
) -> None:
    server = start_server("--backend", backend.url, "--role-timeout", "60")
    with server.client() as client, Waiter(server.port) as waiter:
        client.sadd("stuck", "a")
        client.sadd("free", "a")
        direct.delete("__pressure__:stuck:producer_free")
        waiter.send(*command.split())
        wait_for_blocked(client, 1)
        waiter.close()
        wait_for(lambda: client.info("clients")["connected_clients"] == 1, "the client to be gone")
        assert client.keys() == []


@pytest.mark.parametrize("command", ["SPOP", "SCARD", "DEL", "EXISTS", "SMEMBERS", "SADD"])
def test_a_name_of_another_queue_s_key_is_refused(waiter: Waiter, command: str) -> None:
    for name in ("q:bound", "q:producer_free", "q:stats:produced_bytes", "a:ext:b", "q:ext"):
        reply = waiter(command, name, *(["a"] if command == "SADD" else []))
        assert "cannot be a queue's name" in str(reply)


def test_any_name_that_a_key_may_have_is_a_queue_name(client: Client, direct: Client) -> None:
    names = ["", " ", ":", "q:", "bound", "ext", "a:b", "a b\r\nc", "{q}", "*", "ü", "x" * 100_000]
    arbitrary = os.urandom(200).replace(b":ext:", b"")
    for name in (*map(str.encode, names), bytes(range(256)), arbitrary):
        assert client.sadd(name, "a") == 1
        assert direct.lrange(b"__pressure__:" + name, 0, -1) == [b"a"]
        assert client.keys() == [name]
        assert client.spop(name) == b"a"
        assert client.delete(name) == 1
    assert keys_left(direct) == []


@pytest.mark.slow
def test_large_collections_of_a_deleted_queue_are_freed_in_steps(client: Client, direct: Client) -> None:
    for first in range(0, 120_000, 6000):
        client.sadd("set", *range(first, first + 6000))
    create(client, "jobs", "TYPE", "JOBS")
    for first in range(0, 102_000, 6000):
        client.rpush("jobs", *range(first, first + 6000))
    assert direct.scard("__pressure__:set:ext:members") == 120_000
    assert client.delete("set", "jobs") == 2
    assert direct.keys("__pressure__:*") == []
    assert direct.scard("__pressure__!garbage") > 0
    assert client.sadd("set", "again") == 1
    wait_for(lambda: direct.keys("__pressure__!garbage*") == [], "the garbage to be freed")
    assert client.smembers("set") == {b"again"}
