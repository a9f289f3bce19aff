"""Operations that wait for a role held by a native client, and native clients that wait for the server."""

import threading
import time
from typing import Any

import pytest

from tests.support.native import NativeClient, NativeSteps, Steps, run, step_until
from tests.support.programs import Client, StartServer, StartValkey, Valkey, join, wait_for
from tests.support.waiters import Waiter, Words, create, is_refused, wait_for_blocked, wait_for_waiting


def steps_until_held(steps: Steps[Any], direct: Client, queue: str, role: str) -> None:
    """Run a native client's operation until it holds the role."""
    step_until(steps, lambda: not direct.llen(f"__pressure__:{queue}:{role}_free"))


def test_a_put_waits_for_the_producer_role(client: Client, direct: Client, waiter: Waiter) -> None:
    create(client, "q")
    steps = NativeSteps(direct, "q", "native").put(b"native")
    steps_until_held(steps, direct, "q", "producer")
    waiter.send("SADD", "q", "server")
    wait_for_waiting(client, "q", producers=1)
    run(steps)
    assert waiter.reply() == 1
    assert client.lrange("q", 0, -1) == [b"native", b"server"]


@pytest.mark.parametrize("words", [("SPOP", "q"), ("BLPOP", "q", "0"), ("LPOP", "q"), ("PRESSURE.GET", "q")])
def test_a_get_waits_for_the_consumer_role(
    client: Client, direct: Client, waiter: Waiter, words: Words
) -> None:
    client.rpush("q", "first", "second")
    steps = NativeSteps(direct, "q", "native").get()
    steps_until_held(steps, direct, "q", "consumer")
    waiter.send(*words)
    wait_for_waiting(client, "q", consumers=1)
    run(steps)
    reply = waiter.reply()
    assert (reply[1] if isinstance(reply, list) else reply) == b"second"


def test_a_reserve_from_several_queues_waits_for_the_consumer_role(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "other")
    client.rpush("q", "first", "second")
    steps = NativeSteps(direct, "q", "native").get()
    steps_until_held(steps, direct, "q", "consumer")
    waiter.send("PRESSURE.RESERVE", "q", "other", "TIMEOUT", 0)
    wait_for_blocked(client, 1)
    run(steps)
    assert waiter.reply()[2] == b"second"


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("producer", ("SADD", "q", "x")),
        ("consumer", ("SPOP", "q")),
        ("consumer", ("BLPOP", "other", "q", "0")),
    ],
)
def test_after_the_role_timeout_an_error_names_the_holder(
    backend: Valkey, direct: Client, start_server: StartServer, role: str, words: Words
) -> None:
    server = start_server("--backend", backend.url, "--role-timeout", "0.5")
    with server.client() as client, Waiter(server.port) as waiter:
        client.rpush("q", "first", "second")
        native = NativeSteps(direct, "q", "native-holder")
        steps: Steps[Any] = native.put(b"third") if role == "producer" else native.get()
        steps_until_held(steps, direct, "q", role)
        next(steps)  # writes the holder's name
        began = time.monotonic()
        reply = waiter(*words)
        assert 0.4 <= time.monotonic() - began < 3
        assert is_refused(reply, "INUSE"), reply
        assert "native-holder" in str(reply)
        run(steps)
        wait_for_waiting(client, "q")
        left = [b"first", b"second", b"third"] if role == "producer" else [b"second"]
        assert client.lrange("q", 0, -1) == left


def test_a_put_serves_a_waiting_native_consumer(
    backend: Valkey, client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q")
    received: list[bytes] = []

    def get() -> None:
        with backend.client() as connected:
            native = NativeClient(connected, "q")
            received.extend(native.get() for _ in range(20))

    thread = threading.Thread(target=get, daemon=True)
    thread.start()
    for number in range(20):
        wait_for(lambda: direct.llen("__pressure__:q:consumer_free") == 0, "the native consumer")
        assert waiter("SADD", "q", number) == 1
    join(thread)
    assert received == [b"%d" % number for number in range(20)]


def test_a_get_makes_room_for_a_waiting_native_producer(
    backend: Valkey, client: Client, waiter: Waiter
) -> None:
    create(client, "q", "BOUND", 1)
    client.sadd("q", "first")

    def put() -> None:
        with backend.client() as connected:
            for number in range(20):
                NativeClient(connected, "q").put(b"%d" % number)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    assert waiter("BLPOP", "q", 0) == [b"q", b"first"]
    assert [waiter("BLPOP", "q", 0)[1] for _ in range(20)] == [b"%d" % number for number in range(20)]
    join(thread)


@pytest.mark.parametrize("bound", [0, 5])
def test_a_put_waits_up_to_the_role_timeout_for_a_queue_that_is_being_created(
    client: Client, direct: Client, waiter: Waiter, start_server: StartServer, backend: Valkey, bound: int
) -> None:
    steps = NativeSteps(direct, "q", "native").create(bound)
    step_until(steps, lambda: direct.exists("__pressure__:q:bound"))
    waiter.send("SADD", "q", "server")
    wait_for_waiting(client, "q", producers=1)
    impatient = start_server("--backend", backend.url, "--role-timeout", "0.1")
    with Waiter(impatient.port) as other:
        for words in (("SADD", "q", "x"), ("PRESSURE.PUT", "q", "x", "NOWAIT")):
            reply = other(*words)
            assert is_refused(reply, "INUSE"), reply
            assert "creating it" in str(reply)
    run(steps)
    assert waiter.reply() == 1
    assert client.lrange("q", 0, -1) == [b"server"]


def test_a_turn_that_begins_while_the_backend_is_away_is_given_back_later(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url)
    with valkey.client() as direct, server.client() as client, Waiter(server.port) as waiter:
        create(client, "q")
        steps = NativeSteps(direct, "q", "native").put(b"native")
        steps_until_held(steps, direct, "q", "producer")
        waiter.send("SADD", "q", "server")
        wait_for_blocked(direct, 1)  # the server waits in line for the role
        (link,) = (
            each["id"]
            for each in direct.client_list()
            if each["name"].startswith("pressure-server") and "t" not in each["flags"]
        )
        # The server cannot reconnect until the limit is raised.
        direct.config_set("maxclients", len(direct.client_list()) - 1)
        direct.client_kill_filter(_id=link)
        waiter.close()
        wait_for_blocked(client, 0)
        run(steps)
        wait_for(lambda: direct.exists("__pressure__:q:ext:producer_turn"), "the turn to begin")
        direct.config_set("maxclients", 1000)
        wait_for(lambda: direct.exists("__pressure__:q:producer_free"), "the token to be given back")
