"""Limits: bytes of a queue, the number of queues, the backend's memory; queues with a time to live."""

import re

import pytest
import redis

from tests.support.module_servers import module_server
from tests.support.native import NativeClient
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, Wire
from tests.support.series import Series, run_series
from tests.support.waiters import Waiter, about, create, wait_for_blocked

shared_server = module_server(*LISTEN)

BYTES: Series = [
    ("PRESSURE.CREATE q MAX-BYTES 10 OVERFLOW ERROR", b"OK"),
    ("LPUSH q 12345", 1),
    ("LPUSH q 12345 67", 3),
    ("LPUSH q 1", "FULL "),
    ("SADD q 1", "FULL "),
    ("SADD q 67", 0),
    ("LPOP q", b"12345"),
    ("SADD q 67", 0),
    ("SADD q 8", 1),
    ("SISMEMBER q 8", 1),
    ("PRESSURE.ALTER q MAX-BYTES 8", b"OK"),
    ("LPUSH q 1", "FULL "),
    ("PRESSURE.ALTER q MAX-BYTES 0", b"OK"),
    ("LPUSH q 1234567890", 4),
    ("PRESSURE.CREATE ring MAX-BYTES 10 OVERFLOW OVERWRITE", b"OK"),
    ("LPUSH ring 12345", 1),
    ("LPUSH ring 67890", 2),
    ("LPUSH ring 123", 2),
    ("LPUSH ring 4", 3),
    ("LPUSH ring 12345678901234567890", 4),
    ("LPUSH ring 5", 1),
    ("LRANGE ring 0 -1", [b"5"]),
    ("PRESSURE.CREATE jobs TYPE JOBS MAX-BYTES 4 OVERFLOW ERROR", b"OK"),
    ("PRESSURE.PUT jobs abcd PRIORITY 1", 1),
    ("PRESSURE.PUT jobs a PRIORITY 1", "FULL "),
    ("PRESSURE.RESERVE jobs", [b"jobs", 1, b"abcd", 1]),
    ("PRESSURE.PUT jobs bcde PRIORITY 1", 2),
    ("PRESSURE.PUT jobs a PRIORITY 1", "FULL "),
    ("PRESSURE.ACK jobs 1", 1),
    ("PRESSURE.PUT jobs a PRIORITY 1", "FULL "),
    ("PRESSURE.RESERVE jobs", [b"jobs", 2, b"bcde", 1]),
    ("PRESSURE.PUT jobs a PRIORITY 1", 3),
    ("PRESSURE.CREATE alone TYPE LOG MAX-BYTES 3 OVERFLOW ERROR", b"OK"),
    ("RPUSH alone aa", 1),
    ("RPUSH alone bb", 2),
    ("RPUSH alone cc", "FULL "),
    ("PRESSURE.CREATE log TYPE LOG MAX-BYTES 3 OVERFLOW ERROR", b"OK"),
    ("PRESSURE.PUT log abc OFFSET", 0),
    ("PRESSURE.PUT log abc OFFSET", "FULL "),
]


def test_a_queue_that_has_reached_its_bytes_is_full(waiter: Waiter) -> None:
    run_series(waiter, BYTES)


def test_a_put_into_a_ring_drops_a_thousand_messages_at_most(client: Client) -> None:
    create(client, "q", "MAX-BYTES", 3000, "OVERFLOW", "OVERWRITE")
    client.rpush("q", *["x"] * 2500)
    lengths = [client.rpush("q", message) for message in ("y" * 2900, "a", "b", "c")]
    assert lengths == [2501, 1501, 501, 100]
    assert client.lrange("q", -4, -1) == [b"y" * 2900, b"a", b"b", b"c"]


def test_a_ring_of_jobs_drops_what_it_may(waiter: Waiter) -> None:
    ring = [
        ("PRESSURE.CREATE q TYPE JOBS MAX-BYTES 3 OVERFLOW OVERWRITE", b"OK"),
        ("PRESSURE.PUT q later DELAY 100", 1),
        ("PRESSURE.PUT q a PRIORITY 1", 2),
        ("PRESSURE.PUT q b PRIORITY 1", 3),
        ("LRANGE q 0 -1", [b"b", b"later"]),
    ]
    run_series(waiter, ring)


def test_beanstalk_puts_into_a_ring(server: Server, client: Client) -> None:
    create(client, "q", "BOUND", 2, "OVERFLOW", "OVERWRITE")
    client.rpush("q", "a", "b")
    with Wire(BEANSTALK, server) as wire:
        replies = wire.ask(b"use q", b"put 1024 0 60 1\r\nc", b"put 1024 0 60 1\r\nd")
        assert [reply[:8] for reply in replies] == [b"USING q", b"INSERTED", b"INSERTED"]
    assert client.lrange("q", 0, -1) == [b"c", b"d"]
    assert about(client, "q")[b"dropped_messages"] == 2


