"""Set commands on a queue, through redis-py."""

import re
import threading

import pytest
import redis

from tests.support.programs import Client, Server
from tests.support.waiters import create


def test_sadd_stores_a_message_once_and_keeps_its_position(client: Client) -> None:
    assert client.sadd("q", "a", "b", "a", "c") == 3
    assert client.sadd("q", "b", "d") == 1
    assert client.lrange("q", 0, -1) == [b"a", b"b", b"c", b"d"]
    assert client.spop("q", 3) == [b"a", b"b", b"c"]
    assert client.sadd("q", "a") == 1
    assert client.spop("q", 0) == []
    assert client.spop("q", 9) == [b"d", b"a"]


@pytest.mark.parametrize("kind", ["FIFO", "JOBS"])
def test_a_message_that_a_ring_has_dropped_is_new_again_in_the_same_pipeline(
    client: Client, kind: str
) -> None:
    create(client, "q", "TYPE", kind, "BOUND", 2, "OVERFLOW", "OVERWRITE")
    client.rpush("q", "a", "b")
    with client.pipeline(transaction=False) as pipe:
        for message in "cad":
            pipe.sadd("q", message)
        assert pipe.execute() == [1, 1, 1]
    assert client.lrange("q", 0, -1) == [b"a", b"d"]
    assert client.sismember("q", "a")
    assert not client.sismember("q", "b")


def test_a_message_may_have_any_bytes(client: Client) -> None:
    messages = [b"", b"\r\n", b"$3\r\nfoo\r\n", bytes(range(256)), b"\0" * 100_000, "żółw".encode()]
    assert client.sadd("q", *messages) == len(messages)
    assert client.smismember("q", [*messages, b"no"]) == [1] * len(messages) + [0]
    assert [client.spop("q") for _ in messages] == messages


def test_a_large_queue_is_scanned_and_then_taken_at_once(client: Client) -> None:
    messages = [b"message-%d" % number for number in range(25_000)]
    assert client.sadd("q", *messages) == 25_000
    assert client.scard("q") == 25_000
    assert list(client.sscan_iter("q", count=700)) == messages
    matching = [message for message in messages if re.fullmatch(b"message-1.*9", message)]
    assert list(client.sscan_iter("q", match="message-1*9", count=5000)) == matching
    assert client.srem("q", *messages[1000:1100], "none") == 100
    assert client.spop("q", 30_000) == messages[:1000] + messages[1100:]


def test_large_messages_are_taken_in_order(client: Client) -> None:
    messages = [bytes([65 + number]) * 700_000 for number in range(8)]
    for message in messages:
        assert client.sadd("q", message) == 1
    assert client.sadd("q", messages[0]) == 0
    assert client.spop("q", 8) == messages


def test_srandmember_takes_no_message(client: Client) -> None:
    client.sadd("q", *range(100))
    for count, found, different in ((60, 60, 60), (1000, 100, 100), (10_000, 100, 100), (-250, 250, 1)):
        picked = client.srandmember("q", count)
        assert len(picked) == found
        assert different <= len(set(picked)) <= 100
    assert client.srandmember("none", 10_000) == []
    with client.pipeline() as pipe:
        assert len(pipe.srandmember("q", 10_000).execute()[0]) == 100
    client.sadd("many", *range(10_050))
    assert len(set(client.srandmember("many", 10_040))) == 10_040
    with pytest.raises(redis.ResponseError, match="out of range"):
        client.srandmember("many", -10_001)
    assert client.srandmember("q") in {b"%d" % number for number in range(100)}
    assert client.srandmember("none") is None
    assert client.scard("q") == 100
    client.sadd("large", b"x" * 1_000_000)
    assert len(client.srandmember("large", -60)) == 60
    with pytest.raises(redis.ResponseError, match="would exceed 64 MiB"):
        client.srandmember("large", -100)


def test_a_scan_misses_no_message_that_stays_while_others_are_taken(client: Client) -> None:
    client.sadd("q", *range(1000))
    cursor, seen = 0, set()
    for _ in range(1000):
        cursor, found = client.sscan("q", cursor, count=50)
        seen.update(found)
        client.spop("q", 20)
        client.srem("q", 990)
        if not cursor:
            break
    assert cursor == 0
    left = set(client.smembers("q"))
    assert left
    assert left <= seen


def test_statistics_count_every_message_and_byte(client: Client) -> None:
    def statistics() -> list[int]:
        found = client.info("queues")["queue_q"]
        names = ("produced", "produced_bytes", "consumed", "consumed_bytes", "length")
        return [found[name] for name in names]

    client.sadd("q", "aa", "bbb", "aa")
    assert statistics() == [2, 5, 0, 0, 2]
    client.rpush("q", "aa")
    assert statistics() == [3, 7, 0, 0, 3]
    client.srem("q", "aa")
    assert statistics() == [3, 7, 2, 4, 1]
    client.spop("q")
    client.spop("q")
    assert statistics() == [3, 7, 3, 7, 0]


@pytest.mark.parametrize("command", ["SADD", "RPUSH"])
def test_very_many_messages_are_put_in_order(client: Client, command: str) -> None:
    """They are put in portions, unless the queue is bounded."""
    count = 25_001
    assert client.execute_command(command, "q", *range(count)) == count
    assert client.lrange("q", 0, -1) == [b"%d" % number for number in range(count)]
    again = client.execute_command(command, "q", *range(1, count + 1))
    assert again == (1 if command == "SADD" else 2 * count)
    client.execute_command("PRESSURE.CREATE", "bounded", "BOUND", count - 1, "OVERFLOW", "ERROR")
    with pytest.raises(redis.ResponseError, match="FULL"):
        client.execute_command(command, "bounded", *range(count))
    assert client.llen("bounded") == 0
    assert client.rpushx("none", *range(count)) == 0
    with client.pipeline() as pipe:
        pipe.execute_command(command, "atomic", *range(count)).llen("atomic")
        assert pipe.execute() == [count, count]


@pytest.mark.parametrize("kind", ["jobs", "lifo", "log"])
def test_long_queues_are_read_at_one_moment(client: Client, server: Server, kind: str) -> None:
    """They are read in portions, and again if they have changed in between."""
    other, end = server.client(), threading.Event()
    for name in ("q", "r"):
        client.execute_command("PRESSURE.CREATE", name, "TYPE", kind)
        client.rpush(name, *range(3000))
    everything = client.lrange("q", 0, -1)
    assert len(everything) == 3000
    assert client.lrange("q", 700, 2500) == everything[700:2501]
    assert client.lrange("q", 0, -2) == everything[:-1]

    def change() -> None:
        number = 3000
        while not end.is_set():
            with other.pipeline() as both:
                both.rpush("q", number).rpush("r", number).execute()
            number += 1

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(5):
            assert {*map(int, found := client.sdiff("q", "none"))} == set(range(len(found)))
            assert client.sdiff("q", "r") == set()
    finally:
        end.set()
        changing.join()
    assert client.sunion("q", "none", "r") == set(client.smembers("q"))
