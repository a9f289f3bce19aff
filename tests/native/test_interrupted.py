"""Servers that refuse what must wait, beside native clients that are stopped between two steps.

These are the examples; tests/simulate does the same at random.
"""

from collections.abc import Iterator

import pytest
import redis

from tests.support.module_servers import module_server
from tests.support.native import NativeSteps, run, step_until
from tests.support.programs import Client, Server, Valkey, keys_left, wait_for
from tests.support.waiters import create

BASE = "__pressure__:q"
strict_server = module_server("--overflow", "error", "--role-timeout", "0")


@pytest.fixture
def strict(backend: Valkey, strict_server: Server) -> Iterator[Client]:
    with strict_server.client() as client:
        yield client


@pytest.fixture
def steps(direct: Client) -> NativeSteps:
    return NativeSteps(direct, "q", "native")


def refused(strict: Client, code: str, *command: str) -> None:
    """Check that a command is refused with this code."""
    with pytest.raises(redis.ResponseError, match=f"^{code} "):
        strict.execute_command(*command)


def test_a_role_that_a_native_client_holds_is_not_taken(
    strict: Client, direct: Client, steps: NativeSteps
) -> None:
    create(strict, "q")
    put = steps.put(b"native")
    step_until(put, lambda: direct.exists(f"{BASE}:producer"))
    refused(strict, "INUSE", "RPUSH", "q", "own")
    refused(strict, "INUSE", "SADD", "q", "own")
    assert strict.spop("q") is None
    run(put)
    get = steps.get()
    step_until(get, lambda: direct.exists(f"{BASE}:consumer"))
    refused(strict, "INUSE", "SPOP", "q")
    refused(strict, "INUSE", "SREM", "q", "native")
    run(get)
    assert strict.spop("q") is None


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_queue_that_a_native_client_is_creating_is_in_use(
    strict: Client, steps: NativeSteps, count: int
) -> None:
    creation = steps.create(0)
    for _ in range(count):
        next(creation)
    refused(strict, "INUSE", "RPUSH", "q", "a")
    refused(strict, "INUSE", "SADD", "q", "a")
    run(creation)
    assert strict.sadd("q", "a") == 1


@pytest.mark.parametrize("command", ["SADD", "RPUSH"])
def test_a_full_queue_stays_full_until_a_native_consumer_has_pushed_its_token(
    strict: Client, direct: Client, steps: NativeSteps, command: str
) -> None:
    create(strict, "q", "BOUND", 1)
    strict.execute_command(command, "q", "a")
    get = steps.get()
    step_until(get, lambda: not direct.llen(BASE))
    for _ in range(2):
        refused(strict, "FULL", command, "q", "b")
    run(get)
    assert strict.execute_command(command, "q", "b") == 1
    assert direct.llen(f"{BASE}:not_full") == 0


def test_a_removal_of_nothing_pushes_no_second_token(
    strict: Client, direct: Client, steps: NativeSteps
) -> None:
    create(strict, "q", "BOUND", 2)
    strict.rpush("q", "a")
    put = steps.put(b"b")
    step_until(put, lambda: not direct.llen(f"{BASE}:not_full"))
    assert strict.srem("q", "none") == 0
    run(put)
    assert direct.llen(f"{BASE}:not_full") == 0


def test_nothing_is_taken_from_a_queue_during_a_native_delete(
    client: Client, direct: Client, steps: NativeSteps
) -> None:
    client.sadd("q", "a", "b")

    def is_watched() -> bool:
        is_up = bool(direct.info("stats")["tracking_total_keys"])
        client.scard("q")
        return is_up

    # The watch reconnects after the backend was flushed; until then the server would not notice the delete.
    # It watches another key first, so only a question that comes later makes it watch the queue for certain.
    wait_for(is_watched, "the server to watch the queue")
    delete = steps.delete()
    step_until(delete, lambda: not direct.exists(f"{BASE}:bound"))
    for _ in delete:
        assert client.lmpop(1, "q", direction="LEFT") is None
        assert client.lmpop(2, "other", "q", direction="LEFT", count=2) is None
        assert client.blpop("q", timeout=0.001) is None
        assert client.blmove("q", "other", 0.001) is None
    wait_for(lambda: keys_left(direct) == [], "the extension keys to be deleted")


STATISTICS = ["produced_messages", "produced_bytes", "consumed_messages", "consumed_bytes"]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_an_invalid_statistic_does_not_stop_operations(
    client: Client, direct: Client, statistic: str
) -> None:
    client.sadd("q", "a", "b")
    client.spop("q")
    direct.set(f"{BASE}:stats:{statistic}", "12x")
    assert client.sadd("q", "c", "d") == 2
    assert client.rpush("q", "e") == 4
    assert client.spop("q") == b"b"
    assert client.lpop("q", 2) == [b"c", b"d"]
    assert client.sismember("q", "e") == 1
    assert client.delete("q") == 1
    wait_for(lambda: keys_left(direct) == [], "the extension keys to be deleted")