def test_puts_wait_until_bytes_are_taken(client: Client, server: Server, direct: Client) -> None:
    create(client, "q", "MAX-BYTES", 5, "OVERFLOW", "BLOCK")
    client.rpush("q", "12345", "6")
    with Waiter(server.port) as producer:
        producer.send("RPUSH", "q", "7")
        wait_for_blocked(client, 1)
        assert direct.exists("__pressure__:q:not_full") == 0
        assert client.lpop("q") == b"12345"
        assert producer.reply() == 2


def test_reserving_from_a_list_keeps_its_limit(client: Client, waiter: Waiter, direct: Client) -> None:
    create(client, "q", "MAX-BYTES", 4, "OVERFLOW", "ERROR")
    client.rpush("q", "1234")
    assert waiter("PRESSURE.RESERVE", "q") == [b"q", 1, b"1234", 1]
    client.rpush("q", "5678")
    with pytest.raises(redis.ResponseError, match="FULL"):
        client.rpush("q", "9")
    assert waiter("PRESSURE.ACK", "q", 1) == 1
    assert direct.get("__pressure__:q:ext:made").endswith(b" limited")
    with pytest.raises(redis.ResponseError, match="FULL"):
        client.rpush("q", "9")
    assert NativeClient(direct, "q").get() == b"5678"
    assert client.rpush("q", "9") == 1


def test_new_queues_get_the_server_s_limit_of_bytes(backend: Valkey, start_server: StartServer) -> None:
    client = start_server(
        "--backend", backend.url, "--default-max-bytes", "3", "--overflow", "error"
    ).client()
    client.rpush("implicit", "1234")
    create(client, "explicit", "MAX-BYTES", 2)
    create(client, "unlimited", "MAX-BYTES", 0)
    limits = [about(client, queue)[b"max_bytes"] for queue in ("implicit", "explicit", "unlimited")]
    assert limits == [3, 2, 0]
    with pytest.raises(redis.ResponseError, match="FULL"):
        client.rpush("implicit", "5")
    assert client.info("limits")["default_max_bytes"] == 3


def test_servers_create_no_more_queues_than_they_may(
    backend: Valkey, start_server: StartServer, direct: Client
) -> None:
    client = start_server("--backend", backend.url, "--max-queues", "3", "--implicit-queue-ttl", "0").client()
    client.sadd("a", "1")
    create(client, "b", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "b", "g")
    for words in (("SADD", "c", "1"), ("PRESSURE.CREATE", "c"), ("PRESSURE.GROUP", "CREATE", "b", "h")):
        with pytest.raises(redis.ResponseError, match=r"^MAXQUEUES "):
            client.execute_command(*words)
    assert client.info("limits")["queues"] == 3
    assert client.exists("c") == 0
    NativeClient(direct, "c").create(0)
    assert client.sadd("c", "1") == 1
    assert client.delete("b") == 1
    assert client.info("limits")["queues"] == 1
    assert client.sadd("d", "1") == 1
    NativeClient(direct, "a").delete()
    wait_for(lambda: client.info("limits")["queues"] == 1, "the deleted queue to be noticed")
    client.flushall()
    assert client.info("limits")["queues"] == 0


def test_puts_are_refused_while_the_backend_stores_too_much(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    own = start_valkey()
    client = start_server("--backend", own.url, "--max-stored-bytes", "6mb").client()
    client.rpush("small", "m")

    def is_refused() -> bool:
        try:
            client.rpush("q", b"x" * 1_000_000)
        except redis.ResponseError as error:
            # As docs/reference/commands.md says.
            return re.match(r"BACKEND .*OOM .*--max-stored-bytes", str(error)) is not None
        return False

    wait_for(is_refused, "puts to be refused")
    assert client.lpop("small") == b"m"
    client.delete("q")
    wait_for(lambda: not is_refused(), "puts to be accepted again")
    limits = client.info("limits")
    assert limits["stored_bytes"] > 0
    assert limits["max_stored_bytes"] == 6 << 20


def test_a_queue_with_a_time_to_live_is_deleted_when_it_is_unused(
    backend: Valkey, start_server: StartServer, direct: Client
) -> None:
    client = start_server("--backend", backend.url, "--implicit-queue-ttl", "2").client()
    create(client, "q", "TTL", "0.5")
    create(client, "kept", "TTL", 0)
    create(client, "used", "TTL", "0.5")
    client.rpush("used", "m")
    wait_for(lambda: not client.exists("q"), "the queue to be deleted")
    assert client.exists("kept", "used") == 2
    create(client, "log", "TYPE", "LOG", "TTL", "0.5")
    client.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
    assert client.execute_command("PRESSURE.ALTER", "kept", "TTL", 0.5) is not None
    wait_for(lambda: not client.exists("kept"), "the other queue to be deleted")
    assert client.exists("used", "log", "log+g") == 3
    client.delete("used", "log")
    wait_for(lambda: direct.keys("__pressure__:*") == [], "the keys to be deleted")


def test_a_put_of_very_many_messages_into_a_queue_with_a_limit_of_bytes_is_one_step(client: Client) -> None:
    create(client, "q", "MAX-BYTES", 90_000, "OVERFLOW", "ERROR")
    assert client.rpush("q", *(b"%010d" % number for number in range(12_000))) == 12_000
