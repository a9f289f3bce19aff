"""A queue as a set, through redis-py."""

from __future__ import annotations

import redis


def test_the_python_example_of_message_queue(client: redis.Redis) -> None:
    assert client.sadd("niki", "12") == 1
    assert client.sadd("niki", "15") == 1
    assert client.scard("niki") == 2
    assert client.sismember("niki", "abc") == 0
    assert client.sismember("niki", "12") == 1
    assert client.spop("niki") == b"12"
    assert client.spop("niki") == b"15"
    assert client.spop("niki") is None
