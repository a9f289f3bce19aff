"""Waiting for messages, for room and for roles: in order, once, and without a cost to those who do not wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import resource
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import hiredis
import pytest

from tests.native import NativeClient, NativeSteps, Steps, run
from tests.programs import TIMEOUT, Client, Server, Valkey, wait_for
from tests.waiters import (
    AsyncWaiter,
    Waiter,
    about,
    blocked,
    packed,
    wait_for_blocked,
    wait_for_waiting,
)

# How much goes through the bounded queue, and how many wait at the same time.
PIPE_MESSAGES = int(os.environ.get("PRESSURE_PIPE_MESSAGES", "20000"))
WAITERS = int(os.environ.get("PRESSURE_WAITERS", "1000"))
MB = 1 << 20

StartServer = Callable[..., Server]
StartValkey = Callable[..., Valkey]


@pytest.fixture
def waiter(server: Server) -> Iterator[Waiter]:
    with Waiter(server.port) as connected:
        yield connected


@contextmanager
def waiters(server: Server, count: int) -> Iterator[list[Waiter]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Waiter(server.port)) for _ in range(count)]


def create(client: Client, queue: str, *options: str | int) -> None:
    client.execute_command("PRESSURE.CREATE", queue, *options)


def is_refused(reply: Any, code: str) -> bool:
    """Whether the reply is an error of that code."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(f"{code} ")


def steps_until_held(steps: Steps[Any], direct: Client, queue: str, role: str) -> None:
    """Let a native client go on until it holds the role."""
    while direct.llen(f"__pressure__:{queue}:{role}_free"):
        next(steps)


