"""What a dead server of version 0.1.0 has left on the backend is taken over; one that lives is left alone."""

from __future__ import annotations

import pytest

from tests.support.programs import Client, StartServer, Valkey, wait_for

BASE = "__pressure__"
# As version 0.1.0 did: the number of a call, its reply, where the messages are, marks, what is open.
WRITE = """
local number, reply, places, marks, opened = unpack(cjson.decode(ARGV[2]))
return redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack({ number, reply, places, marks, opened }))
"""
DEAD = "pressure-server:old:1:aaaa"
ALIVE = "pressure-server:old:2:bbbb"


def make_queue(direct: Client, name: str, *messages: str, consumed: int) -> None:
    """A queue as version 0.1.0 has it, from which so many messages have been taken."""
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


def note(direct: Client, name: str, slot: str, record: str, server: str = DEAD) -> None:
    direct.eval(WRITE, 1, f"{BASE}:{name}:ext:calls", f"{server} {slot}", record)


@pytest.fixture
def left(direct: Client) -> None:
    """What a dead server of version 0.1.0 had taken from three queues, and a live one from a fourth."""
    direct.hset(f"{BASE}!servers", mapping={DEAD: "17 0.5", ALIVE: "1 0.5"})
    # Two calls: the later one's messages go back first.
    make_queue(direct, "plain", "c", "d", consumed=3)
    note(direct, "plain", "1", '["4", [0, ["a1", "a2"]], [2]]')
    note(direct, "plain", "2", '["5", [[0, 1, ["b"]], []], [-3]]')
    # With flags, and one message that is open.
    make_queue(direct, "marked", consumed=2)
    note(direct, "marked", "1", '["6", [0, ["m", "7"]], [{"marked": 2}], ["m", ["7", 0]], []]')
    note(direct, "marked", "o2.1", '["7", false, [["open"]], ["open", ["3", 0]]]')
    # A call that has taken nothing, and a queue that is no more.
    make_queue(direct, "puts", "x", consumed=0)
    note(direct, "puts", "1", '["8", [0, "new"], []]')
    note(direct, "gone", "1", '["9", [0, ["lost"]], [2]]')
    make_queue(direct, "theirs", consumed=1)
    note(direct, "theirs", "1", '["3", [0, ["t"]], [2]]', ALIVE)


@pytest.mark.usefixtures("left")
def test_what_a_dead_server_of_the_old_version_had_taken_is_back(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    client = start_server("--backend", backend.url, "--proxy-timeout", "1").client()
    signs = 1

    def is_forgotten() -> bool:
        nonlocal signs
        signs += 1
        direct.hset(f"{BASE}!servers", ALIVE, f"{signs} 0.5")
        return not direct.hexists(f"{BASE}!servers", DEAD)

    wait_for(is_forgotten, "the dead server to be forgotten")
    assert client.lrange("plain", 0, -1) == [b"a1", b"a2", b"b", b"c", b"d"]
    assert direct.get(f"{BASE}:plain:stats:consumed_messages") == b"0"
    assert [client.spop("marked") for _ in range(3)] == [b"m", b"open", None]
    assert client.lrange("puts", 0, -1) == [b"x"]
    assert not direct.exists(f"{BASE}:gone")
    # The other one still signs.
    assert client.llen("theirs") == 0
    assert direct.keys(f"{BASE}:*:ext:calls") == [f"{BASE}:theirs:ext:calls".encode()]
    assert direct.hkeys(f"{BASE}!servers") == [ALIVE.encode()]


def test_a_server_of_the_old_version_does_not_see_us(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    """It takes for dead what stands still in its registry, and puts back what queues keep."""
    client = start_server("--backend", backend.url).client()
    client.sadd("q", "a", "b")
    assert client.spop("q") == b"a"
    assert not direct.exists(f"{BASE}!servers", f"{BASE}:q:ext:calls")


@pytest.mark.usefixtures("left")
def test_a_queue_that_is_deleted_takes_along_what_the_old_version_kept(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    client = start_server("--backend", backend.url).client()
    client.delete("theirs")
    assert not direct.keys(f"{BASE}:theirs*")


@pytest.mark.usefixtures("left")
def test_an_unused_queue_stays_while_the_old_version_has_messages_of_it(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    direct.hset(f"{BASE}:theirs:ext:settings", "implicit", 1)
    client = start_server("--backend", backend.url, "--implicit-queue-ttl", "1").client()
    client.sadd("ours", "x")
    client.spop("ours")
    wait_for(lambda: not client.exists("ours"), "an unused queue to be deleted", timeout=40)
    assert client.exists("theirs")
