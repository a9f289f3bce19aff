"""List commands on a queue. test_redis_compatibility.py tests ranges and positions."""

import pytest

from tests.support.programs import Client


@pytest.mark.parametrize("push", ["lpush", "rpush"])
@pytest.mark.parametrize("pop", ["lpop", "rpop"])
def test_a_push_and_a_pop_at_any_end_are_first_in_first_out(client: Client, push: str, pop: str) -> None:
    put, take = getattr(client, push), getattr(client, pop)
    assert put("q", "a", "b", "a") == 3
    assert put("q", "c") == 4
    assert take("q") == b"a"
    assert take("q", 2) == [b"b", b"a"]
    assert take("q", 5) == [b"c"]
    assert take("q") is None
    assert take("q", 5) is None


def test_set_commands_see_repeats_from_plain_puts(client: Client) -> None:
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
