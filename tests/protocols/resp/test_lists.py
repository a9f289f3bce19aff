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


def test_a_pop_of_0_messages_replies_the_same_in_a_pipeline(client: Client) -> None:
    client.execute_command("PRESSURE.CREATE", "q")
    with client.pipeline(transaction=False) as pipe:
        for count in (2, 0, 1):
            pipe.lpop("q", count)
        assert pipe.execute() == [None, [], None]
