"""Waiting for messages: in the order in which the gets came, each message once, for as long as was asked."""

from __future__ import annotations

import asyncio
import os
import random
import signal
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


@pytest.mark.parametrize("put", PUTS)
def test_gets_are_served_in_the_order_in_which_they_came(
    server: Server, client: Client, direct: Client, put: Callable[..., None]
) -> None:
    create(client, "q")
    messages = [b"%d" % number for number in range(20)]
    with waiters(server, 20) as waiting:
        for number, waiter in enumerate(waiting):
            waiter.send(*([("BLPOP", "q", 0), ("BLPOP", "other", "q", 0), ("PRESSURE.GET", "q")][number % 3]))
            wait_for_waiting(client, "q", consumers=number + 1)
        put(client, direct, messages)
        replies = [waiter.reply() for waiter in waiting]
    assert [reply if isinstance(reply, bytes) else reply[1] for reply in replies] == messages
    assert client.scard("q") == 0


@pytest.mark.parametrize("put", PUTS)
def test_each_message_wakes_the_first_in_line_and_nobody_else(
    server: Server, client: Client, direct: Client, put: Callable[..., None]
) -> None:
    create(client, "q")
    with waiters(server, 5) as waiting:
        for number, waiter in enumerate(waiting):
            waiter.send("BLPOP", "q", 0)
            wait_for_waiting(client, "q", consumers=number + 1)
        for number, waiter in enumerate(waiting):
            put(client, direct, [b"%d" % number])
            assert waiter.reply() == [b"q", b"%d" % number]
            assert not any(other.has_reply() for other in waiting[number + 1 :])


def test_a_get_on_several_queues_takes_from_the_first_that_has_a_message(
    client: Client, waiter: Waiter
) -> None:
    client.sadd("b", "b1", "b2")
    client.sadd("c", "c1")
    assert waiter("BLPOP", "a", "b", "c", 0) == [b"b", b"b1"]
    assert waiter("BLPOP", "c", "b", "a", 0) == [b"c", b"c1"]
    assert waiter("BLMPOP", 0, 3, "a", "c", "b", "LEFT", "COUNT", 9) == [b"b", [b"b2"]]


@pytest.mark.parametrize("queue", ["a", "b", "c"])
@pytest.mark.parametrize("exist", [True, False])
def test_a_get_on_several_queues_wakes_on_any_and_takes_once(
    client: Client, waiter: Waiter, queue: str, exist: bool
) -> None:
    for name in "abc" if exist else "":
        create(client, name)
    waiter.send("BLPOP", "a", "b", "c", 0)
    wait_for_blocked(client, 1)
    client.sadd(queue, "1", "2")
    assert waiter.reply() == [queue.encode(), b"1"]
    wait_for_blocked(client, 0)
    assert [client.scard(name) for name in "abc"] == [1 if name == queue else 0 for name in "abc"]


