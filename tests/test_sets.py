"""A queue as a set, through redis-py."""

from __future__ import annotations

import pytest
import redis

from tests.support.programs import Client


def test_the_python_example_of_message_queue(client: Client) -> None:
    assert client.sadd("niki", "12") == 1
    assert client.sadd("niki", "15") == 1
    assert client.scard("niki") == 2
    assert client.sismember("niki", "abc") == 0
    assert client.sismember("niki", "12") == 1
    assert client.spop("niki") == b"12"
    assert client.spop("niki") == b"15"
    assert client.spop("niki") is None


def test_a_message_is_stored_once_and_stays_in_its_place(client: Client) -> None:
    assert client.sadd("q", "a", "b", "a", "c") == 3
    assert client.sadd("q", "b", "d") == 1
    assert client.lrange("q", 0, -1) == [b"a", b"b", b"c", b"d"]
    assert client.spop("q", 3) == [b"a", b"b", b"c"]
    assert client.sadd("q", "a") == 1
    assert client.spop("q", 0) == []
    assert client.spop("q", 9) == [b"d", b"a"]


def test_a_pipeline_of_everything_is_answered_in_order(client: Client) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(300):
        pipeline.sadd("q", number % 200)
    pipeline.scard("q").ping().sismember("q", 5).spop("q").spop("q", 2).smembers("other").spop("other")
    for _ in range(250):
        pipeline.spop("q")
    pipeline.echo("x").lpush("q", "y").llen("q")
    replies = pipeline.execute()
    assert replies[:300] == [1] * 200 + [0] * 100
    assert replies[300:307] == [200, True, 1, b"0", [b"1", b"2"], set(), None]
    assert replies[307:557] == [b"%d" % number for number in range(3, 200)] + [None] * 53
    assert replies[557:] == [b"x", 1, 1]


def test_messages_are_any_bytes(client: Client) -> None:
    messages = [b"", b"\r\n", b"$3\r\nfoo\r\n", bytes(range(256)), b"\0" * 100_000, "żółw".encode()]
    assert client.sadd("q", *messages) == len(messages)
    assert client.smismember("q", [*messages, b"no"]) == [1] * len(messages) + [0]
    assert [client.spop("q") for _ in messages] == messages


def test_a_large_queue_is_taken_at_once_and_scanned(client: Client) -> None:
    messages = [b"message-%d" % number for number in range(25_000)]
    assert client.sadd("q", *messages) == 25_000
    assert client.scard("q") == 25_000
    assert list(client.sscan_iter("q", count=700)) == messages
    assert list(client.sscan_iter("q", match="message-1*9", count=5000)) == [
        m for m in messages if m.startswith(b"message-1") and m.endswith(b"9")
    ]
    assert client.srem("q", *messages[1000:1100], "none") == 100
    assert client.spop("q", 30_000) == messages[:1000] + messages[1100:]


def test_large_messages_are_taken_in_order(client: Client) -> None:
    messages = [bytes([65 + number]) * 700_000 for number in range(8)]
    for message in messages:
        assert client.sadd("q", message) == 1
    assert client.sadd("q", messages[0]) == 0
    assert client.spop("q", 8) == messages


def test_random_members_stay_queued(client: Client) -> None:
    client.sadd("q", *range(100))
    picked = client.srandmember("q", 60)
    assert len(set(picked)) == 60
    assert len(client.srandmember("q", -250)) == 250
    assert len(client.srandmember("q", 1000)) == 100
    assert client.srandmember("q") in {b"%d" % number for number in range(100)}
    assert client.srandmember("none") is None
    assert client.scard("q") == 100


def test_random_members_with_repeats_are_bounded(client: Client) -> None:
    client.sadd("q", b"x" * 1_000_000)
    assert len(client.srandmember("q", -60)) == 60
    with pytest.raises(redis.ResponseError, match="would exceed 64 MiB"):
        client.srandmember("q", -100)


def test_a_scan_misses_nothing_that_stays_while_others_are_taken(client: Client) -> None:
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


def test_statistics_are_right_after_every_operation(client: Client) -> None:
    def queue() -> dict[str, int]:
        return dict(client.info("queues")["queue_q"])

    client.sadd("q", "aa", "bbb", "aa")
    assert (queue()["produced"], queue()["produced_bytes"]) == (2, 5)
    client.rpush("q", "aa")
    assert (queue()["produced"], queue()["produced_bytes"]) == (3, 7)
    client.srem("q", "aa")
    assert (queue()["consumed"], queue()["consumed_bytes"], queue()["length"]) == (2, 4, 1)
    client.spop("q")
    client.spop("q")
    assert (queue()["consumed"], queue()["consumed_bytes"], queue()["length"]) == (3, 7, 0)