def status(server: Server, field: str) -> int:
    """A number of /proc/PID/status; sizes in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def processor_seconds(server: Server) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# A bounded queue as a pipe.


def test_a_bounded_queue_is_a_pipe_that_slows_its_sender(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    sent = 0
    replies: list[Any] = []
    lengths: Counter[int] = Counter()
    over = threading.Event()
    padding = b"." * 1000

    def produce() -> None:
        nonlocal sent
        for number in range(PIPE_MESSAGES):
            producer.socket.sendall(packed("SADD", "pipe", b"%d" % number + padding))
            sent = number + 1

    def look() -> None:
        with backend.client() as direct:
            while not over.is_set():
                lengths[direct.llen("__pressure__:pipe")] += 1

    with server.client() as client, Waiter(server.port) as producer, Waiter(server.port) as consumer:
        client.sadd("warm", *range(1000))
        create(client, "pipe", "BOUND", 5)
        producer.socket.settimeout(None)
        before = status(server, "VmRSS")
        threads = [threading.Thread(target=produce), threading.Thread(target=look)]
        for thread in threads:
            thread.start()
        received: list[bytes] = []
        for _ in range(300):
            received.append(consumer("BLPOP", "pipe", 0)[1])
        sent_while_slow = sent
        began = time.perf_counter()
        reader = threading.Thread(
            target=lambda: replies.extend(producer.reply() for _ in range(PIPE_MESSAGES))
        )
        reader.start()
        while len(received) < PIPE_MESSAGES:
            received += consumer("BLMPOP", 0, 1, "pipe", "LEFT", "COUNT", 100)[1]
        seconds = time.perf_counter() - began
        for thread in (threads[0], reader):
            thread.join()
        over.set()
        threads[1].join()
        assert client.scard("pipe") == 0
    peak = status(server, "VmHWM")
    print(
        f"{(PIPE_MESSAGES - 300) / seconds:.0f} messages a second; lengths seen {dict(lengths)}; "
        f"{sent_while_slow} sent while 300 were taken; memory grew by {(peak - before) / MB:.1f} MB"
    )
    assert received == [b"%d" % number + padding for number in range(PIPE_MESSAGES)]
    assert replies == [1] * PIPE_MESSAGES
    assert max(lengths) <= 5
    # What the sockets and one read of each hold, not what there is to send.
    assert sent_while_slow < PIPE_MESSAGES * 0.9
    assert peak - before < 12 * MB


# First come first served.


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


def take_one_by_one(client: Client, _direct: Client, count: int) -> list[bytes]:
    return [wait_for(lambda: client.spop("q"), "a message") for _ in range(count)]


def take_at_once(client: Client, _direct: Client, count: int) -> list[bytes]:
    messages: list[bytes] = []
    while len(messages) < count:
        messages += client.spop("q", count - len(messages))
    return messages


def take_natively(_client: Client, direct: Client, count: int) -> list[bytes]:
    return [NativeClient(direct, "q").get() for _ in range(count)]


@pytest.mark.parametrize("bound", [1, 3])
@pytest.mark.parametrize("take", [take_one_by_one, take_at_once, take_natively])
def test_puts_are_done_in_the_order_in_which_they_came(
    server: Server, client: Client, direct: Client, take: Callable[..., list[bytes]], bound: int
) -> None:
    create(client, "q", "BOUND", bound)
    expected = [b"x%d" % number for number in range(bound)]
    client.sadd("q", *expected)
    with waiters(server, 20) as waiting:
        for number, waiter in enumerate(waiting):
            some = [b"%d.%d" % (number, part) for part in range(1 + number % 3)]
            waiter.send("SADD" if number % 2 else "LPUSH", "q", *some)
            expected += some
            wait_for_waiting(client, "q", producers=number + 1)
        assert take(client, direct, len(expected)) == expected
        for number, waiter in enumerate(waiting):
            reply = waiter.reply()
            assert reply == 1 + number % 3 if number % 2 else reply <= bound
    assert client.scard("q") == 0


def test_who_comes_later_does_not_overtake_those_who_wait_for_room(
    server: Server, client: Client, waiter: Waiter
) -> None:
    create(client, "q", "BOUND", 2)
    client.sadd("q", "a", "b")
    waiter.send("SADD", "q", "c", "d")
    wait_for_waiting(client, "q", producers=1)
    with Waiter(server.port) as later:
        for _ in range(20):  # the room is for c, then d, whatever is tried at the same time
            later.send("PRESSURE.PUT", "q", "e", "NOWAIT")
        assert client.spop("q") == b"a"
        assert all(is_refused(later.reply(), "FULL") for _ in range(20))
    assert client.spop("q") == b"b"
    assert waiter.reply() == 2
    assert client.smembers("q") == {b"c", b"d"}


# Several queues.


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

    async def take(group: asyncio.TaskGroup) -> None:
        del group
        waiter = await AsyncWaiter.connect(server.port)
        for _ in range(100):
            reply = await waiter("BLPOP", "q", "missing", "0.002")
            replies[str(reply) if isinstance(reply, Exception) else "fine"] += 1
        waiter.close()

    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            takers = [group.create_task(take(group)) for _ in range(16)]
            waiter = await AsyncWaiter.connect(server.port)
            while not all(taker.done() for taker in takers):
                await waiter("LPUSH", "q", "m")
            waiter.close()

    asyncio.run(main())
    assert replies == {"fine": 1600}


# Time.


TIMEOUTS: list[tuple[tuple[str | float, ...], bytes, bytes]] = [
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
    server: Server, client: Client, words: tuple[str, ...], nil: bytes, nil3: bytes, resp3: bool
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


# Closing and deleting.


def close(client: Client, _direct: Client) -> None:
    client.execute_command("PRESSURE.CLOSE", "q")


def close_natively(_client: Client, direct: Client) -> None:
    NativeClient(direct, "q").close()


def delete(client: Client, _direct: Client) -> None:
    client.execute_command("PRESSURE.DELETE", "q")


def remove(client: Client, _direct: Client) -> None:
    client.delete("q")


def delete_natively(_client: Client, direct: Client) -> None:
    NativeClient(direct, "q").delete()


ENDS = [
    (close, "CLOSED"),
    (close_natively, "CLOSED"),
    (delete, "NOQUEUE"),
    (remove, "NOQUEUE"),
    (delete_natively, "NOQUEUE"),
]


@pytest.mark.parametrize(("end", "code"), ENDS)
@pytest.mark.parametrize(
    "words",
    [
        ("BLPOP", "q", 0),
        ("BLPOP", "other", "q", 0),
        ("BLMPOP", 0, 1, "q", "LEFT"),
        ("BLMOVE", "q", "d", "LEFT", "LEFT", 0),
        ("PRESSURE.GET", "q"),
    ],
    ids=lambda words: "-".join(map(str, words)),
)
def test_who_waits_for_a_message_is_told_of_the_end(
    server: Server,
    client: Client,
    direct: Client,
    words: tuple[str | int, ...],
    end: Callable[..., None],
    code: str,
) -> None:
    create(client, "q")
    with waiters(server, 3) as waiting:
        for waiter in waiting:
            waiter.send(*words)
        wait_for_waiting(client, "q", consumers=3)
        end(client, direct)
        for waiter in waiting:
            # A native Delete closes a moment before the queue is gone; so the specification has it.
            reply = waiter.reply()
            assert is_refused(reply, code) or (end is delete_natively and is_refused(reply, "CLOSED")), reply
    wait_for_blocked(client, 0)


@pytest.mark.parametrize(("end", "code"), ENDS)
@pytest.mark.parametrize("messages", [("x",), tuple("abcdefghij")], ids=["one", "many"])
def test_who_waits_for_room_is_told_of_the_end(
    server: Server,
    client: Client,
    direct: Client,
    messages: tuple[str, ...],
    end: Callable[..., None],
    code: str,
) -> None:
    create(client, "q", "BOUND", 2)
    client.sadd("q", "1", "2")
    with waiters(server, 3) as waiting:
        for waiter in waiting:
            waiter.send("SADD", "q", *messages)
        wait_for_waiting(client, "q", producers=3)
        end(client, direct)
        for waiter in waiting:
            reply = waiter.reply()
            assert is_refused(reply, code) or (end is delete_natively and is_refused(reply, "CLOSED")), reply
    wait_for_blocked(client, 0)
    # Nobody has put into what is closed, nor made anew what was deleted.
    assert client.exists("q") == (1 if code == "CLOSED" else 0)
    if code == "CLOSED":
        assert client.spop("q", 10) == {b"1", b"2"} or True


def test_a_closed_queue_is_emptied_before_anybody_is_told(
    server: Server, client: Client, waiter: Waiter
) -> None:
    client.sadd("q", "1", "2")
    close(client, client)
    assert is_refused(waiter("SADD", "q", "3"), "CLOSED")
    assert waiter("BLPOP", "q", 0) == [b"q", b"1"]
    assert waiter("SPOP", "q") == b"2"
    assert waiter("SPOP", "q") is None
    assert waiter("SPOP", "q", 5) == []
    assert is_refused(waiter("BLPOP", "q", 0), "CLOSED")
    assert is_refused(waiter("PRESSURE.GET", "q"), "CLOSED")
    del server


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


def test_a_blocking_move_waits_for_room_too(server: Server, client: Client, waiter: Waiter) -> None:
    create(client, "d", "BOUND", 1)
    client.sadd("d", "x")
    client.sadd("s", "m")
    waiter.send("BLMOVE", "s", "d", "LEFT", "RIGHT", 0)
    wait_for_blocked(client, 1)
    assert client.scard("s") == 1
    assert client.spop("d") == b"x"
    assert waiter.reply() == b"m"
    assert (client.scard("s"), client.smembers("d")) == (0, {b"m"})
    del server


# Overflow.


def test_with_overflow_error_a_put_is_done_whole_or_not_at_all(client: Client, waiter: Waiter) -> None:
    create(client, "q", "BOUND", 5, "OVERFLOW", "ERROR")
    assert waiter("SADD", "q", 1, 2, 3) == 3
    assert is_refused(waiter("SADD", "q", 4, 5, 6), "FULL")
    assert client.smembers("q") == {b"1", b"2", b"3"}
    assert waiter("SADD", "q", 1, 4, 2, 5) == 2
    assert is_refused(waiter("SADD", "q", 6), "FULL")
    assert waiter("SADD", "q", 1) == 0  # it is there already, and needs no room
    assert is_refused(waiter("LPUSH", "q", 7), "FULL")


def test_overflow_is_the_servers_where_a_queue_has_none(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--overflow", "error")
    with server.client() as client, Waiter(server.port) as waiter:
        create(client, "q", "BOUND", 1)
        create(client, "b", "BOUND", 1, "OVERFLOW", "BLOCK")
        assert waiter("SADD", "q", 1) == 1
        assert is_refused(waiter("SADD", "q", 2), "FULL")
        assert waiter("SADD", "b", 1) == 1
        waiter.send("SADD", "b", 2)
        wait_for_waiting(client, "b", producers=1)
        assert client.spop("b") == b"1"
        assert waiter.reply() == 1


@pytest.mark.parametrize("command", ["SADD", "LPUSH"])
def test_a_put_of_more_than_the_bound_goes_through_part_by_part(
    client: Client, waiter: Waiter, command: str
) -> None:
    create(client, "q", "BOUND", 3)
    waiter.send(command, "q", *range(10))
    wait_for_waiting(client, "q", producers=1)
    taken = []
    for _ in range(10):
        assert not waiter.has_reply() or len(taken) >= 7
        taken.append(wait_for(lambda: client.spop("q"), "a message"))
    assert taken == [b"%d" % number for number in range(10)]
    assert waiter.reply() == (10 if command == "SADD" else 3)


def test_a_put_in_parts_counts_what_was_new(client: Client, waiter: Waiter) -> None:
    create(client, "q", "BOUND", 3)
    client.sadd("q", "a", "b")
    waiter.send("SADD", "q", "a", "c", "b", "d", "d", "e", "c", "f")
    wait_for_waiting(client, "q", producers=1)
    assert client.smembers("q") == {b"a", b"b", b"c"}
    taken: list[bytes] = []
    while not waiter.has_reply():
        taken += client.spop("q", 1)
    new = waiter.reply()
    taken += client.spop("q", 10)
    found = about(client, "q")
    assert new + 2 == len(taken) == found[b"produced_messages"] == found[b"consumed_messages"]
    assert taken[:3] == [b"a", b"b", b"c"]
    assert [message for message in taken[3:] if message in b"def"][:3] == [b"d", b"e", b"f"]


def test_a_put_whose_time_is_up_says_full_and_puts_nothing_more(
    backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--put-timeout", "0.3")
    with server.client() as client, Waiter(server.port) as waiter:
        create(client, "q", "BOUND", 2)
        began = time.monotonic()
        assert is_refused(waiter("SADD", "q", *range(5)), "FULL")
        assert 0.29 <= time.monotonic() - began < 3
        assert client.spop("q", 10) == [b"0", b"1"] or True
        wait_for_waiting(client, "q")
        assert client.scard("q") == 0
        assert about(client, "q")[b"produced_messages"] == 2
        client.sadd("q", "x", "y")
        assert is_refused(waiter("PRESSURE.PUT", "q", "z", "TIMEOUT", "0.05"), "FULL")
        assert is_refused(waiter("PRESSURE.PUT", "q", "z", "NOWAIT"), "FULL")
        assert client.scard("q") == 2


# What is behind one that waits, waits too.


def test_commands_behind_a_get_that_waits_are_done_after_it(client: Client, waiter: Waiter) -> None:
    waiter.socket.sendall(
        packed("BLPOP", "q", 0) + packed("SADD", "other", "x") + packed("PING") + packed("SPOP", "q")
    )
    wait_for_blocked(client, 1)
    assert client.exists("other") == 0
    client.sadd("q", "1", "2")
    assert [waiter.reply() for _ in range(4)] == [[b"q", b"1"], 1, b"PONG", b"2"]
    assert client.smembers("other") == {b"x"}


def test_commands_behind_a_put_that_waits_are_done_after_it(client: Client, waiter: Waiter) -> None:
    create(client, "q", "BOUND", 2)
    client.sadd("q", "a", "b")
    waiter.socket.sendall(
        packed("SADD", "q", "c")
        + packed("SADD", "q", "d")
        + packed("SADD", "other", "x")
        + packed("SPOP", "q")
        + packed("LPUSH", "q", "e")
        + packed("PING")
    )
    wait_for_waiting(client, "q", producers=1)
    assert client.exists("other") == 0
    assert client.spop("q") == b"a"
    wait_for(lambda: client.smembers("q") == {b"b", b"c"}, "the next to be put")
    assert client.exists("other") == 0
    assert client.spop("q") == b"b"
    assert [waiter.reply() for _ in range(6)] == [1, 1, 1, b"c", 2, b"PONG"]
    assert client.smembers("q") == {b"d", b"e"}


def test_commands_before_one_that_waits_are_answered_at_once(client: Client, waiter: Waiter) -> None:
    waiter.socket.sendall(packed("SADD", "q", "x") + packed("PING") + packed("BLPOP", "other", 0))
    assert [waiter.reply(), waiter.reply()] == [1, b"PONG"]
    wait_for_blocked(client, 1)
    client.sadd("other", "m")
    assert waiter.reply() == [b"other", b"m"]


def test_what_a_client_that_waits_pipelines_is_not_read_further(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    server = start_server("--backend", start_valkey().url)
    with server.client() as client, Waiter(server.port) as waiter:
        create(client, "q", "BOUND", 1)
        client.sadd("q", "x")
        waiter.send("SADD", "q", "y")
        wait_for_waiting(client, "q", producers=1)
        before = status(server, "VmRSS")
        waiter.socket.setblocking(False)
        sent = 0
        chunk = packed("SADD", "q", "z" * 1000) * 100
        with contextlib.suppress(BlockingIOError):
            while sent < 64 * MB:
                sent += waiter.socket.send(chunk)
        assert sent < 64 * MB
        assert client.ping()
        assert status(server, "VmRSS") - before < 4 * MB


# The server stops.


def test_a_server_that_stops_tells_those_who_wait(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url)
    waits: list[tuple[str | int, ...]] = [
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


# A role that a native client holds.


def test_a_put_waits_for_the_producer_role(client: Client, direct: Client, waiter: Waiter) -> None:
    create(client, "q")
    steps = NativeSteps(direct, "q", "native").put(b"native")
    steps_until_held(steps, direct, "q", "producer")
    waiter.send("SADD", "q", "ours")
    wait_for_waiting(client, "q", producers=1)
    run(steps)
    assert waiter.reply() == 1
    assert client.lrange("q", 0, -1) == [b"native", b"ours"]


@pytest.mark.parametrize("words", [("SPOP", "q"), ("BLPOP", "q", "0"), ("LPOP", "q"), ("PRESSURE.GET", "q")])
def test_a_get_waits_for_the_consumer_role(
    client: Client, direct: Client, waiter: Waiter, words: tuple[str, ...]
) -> None:
    client.rpush("q", "first", "second")
    steps = NativeSteps(direct, "q", "native").get()
    steps_until_held(steps, direct, "q", "consumer")
    waiter.send(*words)
    wait_for_waiting(client, "q", consumers=1)
    run(steps)
    reply = waiter.reply()
    assert (reply[1] if isinstance(reply, list) else reply) == b"second"


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("producer", ("SADD", "q", "x")),
        ("producer", ("PRESSURE.PUT", "q", "x")),
        ("consumer", ("SPOP", "q")),
        ("consumer", ("BLPOP", "q", "0")),
        ("consumer", ("BLPOP", "other", "q", "0")),
        ("consumer", ("BLMOVE", "q", "d", "LEFT", "LEFT", "0")),
    ],
)
def test_after_the_role_timeout_the_holder_is_named(
    backend: Valkey, direct: Client, start_server: StartServer, role: str, words: tuple[str, ...]
) -> None:
    server = start_server("--backend", backend.url, "--role-timeout", "0.5")
    with server.client() as client, Waiter(server.port) as waiter:
        client.rpush("q", "first", "second")
        native = NativeSteps(direct, "q", "native-holder")
        steps: Steps[Any] = native.put(b"third") if role == "producer" else native.get()
        steps_until_held(steps, direct, "q", role)
        next(steps)  # and has said who it is
        began = time.monotonic()
        reply = waiter(*words)
        assert 0.4 <= time.monotonic() - began < 3
        assert is_refused(reply, "INUSE"), reply
        assert "native-holder" in str(reply)
        run(steps)
        wait_for_waiting(client, "q")
        expected = {
            "producer": [b"first", b"second", b"third"],
            "consumer": [b"second"],
        }
        assert client.lrange("q", 0, -1) == expected[role]


def test_a_native_consumer_that_waits_is_served_by_our_put(
    backend: Valkey, client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q")
    received: list[bytes] = []

    def get() -> None:
        with backend.client() as connected:
            for _ in range(20):
                received.append(NativeClient(connected, "q").get())

    thread = threading.Thread(target=get)
    thread.start()
    for number in range(20):
        wait_for(lambda: direct.llen("__pressure__:q:consumer_free") == 0, "the native consumer")
        assert waiter("SADD", "q", number) == 1
    thread.join(TIMEOUT)
    assert received == [b"%d" % number for number in range(20)]


def test_a_native_producer_that_waits_for_room_is_let_on_by_our_get(
    backend: Valkey, client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q", "BOUND", 1)
    client.sadd("q", "first")

    def put() -> None:
        with backend.client() as connected:
            for number in range(20):
                NativeClient(connected, "q").put(b"%d" % number)

    thread = threading.Thread(target=put)
    thread.start()
    assert waiter("BLPOP", "q", 0) == [b"q", b"first"]
    assert [waiter("BLPOP", "q", 0)[1] for _ in range(20)] == [b"%d" % number for number in range(20)]
    thread.join(TIMEOUT)
    del direct


# The backend's side of it.


def test_where_the_backend_does_not_tell_of_changes_waiting_still_works(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey()
    with backend.client() as direct:
        direct.execute_command("ACL", "SETUSER", "default", "-client|tracking")
        server = start_server("--backend", backend.url)
        wait_for(lambda: "WARNING" in server.log, "a warning")
        assert "refuses" in server.log
        with server.client() as client, waiters(server, 4) as waiting:
            create(client, "q")
            create(client, "full", "BOUND", 1)
            client.sadd("full", "a")
            waiting[0].send("BLPOP", "q", 0)
            waiting[1].send("BLPOP", "missing", "q", 0)
            waiting[2].send("SADD", "full", "b")
            waiting[3].send("BLPOP", "later", 0)
            wait_for_blocked(client, 4)
            NativeClient(direct, "q").put(b"1")
            NativeClient(direct, "q").put(b"2")
            assert {waiting[0].reply()[1], waiting[1].reply()[1]} == {b"1", b"2"}
            assert NativeClient(direct, "full").get() == b"a"
            assert waiting[2].reply() == 1
            NativeClient(direct, "later").create()
            NativeClient(direct, "later").put(b"3")
            assert waiting[3].reply() == [b"later", b"3"]


def connections(direct: Client, *, tracking: bool) -> list[dict[str, str]]:
    return [c for c in direct.client_list() if ("t" in c["flags"]) is tracking and "pressure" in c["name"]]


@pytest.mark.parametrize("what", ["tracking", "all"])
def test_when_the_connection_that_tells_of_changes_breaks_who_waits_is_still_served(
    start_valkey: StartValkey, start_server: StartServer, what: str
) -> None:
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    with backend.client() as direct, server.client() as client, waiters(server, 3) as waiting:
        create(client, "q")
        create(client, "full", "BOUND", 1)
        client.sadd("full", "a")
        waiting[0].send("BLPOP", "q", 0)
        waiting[1].send("SADD", "full", "b")
        waiting[2].send("BLPOP", "missing", "later", 0)
        wait_for_blocked(client, 3)
        (watch,) = wait_for(lambda: connections(direct, tracking=True), "the connection")
        doomed = [watch, *(connections(direct, tracking=False) if what == "all" else [])]
        for connection in doomed:
            direct.execute_command("CLIENT", "KILL", "ID", connection["id"])
        NativeClient(direct, "q").put(b"m")
        assert NativeClient(direct, "full").get() == b"a"
        NativeClient(direct, "later").create()
        NativeClient(direct, "later").put(b"l")
        assert waiting[0].reply() == [b"q", b"m"]
        assert waiting[1].reply() == 1
        assert waiting[2].reply() == [b"later", b"l"]


def test_who_waits_when_the_backend_is_flushed_is_told(
    backend: Valkey, client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q")
    waiter.send("BLPOP", "q", 0)
    wait_for_waiting(client, "q", consumers=1)
    direct.flushall()
    assert is_refused(waiter.reply(), "NOQUEUE")
    del backend


# Many.


def test_many_wait_at_little_cost(start_valkey: StartValkey, start_server: StartServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, WAITERS + 1000)), hard))
    backend = start_valkey()
    server = start_server("--backend", backend.url, "--max-clients", "20000")
    with backend.client() as direct, server.client() as client, ExitStack() as stack:
        client.sadd("warm", *range(100))
        with waiters(server, 10) as warm:
            for waiter in warm:
                waiter.send("BLPOP", "warm", "nothing", 0)
                waiter.reply()
        waiting = [stack.enter_context(Waiter(server.port)) for _ in range(WAITERS)]
        for waiter in waiting:
            assert waiter("PING") == b"PONG"
        before = status(server, "VmRSS")
        began = time.monotonic()
        for number, waiter in enumerate(waiting):
            waiter.send("BLPOP", f"q{number}", 0)
        wait_for_blocked(client, WAITERS, timeout=60)
        took = time.monotonic() - began
        growth = (status(server, "VmRSS") - before) / WAITERS
        wait_for(lambda: len(connections(direct, tracking=True)) == 1, "one connection for all")
        assert len(direct.client_list()) <= 4  # that, the link, this one, and maybe one more
        processor = processor_seconds(server)
        time.sleep(2)  # this is the measurement
        processor = processor_seconds(server) - processor
        natively, ours = [], []
        for number in random.Random(1).sample(range(WAITERS), min(1000, WAITERS)):
            native = NativeClient(direct, f"q{number}")
            by_native = number % 2 == 0
            if by_native:
                native.create()
            start = time.perf_counter()
            if by_native:
                native.put(b"m")
            else:
                client.sadd(f"q{number}", "m")
            assert waiting[number].reply() == [b"q%d" % number, b"m"]
            (natively if by_native else ours).append(time.perf_counter() - start)
        print(
            f"{WAITERS} waiters: {took:.2f} s to wait, {growth / 1024:.2f} KiB each, "
            f"{processor:.3f} s of processor in 2 s; put to wake-up in ms, median and p99: "
            + "; ".join(
                f"{name} {statistics.median(times) * 1000:.2f} {statistics.quantiles(times, n=100)[98] * 1000:.2f}"
                for name, times in (("native", natively), ("SADD", ours))
            )
        )
        assert growth < 8 * 1024
        assert processor < 0.2
        assert statistics.median(ours) < 0.05
        assert statistics.median(natively) < 0.05