def test_a_get_on_several_queues_waits_on_the_last_while_the_first_is_being_tried_again(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    for _ in range(60):
        # The watch on the backend is opened again, which has all that wait tried again.
        direct.flushall()
        waiter.send("BLPOP", "a", "b", "c", 0)
        wait_for_blocked(client, 1)
        client.sadd("c", "1", "2")
        assert waiter.reply(5) == [b"c", b"1"]


def test_a_get_on_several_queues_takes_from_one_when_all_get_messages_at_the_same_time(
    server: Server, client: Client, waiter: Waiter
) -> None:
    with waiters(server, 3) as putting:
        for round_ in range(100):
            waiter.send("BLPOP", "a", "b", "c", 0)
            wait_for_blocked(client, 1)
            for other, name in zip(putting, "abc", strict=True):
                other.send("SADD", name, round_)
            assert [other.reply() for other in putting] == [1, 1, 1]
            queue, message = waiter.reply()
            assert message == b"%d" % round_
            left = {name: client.spop(name) for name in "abc"}
            assert left == {name: None if name == queue.decode() else message for name in "abc"}


def test_the_same_queue_named_twice_is_one(client: Client, waiter: Waiter) -> None:
    waiter.send("BLPOP", "q", "q", "other", "q", 0)
    wait_for_blocked(client, 1)
    client.sadd("q", "1", "2")
    assert waiter.reply() == [b"q", b"1"]
    assert client.scard("q") == 1


@pytest.mark.slow
def test_many_gets_on_overlapping_queues_get_each_message_once(server: Server, client: Client) -> None:
    names = [f"q{number}" for number in range(8)]
    chance = random.Random(1)
    put: list[bytes] = []
    taken: Counter[bytes] = Counter()
    errors: list[Any] = []

    async def take() -> None:
        waiter = await AsyncWaiter.connect(server.port)
        while len(put) < 4000 or sum(taken.values()) < len(put):
            reply = await waiter("BLPOP", *chance.sample(names, chance.randrange(1, 6)), "0.1")
            if isinstance(reply, Exception):
                errors.append(reply)
            elif reply is not None:
                taken[reply[1]] += 1
        waiter.close()

    async def produce(identity: int) -> None:
        waiter = await AsyncWaiter.connect(server.port)
        for number in range(500):
            some = [f"{identity}-{number}-{part}" for part in range(2)]
            assert await waiter("SADD", chance.choice(names), *some) == 2
            put.extend(message.encode() for message in some)
            # A random pace is what is tried: gets find messages, wait for them, and meet others that do.
            await asyncio.sleep(0.001 * chance.random())
        waiter.close()

    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(take())
            for identity in range(4):
                group.create_task(produce(identity))

    asyncio.run(main())
    assert not errors
    assert taken == Counter(put)
    assert all(client.scard(name) == 0 for name in names)


def test_a_get_does_not_mind_that_one_of_its_queues_does_not_exist(server: Server) -> None:
    """Each comes and goes while another is served, so that queues are asked at every moment of a wait."""
    replies: Counter[str] = Counter()

    async def take() -> None:
        waiter = await AsyncWaiter.connect(server.port)
        for _ in range(100):
            reply = await waiter("BLPOP", "q", "missing", "0.002")
            replies[str(reply) if isinstance(reply, Exception) else "fine"] += 1
        waiter.close()

    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            takers = [group.create_task(take()) for _ in range(16)]
            waiter = await AsyncWaiter.connect(server.port)
            while not all(taker.done() for taker in takers):
                await waiter("LPUSH", "q", "m")
            waiter.close()

    asyncio.run(main())
    assert replies == {"fine": 1600}


TIMEOUTS: list[tuple[Words, bytes, bytes]] = [
    (("BLPOP", "q", 0.15), b"*-1\r\n", b"_\r\n"),
    (("BRPOP", "q", "missing", 0.15), b"*-1\r\n", b"_\r\n"),
    (("BLMPOP", 0.15, 2, "q", "missing", "LEFT"), b"*-1\r\n", b"_\r\n"),
    (("BLMOVE", "q", "d", "LEFT", "RIGHT", 0.15), b"*-1\r\n", b"_\r\n"),
    (("BRPOPLPUSH", "q", "d", 0.15), b"*-1\r\n", b"_\r\n"),
    (("PRESSURE.GET", "q", "TIMEOUT", 0.15), b"$-1\r\n", b"_\r\n"),
]


@pytest.mark.parametrize("resp3", [False, True])
@pytest.mark.parametrize(("words", "nil", "nil3"), TIMEOUTS, ids=lambda value: str(value[0]))
def test_a_get_whose_time_is_up_says_nil_and_takes_nothing(
    server: Server, client: Client, words: Words, nil: bytes, nil3: bytes, resp3: bool
) -> None:
    create(client, "q")
    with Waiter(server.port, resp3=resp3) as waiter:
        began = time.monotonic()
        waiter.send(*words)
        answer = waiter.socket.recv(100)
        waited = time.monotonic() - began
    assert answer == (nil3 if resp3 else nil)
    assert 0.14 <= waited < 2
    wait_for_waiting(client, "q")
    client.sadd("q", "m")
    assert client.scard("q") == 1


def test_a_get_on_more_queues_than_can_be_tried_in_its_time_takes_from_the_last(client: Client) -> None:
    others = [f"other-{number}" for number in range(100)]
    for number in range(5):
        client.sadd("q", number)
        assert client.blpop([*others, "q"], timeout=0.001) == (b"q", b"%d" % number)


@pytest.mark.parametrize("timeout", ["-1", "nan", "inf", "x", "1e300", ""])
def test_a_timeout_that_is_none_is_refused(waiter: Waiter, timeout: str) -> None:
    assert is_refused(waiter("BLPOP", "q", timeout), "ERR")


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


def test_a_chain_of_blocking_moves_hands_a_message_on(server: Server, client: Client) -> None:
    names = [f"q{number}" for number in range(10)]
    with waiters(server, 10) as waiting:
        for number, waiter in enumerate(waiting[:-1]):
            waiter.send("BLMOVE", names[number], names[number + 1], "LEFT", "RIGHT", 0)
        waiting[-1].send("BLPOP", names[-1], 0)
        wait_for_blocked(client, 10)
        client.sadd(names[0], "m")
        assert [waiter.reply() for waiter in waiting] == [b"m"] * 9 + [[names[-1].encode(), b"m"]]
    assert not any(client.scard(name) for name in names)


def test_commands_behind_a_get_that_waits_are_done_after_it(client: Client, waiter: Waiter) -> None:
    waiter.socket.sendall(
        packed("BLPOP", "q", 0) + packed("SADD", "other", "x") + packed("PING") + packed("SPOP", "q")
    )
    wait_for_blocked(client, 1)
    assert client.exists("other") == 0
    client.sadd("q", "1", "2")
    assert [waiter.reply() for _ in range(4)] == [[b"q", b"1"], 1, b"PONG", b"2"]
    assert client.smembers("other") == {b"x"}


def test_commands_before_one_that_waits_are_answered_at_once(client: Client, waiter: Waiter) -> None:
    waiter.socket.sendall(packed("SADD", "q", "x") + packed("PING") + packed("BLPOP", "other", 0))
    assert [waiter.reply(), waiter.reply()] == [1, b"PONG"]
    wait_for_blocked(client, 1)
    client.sadd("other", "m")
    assert waiter.reply() == [b"other", b"m"]


def test_a_server_that_stops_tells_those_who_wait(backend: Valkey, start_server: StartServer) -> None:
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
            waiter.socket.sendall(packed(*waits[number % len(waits)]) + packed("SADD", "behind", number))
        wait_for_blocked(client, 50)
        client.close()
        began = time.monotonic()
        os.kill(server.process.pid, signal.SIGTERM)
        for waiter in waiting:
            reply = waiter.reply()
            assert is_refused(reply, "STOPPING"), reply
        assert server.process.wait(TIMEOUT) == 0
        assert time.monotonic() - began < 5
    with backend.client() as direct:
        assert direct.llen("__pressure__:full") == 1
    assert "Traceback" not in server.log, server.log
    assert "WARNING" not in server.log, server.log


def test_a_put_that_meets_a_native_delete_of_an_empty_queue_goes_on_when_it_is_over(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    """The last keys that a native delete removes are its statistics, which nobody watches."""
    native = NativeClient(direct, "q")
    for _ in range(20):
        create(client, "q")
        client.sadd("q", "m")
        client.spop("q")
        # The put comes in the middle of the delete, and finds keys of a queue that does not exist.
        waiter.send("BLPOP", "q", 0)
        waiter.send("SADD", "q", "x")
        wait_for_blocked(client, 1)
        native.delete()
        assert is_refused(waiter.reply(), "NOQUEUE")
        assert waiter.reply(3) == 1
        wait_for_blocked(client, 0)
        client.delete("q")
