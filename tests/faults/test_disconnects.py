"""Clients that leave while they wait: the server drops their commands and loses no message."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any

import hiredis
import pytest

from tests.support.faults import stopped
from tests.support.ledger import Ledger
from tests.support.native import NativeSteps, QueueInUseError, Steps
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    wait_for,
    wait_until_settled,
)
from tests.support.waiters import (
    AsyncWaiter,
    Waiter,
    Words,
    about,
    create,
    packed,
    wait_for_blocked,
    wait_for_waiting,
)

# How many clients leave at random moments, and the seed of these moments.
DISCONNECTS = int(os.environ.get("PRESSURE_DISCONNECTS", "1000"))
SEED = int(os.environ.get("PRESSURE_SEED", "1"))

GETS: list[Words] = [
    ("BLPOP", "q", 0),
    ("BLMPOP", 0, 3, "other", "q", "third", "LEFT", "COUNT", 5),
    ("BLMOVE", "q", "moved", "LEFT", "RIGHT", 0),
]
PUTS: list[Words] = [
    ("SADD", "q", *(f"x{n}" for n in range(10))),
    ("PRESSURE.PUT", "q", "x", "NX", "TIMEOUT", 60),
]


each_disconnect = pytest.mark.parametrize("how", ["close", "half-close", "reset"])


def begin_to_leave(waiter: Waiter, how: str) -> None:
    """Close the connection, or with "half-close" only its sending side."""
    if how == "half-close":
        waiter.socket.shutdown(socket.SHUT_WR)
    elif how == "reset":
        waiter.reset()
    else:
        waiter.close()


def end_leaving(waiter: Waiter, how: str) -> list[Any]:
    """Return the replies that a half-closed connection receives until the server closes it."""
    return waiter.half_close() if how == "half-close" else []


def leave(waiter: Waiter, how: str, client: Client) -> None:
    """Leave, and return when nobody waits on the server any more."""
    begin_to_leave(waiter, how)
    end_leaving(waiter, how)
    wait_for_waiting(client, "q")
    wait_for_blocked(client, 0)


def wait_in_line(server: Server, client: Client, *words: str | bytes | int | float) -> Waiter:
    """Return a connection whose get waits on queue q."""
    waiter = Waiter(server.port)
    waiter.send(*words)
    wait_for_waiting(client, "q", consumers=1)
    return waiter


def name_of(words: Words) -> str:
    return "-".join(map(str, words[:4])).replace("x0-x1", "many")


def drain(client: Client, queue: str) -> list[bytes]:
    """Take all messages of a queue."""
    messages: list[bytes] = []
    while taken := client.lpop(queue, 1000):
        messages += taken
    return messages


@each_disconnect
@pytest.mark.parametrize("put", PUTS, ids=name_of)
def test_a_waiting_put_puts_nothing_after_its_client_leaves(
    server: Server, client: Client, put: Words, how: str
) -> None:
    create(client, "q", "BOUND", 2)
    client.rpush("q", "a", "b")
    waiter = Waiter(server.port)
    waiter.send(*put)
    wait_for_waiting(client, "q", producers=1)
    leave(waiter, how, client)
    assert drain(client, "q") == [b"a", b"b"]
    assert about(client, "q")[b"produced_messages"] == 2


@each_disconnect
def test_a_put_whose_client_leaves_keeps_only_the_messages_put_before(
    server: Server, client: Client, how: str
) -> None:
    create(client, "q", "BOUND", 2)
    waiter = Waiter(server.port)
    waiter.send("SADD", "q", *range(10))
    wait_for(lambda: client.scard("q") == 2, "the first two messages to be put")
    assert client.spop("q") == b"0"
    wait_for(lambda: client.smembers("q") == {b"1", b"2"}, "the third message to be put")
    leave(waiter, how, client)
    assert drain(client, "q") == [b"1", b"2"]
    assert client.scard("q") == 0


@each_disconnect
@pytest.mark.parametrize("get", GETS, ids=name_of)
def test_a_message_taken_for_a_client_that_leaves_goes_to_the_next_in_line(
    backend: Valkey,
    server: Server,
    client: Client,
    direct: Client,
    waiter: Waiter,
    get: Words,
    how: str,
) -> None:
    create(client, "q")
    leaving = wait_in_line(server, client, *get)
    waiter.send("BLPOP", "q", 0)
    wait_for_waiting(client, "q", consumers=2)
    wait_until_settled(direct)
    with Waiter(server.port) as putting:
        with stopped(backend.process):
            # The put and the get are in flight together.
            putting.send("SADD", "q", "m")
            client.ping()
            begin_to_leave(leaving, how)
            wait_for_blocked(client, 1)
        end_leaving(leaving, how)
        assert putting.reply() == 1
    if get[0] == "BLMOVE":
        # The move takes and puts in one step, so the next in line gets another message.
        assert drain(client, "moved") == [b"m"]
        client.sadd("q", "m")
    assert waiter.reply() == [b"q", b"m"]
    assert not drain(client, "q")


@each_disconnect
def test_a_message_put_back_is_the_oldest_again(
    backend: Valkey, server: Server, client: Client, waiter: Waiter, how: str
) -> None:
    create(client, "q")
    leaving = wait_in_line(server, client, "BLPOP", "q", 0)
    with stopped(backend.process):
        waiter.send("RPUSH", "q", "first", "second", "third")
        client.ping()
        begin_to_leave(leaving, how)
        wait_for_blocked(client, 0)
    end_leaving(leaving, how)
    assert waiter.reply() == 3
    wait_for(lambda: client.llen("q") == 3, "the message to be put back")
    assert client.lrange("q", 0, -1) == [b"first", b"second", b"third"]
    found = about(client, "q")
    assert found[b"produced_messages"] - found[b"consumed_messages"] == 3


class Storm:
    """A run of clients that wait and leave at random moments, beside steady clients, with a ledger."""

    def __init__(self, server: Server, backend: Valkey) -> None:
        self.server = server
        self.backend = backend
        self.chance = random.Random(SEED)
        self.ledger = Ledger()
        self.left: Counter[str] = Counter()
        self.errors: list[Any] = []
        self.over = False
        self._number = 0

    def run(self, *works: tuple[Callable[[], Awaitable[None]], int]) -> None:
        """Repeat each work, by so many clients at once, until DISCONNECTS clients have left."""

        async def repeat(work: Callable[[], Awaitable[None]]) -> None:
            while not self.over:
                await work()

        async def run() -> None:
            async with asyncio.timeout(5 * TIMEOUT), asyncio.TaskGroup() as group:
                for work, count in works:
                    for _ in range(count):
                        group.create_task(repeat(work))

        asyncio.run(run())
        assert not self.errors

    def messages(self, count: int) -> list[bytes]:
        """Return new messages, which are about to be sent."""
        self._number += count
        messages = [b"%d" % number for number in range(self._number - count, self._number)]
        self.ledger.send(messages)
        return messages

    async def pause(self, most: float) -> None:
        """Wait for a random time, at most so many seconds and mostly much less."""
        await asyncio.sleep(most * self.chance.random() ** 2)

    async def leave(self, waiter: AsyncWaiter, *, stopping: bool) -> list[Any]:
        """Leave at a random moment, and return the replies that the client has received.

        With `stopping`, the server's process stands still meanwhile, so that no reply is missed.
        """
        await self.pause(0.05)
        # Mostly half-close: only then does the client read every reply sent to it.
        how = self.chance.choice(["half-close"] * 4 + ["close", "reset"])
        if how == "half-close":
            replies = await waiter.half_close()
        else:
            with stopped(self.server.process) if stopping else nullcontext():
                replies = waiter.close_now(reset=how == "reset")
        self.left[how if replies else f"{how} without reply"] += 1
        self.over = self.over or self.left.total() >= DISCONNECTS
        self.errors += [reply for reply in replies if isinstance(reply, hiredis.ReplyError)]
        return replies

    def got(self, reply: Any) -> None:
        """Record the messages in the reply to a get."""
        if isinstance(reply, hiredis.ReplyError):
            self.errors.append(reply)
        elif isinstance(reply, bytes):
            self.ledger.receive([reply])
        elif reply is not None:
            self.ledger.receive(reply[1] if isinstance(reply[1], list) else reply[1:])

    async def run_native(self, steps: Steps[Any]) -> Any:
        """Run the steps of a native client, and let other tasks run between them. Return their result."""
        while True:
            try:
                waits_for = next(steps)
            except StopIteration as end:
                return end.value
            await (self.pause(0.01) if waits_for else asyncio.sleep(0))

    def check(self, *, may_lose: int = 0) -> None:
        """Print a summary of the clients that left, and check the ledger."""
        print(f"seed {SEED}: {self.left.total()} clients left: {dict(self.left)}")
        self.ledger.check(may_lose=may_lose)


@pytest.fixture
def storm(start_server: StartServer, start_valkey: StartValkey) -> Storm:
    """A storm on a server and a backend of its own."""
    backend = start_valkey()
    return Storm(start_server("--backend", backend.url), backend)


@pytest.mark.slow
def test_getting_clients_that_leave_at_random_lose_no_message(storm: Storm) -> None:
    server, backend, chance = storm.server, storm.backend, storm.chance
    queues = ["q0", "q1", "q2", "q3"]

    async def wait_and_leave() -> None:
        some = chance.sample(queues, chance.randrange(1, 4))
        waits: list[Words] = [
            ("BLPOP", some[0], 0),
            ("BRPOP", *some, 0),
            ("BLMPOP", 0, len(some), *some, "LEFT"),
            ("PRESSURE.GET", some[0]),
            ("BLMOVE", some[0], some[-1] + "moved", "LEFT", "LEFT", 0),
        ]
        words = chance.choice(waits)
        waiter = await AsyncWaiter.connect(server.port)
        await waiter.send(packed(*words))
        for reply in await storm.leave(waiter, stopping=True):
            if words[0] != "BLMOVE":
                storm.got(reply)

    async def put() -> None:
        waiter = await AsyncWaiter.connect(server.port)
        for _ in range(50):
            some = storm.messages(chance.choice([1, 1, 1, 2, 5]))
            reply = await waiter(chance.choice(["SADD", "LPUSH"]), chance.choice(queues), *some)
            assert isinstance(reply, int), reply
            storm.ledger.acknowledge(some)
            await storm.pause(0.01)
        waiter.close()

    async def put_natively() -> None:
        with backend.client() as direct:
            for _ in range(10):
                (message,) = storm.messages(1)
                steps = NativeSteps(direct, chance.choice(queues), "native")
                await storm.run_native(steps.put(message))
                storm.ledger.acknowledge([message])
                await storm.pause(0.05)

    async def take() -> None:
        waiter = await AsyncWaiter.connect(server.port)
        for _ in range(50):
            storm.got(await waiter("BLPOP", *chance.sample(queues, 2), "0.02"))
        waiter.close()

    with server.client() as client:
        for queue in queues:
            create(client, queue)
        storm.run((wait_and_leave, 24), (put, 2), (put_natively, 1), (take, 1))
        wait_for_blocked(client, 0)
        for queue in queues:
            storm.ledger.receive(drain(client, queue))
            storm.ledger.receive(drain(client, queue + "moved"))
            found = about(client, queue)
            assert found[b"length"] == 0
            assert found[b"produced_messages"] == found[b"consumed_messages"]
    assert not storm.ledger.unsure
    # The server cannot notice a close in the microseconds before the reply is written: 0 to 3 of about 190
    # clients close then.
    storm.check(may_lose=(storm.left["close without reply"] + storm.left["reset without reply"]) // 20)


def test_putting_clients_that_leave_at_random_put_each_message_once_or_never(storm: Storm) -> None:
    server, backend, chance = storm.server, storm.backend, storm.chance
    queues = ["q0", "q1"]

    async def wait_and_leave() -> None:
        queue, some = chance.choice(queues), storm.messages(chance.choice([1, 1, 2, 5]))
        waits: list[Words] = [
            ("SADD", queue, *some),
            ("LPUSH", queue, *some),
            ("PRESSURE.PUT", queue, some[0]),
        ]
        words = chance.choice(waits)
        sent = [message for message in words[2:] if isinstance(message, bytes)]
        waiter = await AsyncWaiter.connect(server.port)
        await waiter.send(packed(*words))
        for _ in await storm.leave(waiter, stopping=False):
            storm.ledger.acknowledge(sent)

    async def take() -> None:
        waiter = await AsyncWaiter.connect(server.port)
        for _ in range(50):
            storm.got(await waiter("SPOP", chance.choice(queues)))
            await storm.pause(0.005)
        waiter.close()

    async def take_natively() -> None:
        with backend.client() as direct:
            for _ in range(10):
                steps = NativeSteps(direct, chance.choice(queues), "native")
                with suppress(QueueInUseError):
                    storm.got(await storm.run_native(steps.get_non_blocking()))
                await storm.pause(0.05)

    with server.client() as client:
        for queue in queues:
            create(client, queue, "BOUND", 3)
        storm.run((wait_and_leave, 24), (take, 2), (take_natively, 1))
        for queue in queues:
            wait_for_waiting(client, queue)
        wait_for_blocked(client, 0)
        for queue in queues:
            storm.ledger.receive(drain(client, queue))
        assert not any(client.exists(queue) and client.scard(queue) for queue in queues)
    storm.check()


@pytest.mark.slow
@pytest.mark.parametrize("get", [("BLPOP", "q", 0), ("BLPOP", "q", "other", 0)], ids=name_of)
def test_a_crowd_that_leaves_while_it_is_served_loses_no_message(
    start_server: StartServer, start_valkey: StartValkey, get: Words
) -> None:
    # One call serves all clients, so some leave between the end of the call and the write of their reply.
    server = start_server("--backend", start_valkey().url)

    async def crowd(round_: int) -> None:
        waiting = [await AsyncWaiter.connect(server.port) for _ in range(300)]
        for waiter in waiting:
            await waiter.send(packed(*get))
        await asyncio.to_thread(wait_for_blocked, client, len(waiting))
        put = [b"%d" % number for number in range(len(waiting))]
        putting = await AsyncWaiter.connect(server.port)
        await putting.send(packed("RPUSH", "q", *put))
        # In each round the clients leave a little later, when the server has served a few more.
        await asyncio.sleep(0.0005 * round_)
        replies = await asyncio.gather(*(waiter.half_close() for waiter in waiting))
        await asyncio.to_thread(wait_for_blocked, client, 0)
        received = [reply[1] for some in replies for reply in some]
        rest = len(put) - len(received)
        await asyncio.to_thread(wait_for, lambda: client.llen("q") == rest, f"{rest} messages to be queued")
        left = drain(client, "q")
        assert sorted(received + left, key=int) == put
        assert left == sorted(left, key=int)

    with server.client() as client:
        create(client, "q")
        for round_ in range(10):
            asyncio.run(crowd(round_))


def test_messages_taken_by_a_transaction_of_a_client_that_left_go_back(
    server: Server, client: Client, direct: Client
) -> None:
    client.rpush("q", *"abc")
    wait_until_settled(direct)
    direct.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        with Waiter(server.port) as waiter:
            waiter("MULTI")
            waiter("LPOP", "q")
            waiter("LPOP", "q", 1)
            waiter.send("EXEC")
            wait_for(lambda: direct.info("clients")["blocked_clients"] >= 1, "EXEC to be in flight")
        wait_for_blocked(client, 0)
    finally:
        direct.execute_command("CLIENT", "UNPAUSE")
    wait_for(lambda: client.lrange("q", 0, -1) == [b"a", b"b", b"c"], "the messages to be put back")
    assert about(client, "q")[b"consumed_messages"] == 0
