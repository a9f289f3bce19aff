"""Gets that wait for messages: their order, their timeouts, waiting on several queues, and shutdown."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.native import NativeClient
from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey
from tests.support.waiters import (
    AsyncWaiter,
    Waiter,
    Words,
    blocked,
    create,
    is_refused,
    packed,
    wait_for_blocked,
    wait_for_waiting,
    waiters,
)


def put_one_by_one(client: Client, _direct: Client, messages: list[bytes]) -> None:
    for message in messages:
        assert client.sadd("q", message) == 1


def put_at_once(client: Client, _direct: Client, messages: list[bytes]) -> None:
    assert client.sadd("q", *messages) == len(messages)


def put_natively(_client: Client, direct: Client, messages: list[bytes]) -> None:
    for message in messages:
        NativeClient(direct, "q").put(message)


PUTS = [put_one_by_one, put_at_once, put_natively]
GETS: list[Words] = [("BLPOP", "q", 0), ("BLPOP", "other", "q", 0), ("PRESSURE.GET", "q")]


def message_in(reply: Any) -> Any:
    return reply[1] if isinstance(reply, list) else reply


@pytest.mark.parametrize("put", PUTS)
def test_messages_wake_waiting_gets_in_order_and_no_others(
    server: Server, client: Client, direct: Client, put: Callable[..., None]
) -> None:
    create(client, "q")
    messages = [b"%d" % number for number in range(25)]
    with waiters(server, 25) as waiting:
        for number, waiter in enumerate(waiting):
            waiter.send(*GETS[number % 3])
            wait_for_waiting(client, "q", consumers=number + 1)
        for number in range(5):
            put(client, direct, [messages[number]])
            assert message_in(waiting[number].reply()) == messages[number]
            assert not any(other.has_reply() for other in waiting[number + 1 :])
        put(client, direct, messages[5:])
        assert [message_in(waiter.reply()) for waiter in waiting[5:]] == messages[5:]
    assert client.scard("q") == 0


def test_a_get_on_several_queues_takes_from_the_first_that_has_a_message(
    client: Client, waiter: Waiter
) -> None:
    client.sadd("b", "b1", "b2")
    client.sadd("c", "c1")
    assert waiter("BLPOP", "a", "b", "c", 0) == [b"b", b"b1"]
    assert waiter("BLPOP", "c", "b", "a", 0) == [b"c", b"c1"]
    assert waiter("BLMPOP", 0, 3, "a", "c", "b", "LEFT", "COUNT", 9) == [b"b", [b"b2"]]


def test_a_get_on_several_queues_wakes_on_the_last_after_the_backend_is_flushed(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    for _ in range(60):
        # After a flush, all waiting operations are tried again.
        direct.flushall()
        waiter.send("BLPOP", "a", "b", "c", 0)
        wait_for_blocked(client, 1)
        client.sadd("c", "1", "2")
        assert waiter.reply(5) == [b"c", b"1"]


def test_a_get_on_several_queues_takes_one_message_if_all_receive_one_at_the_same_time(
    server: Server, client: Client, waiter: Waiter
) -> None:
    with waiters(server, 3) as producers:
        for number in range(100):
            waiter.send("BLPOP", "a", "b", "c", 0)
            wait_for_blocked(client, 1)
            for producer, name in zip(producers, "abc", strict=True):
                producer.send("SADD", name, number)
            assert [producer.reply() for producer in producers] == [1, 1, 1]
            queue, message = waiter.reply()
            assert message == b"%d" % number
            left = {name: client.spop(name) for name in "abc"}
            assert left == {name: None if name == queue.decode() else message for name in "abc"}


def test_a_get_takes_once_from_a_queue_that_it_names_three_times(client: Client, waiter: Waiter) -> None:
    waiter.send("BLPOP", "q", "q", "other", "q", 0)
    wait_for_blocked(client, 1)
    client.sadd("q", "1", "2")
    assert waiter.reply() == [b"q", b"1"]
    assert client.scard("q") == 1


def test_a_get_may_name_a_queue_that_does_not_exist(server: Server) -> None:
    """Short timeouts and steady puts let the missing queue be tried at every moment of a wait."""
    replies: Counter[str] = Counter()

    async def take() -> None:
        waiter = await AsyncWaiter.connect(server.port)
        for _ in range(100):
            reply = await waiter("BLPOP", "q", "missing", "0.002")
            replies[str(reply) if isinstance(reply, Exception) else "no error"] += 1
        waiter.close()

    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            takers = [group.create_task(take()) for _ in range(16)]
            waiter = await AsyncWaiter.connect(server.port)
            while not all(taker.done() for taker in takers):
                await waiter("LPUSH", "q", "m")
            waiter.close()

    asyncio.run(main())
    assert replies == {"no error": 1600}


TIMEOUTS: list[tuple[Words, bytes]] = [
    (("BLPOP", "q", 0.15), b"*-1\r\n"),
    (("BRPOP", "q", "missing", 0.15), b"*-1\r\n"),
    (("BLMPOP", 0.15, 2, "q", "missing", "LEFT"), b"*-1\r\n"),
    (("BLMOVE", "q", "d", "LEFT", "RIGHT", 0.15), b"*-1\r\n"),
    (("BRPOPLPUSH", "q", "d", 0.15), b"*-1\r\n"),
    (("PRESSURE.GET", "q", "TIMEOUT", 0.15), b"$-1\r\n"),
]


@pytest.mark.parametrize("resp3", [False, True])
@pytest.mark.parametrize(("words", "nil"), TIMEOUTS, ids=lambda value: str(value[0]))
def test_a_get_replies_nil_and_takes_nothing_after_its_timeout(
    server: Server, client: Client, words: Words, nil: bytes, resp3: bool
) -> None:
    create(client, "q")
    with Waiter(server.port, resp3=resp3) as waiter:
        began = time.monotonic()
        waiter.send(*words)
        answer = waiter.socket.recv(100)
        waited = time.monotonic() - began
    assert answer == (b"_\r\n" if resp3 else nil)
    assert 0.14 <= waited < 2
    wait_for_waiting(client, "q")
    client.sadd("q", "m")
    assert client.scard("q") == 1


def test_a_get_with_a_short_timeout_tries_all_of_its_queues(client: Client) -> None:
    others = [f"other-{number}" for number in range(100)]
    for number in range(5):
        client.sadd("q", number)
        assert client.blpop([*others, "q"], timeout=0.001) == (b"q", b"%d" % number)


def test_a_get_waits_for_a_queue_that_does_not_exist_yet(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    waiter.send("BLPOP", "q", 0)
    wait_for_blocked(client, 1)
    client.sadd("q", "m")
    assert waiter.reply() == [b"q", b"m"]
    client.delete("q")
    waiter.send("BLPOP", "q", 0)
    wait_for_blocked(client, 1)
    native = NativeClient(direct, "q")
    native.create()
    assert blocked(client) == 1
    native.put(b"native")
    assert waiter.reply() == [b"q", b"native"]


def test_a_message_passes_through_a_chain_of_blocking_moves(server: Server, client: Client) -> None:
    names = [f"q{number}" for number in range(10)]
    with waiters(server, 10) as waiting:
        for number, waiter in enumerate(waiting[:-1]):
            waiter.send("BLMOVE", names[number], names[number + 1], "LEFT", "RIGHT", 0)
        waiting[-1].send("BLPOP", names[-1], 0)
        wait_for_blocked(client, 10)
        client.sadd(names[0], "m")
        assert [waiter.reply() for waiter in waiting] == [b"m"] * 9 + [[names[-1].encode(), b"m"]]
    assert not any(client.scard(name) for name in names)


def test_waiting_clients_receive_stopping_when_the_server_stops(
    backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url)
    waits: list[Words] = [
        ("BLPOP", "q", 0),
        ("BLPOP", "a", "b", 0),
        ("PRESSURE.GET", "q"),
        ("BLMOVE", "a", "b", "LEFT", "LEFT", 0),
        ("SADD", "full", "x"),
    ]
    with server.client() as client, waiters(server, 50) as waiting:
        create(client, "q")
        create(client, "full", "BOUND", 1)
        client.sadd("full", "a")
        for number, waiter in enumerate(waiting):
            waiter.socket.sendall(packed(*waits[number % len(waits)]) + packed("SADD", "later", number))
        wait_for_blocked(client, 50)
        client.close()
        began = time.monotonic()
        server.process.terminate()
        assert all(waiter.ends_without_reply() for waiter in waiting)
        assert server.process.wait(TIMEOUT) == 0
        assert time.monotonic() - began < 5
    with backend.client() as direct:
        assert direct.llen("__pressure__:full") == 1
    assert "Traceback" not in server.log, server.log
    assert "WARNING" not in server.log, server.log


def test_a_put_during_a_native_delete_of_an_empty_queue_succeeds_after_it(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    """A native delete removes the statistics last, and the server receives no key notification of this."""
    native = NativeClient(direct, "q")
    for _ in range(20):
        create(client, "q")
        client.sadd("q", "m")
        client.spop("q")
        # The put runs during the delete: the queue no longer exists, but some of its keys do.
        waiter.send("BLPOP", "q", 0)
        waiter.send("SADD", "q", "x")
        wait_for_blocked(client, 1)
        native.delete()
        assert is_refused(waiter.reply(), "NOQUEUE")
        assert waiter.reply(3) == 1
        wait_for_blocked(client, 0)
        client.delete("q")
