"""A queue as a list: FIFO whatever end a command names."""

from __future__ import annotations

import pytest

from tests.support.programs import Client


@pytest.mark.parametrize("push", ["lpush", "rpush"])
@pytest.mark.parametrize("pop", ["lpop", "rpop"])
def test_any_push_and_any_pop_are_first_in_first_out(client: Client, push: str, pop: str) -> None:
    assert getattr(client, push)("q", "a", "b", "a") == 3
    assert getattr(client, push)("q", "c") == 4
    assert getattr(client, pop)("q") == b"a"
    assert getattr(client, pop)("q", 2) == [b"b", b"a"]
    assert getattr(client, pop)("q", 5) == [b"c"]
    assert getattr(client, pop)("q") is None
    assert getattr(client, pop)("q", 5) is None


def test_lengths_of_a_pipeline_of_pushes_count_up(client: Client) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(40):
        pipeline.rpush("q", number)
    pipeline.rpush("q", "a", "b", "c")
    assert pipeline.execute() == [*range(1, 41), 43]


def test_ranges_and_positions_count_from_the_oldest(client: Client) -> None:
    client.rpush("q", "a", "b", "c", "d")
    assert client.lrange("q", 0, -1) == [b"a", b"b", b"c", b"d"]
    assert client.lrange("q", 1, 2) == [b"b", b"c"]
    assert client.lrange("q", -2, -1) == [b"c", b"d"]
    assert client.lrange("q", -100, 0) == [b"a"]
    assert client.lrange("q", 3, 100) == [b"d"]
    assert client.lrange("q", 4, 100) == []
    assert client.lrange("q", 0, -(2**63)) == []
    assert client.lindex("q", 0) == b"a"
    assert client.lindex("q", -1) == b"d"
    assert client.lindex("q", 4) is None
    assert client.lindex("q", 2**63 - 1) is None


def test_repeats_that_plain_puts_make_are_seen_by_set_commands(client: Client) -> None:
    client.rpush("q", "a", "a", "b")
    assert client.sadd("q", "a") == 0
    assert client.scard("q") == 3
    assert client.spop("q") == b"a"
    assert client.sismember("q", "a")
    assert client.srem("q", "a", "x") == 1
    assert not client.sismember("q", "a")
    assert client.lrange("q", 0, -1) == [b"b"]
    client.rpush("q", "c", "c")
    assert client.srem("q", "c") == 1
    assert client.lrange("q", 0, -1) == [b"b"]
