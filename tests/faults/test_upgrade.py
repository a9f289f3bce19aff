"""Upgrades from version 0.1.0: the messages of its dead servers are recovered; live ones are left alone."""

from __future__ import annotations

import pytest

from tests.support.programs import Client, StartServer, Valkey, wait_for

BASE = "__pressure__"
# Writes a call record of version 0.1.0: number, reply, places of the messages, marks and open reads.
WRITE = "return redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(cjson.decode(ARGV[2])))"
DEAD = "pressure-server:old:1:aaaa"
ALIVE = "pressure-server:old:2:bbbb"


def make_queue(direct: Client, name: str, *messages: str, consumed: int) -> None:
    """Write a queue as version 0.1.0 does; `consumed` is the number of messages taken from it."""
    base = f"{BASE}:{name}"
    direct.mset({f"{base}:bound": 0, f"{base}:producer": DEAD, f"{base}:consumer": DEAD})
    for token in ("producer_free", "consumer_free", "not_full"):
        direct.lpush(f"{base}:{token}", 1)
    direct.hset(f"{base}:ext:settings", "overflow", "block")
    if messages:
        direct.lpush(base, *messages)
    direct.mset(
        {
            f"{base}:stats:produced_messages": len(messages) + consumed,
            f"{base}:stats:consumed_messages": consumed,
            f"{base}:stats:produced_bytes": 10 * (len(messages) + consumed),
            f"{base}:stats:consumed_bytes": 10 * consumed,
        }
    )


def record_call(direct: Client, name: str, slot: str, record: str, server: str = DEAD) -> None:
    direct.eval(WRITE, 1, f"{BASE}:{name}:ext:calls", f"{server} {slot}", record)


@pytest.fixture
def old_data(direct: Client) -> None:
    """Queues and call records of version 0.1.0: three queues of a dead server, a fourth of a live one."""
    direct.hset(f"{BASE}!servers", mapping={DEAD: "17 0.5", ALIVE: "1 0.5"})
    # Two calls: the messages of the later one are put back first.
    make_queue(direct, "plain", "c", "d", consumed=3)
    record_call(direct, "plain", "1", '["4", [0, ["a1", "a2"]], [2]]')
    record_call(direct, "plain", "2", '["5", [[0, 1, ["b"]], []], [-3]]')
    # A message with flags, and one of an open read.
    make_queue(direct, "marked", consumed=2)
    record_call(direct, "marked", "1", '["6", [0, ["m", "7"]], [{"marked": 2}], ["m", ["7", 0]], []]')
    record_call(direct, "marked", "o2.1", '["7", false, [["open"]], ["open", ["3", 0]]]')
    # A call that has taken no message, and a call on a deleted queue.
    make_queue(direct, "puts", "x", consumed=0)
    record_call(direct, "puts", "1", '["8", [0, "new"], []]')
    record_call(direct, "gone", "1", '["9", [0, ["lost"]], [2]]')
    make_queue(direct, "live", consumed=1)
    record_call(direct, "live", "1", '["3", [0, ["t"]], [2]]', ALIVE)


@pytest.mark.usefixtures("old_data")
def test_messages_of_a_dead_old_server_are_recovered(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    client = start_server("--backend", backend.url, "--proxy-timeout", "1").client()
    heartbeat = 1

    def is_forgotten() -> bool:
        nonlocal heartbeat
        heartbeat += 1
        direct.hset(f"{BASE}!servers", ALIVE, f"{heartbeat} 0.5")
        return not direct.hexists(f"{BASE}!servers", DEAD)

    wait_for(is_forgotten, "the dead server to be forgotten")
    assert client.lrange("plain", 0, -1) == [b"a1", b"a2", b"b", b"c", b"d"]
    assert direct.get(f"{BASE}:plain:stats:consumed_messages") == b"0"
    assert [client.spop("marked") for _ in range(3)] == [b"m", b"open", None]
    assert client.lrange("puts", 0, -1) == [b"x"]
    assert not direct.exists(f"{BASE}:gone")
    # The live server still sends heartbeats.
    assert client.llen("live") == 0
    assert direct.keys(f"{BASE}:*:ext:calls") == [f"{BASE}:live:ext:calls".encode()]
    assert direct.hkeys(f"{BASE}!servers") == [ALIVE.encode()]


def test_a_server_leaves_no_records_that_the_old_version_reads(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    # The old version puts back the messages of a server in its registry that sends no heartbeats.
    client = start_server("--backend", backend.url).client()
    client.sadd("q", "a", "b")
    assert client.spop("q") == b"a"
    assert not direct.exists(f"{BASE}!servers", f"{BASE}:q:ext:calls")


@pytest.mark.usefixtures("old_data")
def test_deleting_a_queue_deletes_the_records_of_the_old_version(client: Client, direct: Client) -> None:
    client.delete("live")
    assert not direct.keys(f"{BASE}:live*")


@pytest.mark.usefixtures("old_data")
def test_an_unused_queue_with_records_of_the_old_version_stays(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    direct.hset(f"{BASE}:live:ext:settings", "implicit", 1)
    client = start_server("--backend", backend.url, "--implicit-queue-ttl", "1").client()
    client.sadd("unused", "x")
    client.spop("unused")
    wait_for(lambda: not client.exists("unused"), "an unused queue to be deleted", timeout=40)
    assert client.exists("live")
