"""A session replies in the order of the commands, however the bytes and the replies of calls arrive."""

import asyncio
from random import Random
from typing import Any, cast
from unittest.mock import Mock

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.resp.session import RespSession
from pressure_server.errors import UnblockedError
from pressure_server.net.connection import Connection
from pressure_server.queues.calls.call import Call
from pressure_server.queues.operations.wait import Unblocking
from tests.interleavings.backend import Backend, Queue
from tests.support.scripts import header_of
from tests.support.waiters import packed
from tests.unit.net.fake_server import FakeTransport, Server

# What each queue has at first.
STORED = [b"first", b"second", b"third"]
# More rounds than any pipeline needs.
MOST_ROUNDS = 300


@pytest.fixture
def backend() -> Backend:
    return Backend(Random(0), lambda _: None)


class Client:
    """A client, the requests that it sends, and the replies to its commands one after the other."""

    def __init__(self, server: Server, number: int, kinds: list[str]) -> None:
        self.connection: Connection
        self.transport: FakeTransport
        self.connection, self.transport = server.connect()
        self.requests = b""
        self.expected: list[Any] = []
        self._queues = {f"{number}-{name}": list(STORED) for name in "abc"}
        for place, kind in enumerate(kinds):
            self._add(kind, f"{number}-{'abc'[place % 3]}", f"{number}-{place}")

    def _add(self, kind: str, name: str, message: str) -> None:
        queue = self._queues[name]
        words: tuple[str | int, ...] = (kind, name)
        reply: Any
        if kind == "PING":
            words, reply = ("PING",), b"PONG"
        elif kind == "NOSUCH":
            reply = "ERR unknown command 'NOSUCH'"
        elif kind == "LPUSH":
            queue.append(message.encode())
            words, reply = ("LPUSH", name, message), len(queue)
        elif not queue:
            # On a queue without messages each of the others would fail, or wait.
            words, reply = ("ECHO", message), message.encode()
        elif kind == "LLEN":
            reply = len(queue)
        elif kind == "BLPOP of two":
            # A command that runs alone.
            words, reply = ("BLPOP", f"empty-{name}", name, 0), [name.encode(), queue.pop(0)]
        elif kind == "BLPOP":
            words, reply = ("BLPOP", name, 0), [name.encode(), queue.pop(0)]
        else:
            reply = queue.pop(0)
        self.requests += packed(*words)
        self.expected.append(reply)

    def replies(self) -> list[Any]:
        """Return the replies that have been written."""
        reader = hiredis.Reader()
        for data in self.transport.written:
            reader.feed(data)
        found: list[Any] = []
        while (reply := reader.gets()) is not False:
            found.append(str(reply).partition(",")[0] if isinstance(reply, Exception) else reply)
        return found


KINDS = ["PING", "NOSUCH", "LPUSH", "LPUSH", "LLEN", "SPOP", "BLPOP", "BLPOP of two"]
PIPELINES = st.lists(st.lists(st.sampled_from(KINDS), max_size=40), min_size=1, max_size=3)


async def _play(kinds: list[list[str]], seed: int) -> None:
    random = Random(seed)
    server, backend = Server(), Backend(Random(seed), lambda _: None)
    clients = [Client(server, number, some) for number, some in enumerate(kinds)]
    for number in range(len(kinds)):
        for name in "abc":
            backend.queues[f"p:{number}-{name}".encode()] = Queue(messages=list(STORED))
    for client in clients:
        places = sorted(random.randrange(len(client.requests) + 1) for _ in range(random.randrange(30)))
        pieces = [
            client.requests[start:end]
            for start, end in zip([0, *places], [*places, len(client.requests)], strict=True)
        ]
        for piece in pieces:
            client.connection.data_received(piece)
            if random.random() < 0.5:
                server.send()
            if random.random() < 0.5:
                await asyncio.sleep(0)
            if server.link.calls and random.random() < 0.5:
                _answer(server, backend)
    for _ in range(MOST_ROUNDS):
        server.send()
        while server.link.calls:
            _answer(server, backend)
        await asyncio.sleep(0)
        if all(len(client.replies()) == len(client.expected) for client in clients):
            break
    for client in clients:
        assert client.replies() == client.expected
        assert not client.connection.session.is_busy
    server.close()


def _answer(server: Server, backend: Backend) -> None:
    call = server.link.calls[0]
    words = [*header_of(call), *call.arguments()]
    server.link.reply(backend.call(call.keys, words))


def _queues(call: Call) -> int:
    """Return how many queues the call is about."""
    return len([key for key in call.keys if key != b"p!calls:me"])


@settings(deadline=None)
@given(PIPELINES, st.integers(0, 1 << 32))
def test_pipelines_have_the_replies_of_their_commands_one_after_the_other(
    kinds: list[list[str]], seed: int
) -> None:
    asyncio.run(_play(kinds, seed))


def test_a_long_pipeline_is_answered_whole() -> None:
    asyncio.run(_play([["LPUSH", "LLEN", "PING"] * 800], 1))


async def test_thousands_of_equal_commands_are_answered_by_a_few_calls(
    server: Server, backend: Backend
) -> None:
    client, to_client = server.connect()
    client.data_received(b"".join(packed("LPUSH", "q", number) for number in range(4000)))
    calls = 0
    while server.link.calls or client.session.is_busy:
        server.send()
        _answer(server, backend)
        calls += 1
    assert calls < 20
    assert b"".join(to_client.written) == b"".join(b":%d\r\n" % number for number in range(1, 4001))


async def test_a_command_that_runs_alone_waits_for_the_replies_before_it_and_holds_those_after(
    server: Server, backend: Backend
) -> None:
    client, to_client = server.connect()
    client.data_received(
        packed("LPUSH", "q", "m") + packed("BLPOP", "none", "q", 0) + packed("LPUSH", "q", "n")
    )
    await asyncio.sleep(0)
    server.send()
    (call,) = server.link.calls
    assert b"none" not in b"".join(call.keys)
    assert call.arguments().count(b"put") == 1
    for _ in range(20):
        while server.link.calls:
            _answer(server, backend)
        await asyncio.sleep(0)
        server.send()
    assert b"".join(to_client.written) == b":1\r\n*2\r\n$1\r\nq\r\n$1\r\nm\r\n:1\r\n"


async def test_equal_commands_in_a_row_are_one_operation_and_have_their_own_replies(
    server: Server, backend: Backend
) -> None:
    client, to_client = server.connect()
    client.data_received(b"".join(packed("LPUSH", "q", number) for number in range(3)))
    client.data_received(packed("LPUSH", "q", "x", "y"))
    server.send()
    (call,) = server.link.calls
    assert call.arguments()[-6:] == [b"1 1 1 2", b"0", b"1", b"2", b"x", b"y"]
    _answer(server, backend)
    assert to_client.written == [b":1\r\n:2\r\n:3\r\n:5\r\n"]


async def test_nothing_is_executed_for_a_client_that_waits(server: Server, backend: Backend) -> None:
    (waiter, to_waiter), (other, _) = server.connect(), server.connect()
    waiter.data_received(packed("BLPOP", "q", 0) + packed("PING"))
    server.send()
    _answer(server, backend)
    waiter.data_received(packed("LPUSH", "r", "m"))
    server.send()
    assert (server.link.calls, to_waiter.written) == ([], [])
    assert waiter.session.is_waiting
    assert not waiter.is_read
    other.data_received(packed("LPUSH", "q", "m"))
    server.send()
    _answer(server, backend)
    server.send()
    _answer(server, backend)
    assert b"".join(to_waiter.written) == b"*2\r\n$1\r\nq\r\n$1\r\nm\r\n+PONG\r\n:1\r\n"
    assert waiter.is_read


async def test_commands_after_a_put_that_waits_for_room_are_done_after_it(
    server: Server, backend: Backend
) -> None:
    """But equal puts wait with it, in one operation."""
    queue = backend.queues[b"p:q"] = Queue(2, [b"a", b"b"])
    (client, to_client), (other, to_other) = server.connect(), server.connect()
    lines = ("SADD q c", "SADD q d", "LPUSH r x", "SPOP q", "LPUSH q e", "PING")
    client.data_received(b"".join(packed(*line.split()) for line in lines))
    server.send()
    _answer(server, backend)
    assert client.session.is_waiting
    for taken, left in ((b"a", [b"b", b"c"]), (b"b", [b"c", b"d"])):
        assert b"p:r" not in backend.queues
        other.data_received(packed("SPOP", "q"))
        server.send()
        _answer(server, backend)
        assert (to_other.written[-1], queue.messages) == (b"$1\r\n%b\r\n" % taken, left)
    for _ in range(10):
        server.send()
        while server.link.calls:
            _answer(server, backend)
        await asyncio.sleep(0)
    assert b"".join(to_client.written) == b":1\r\n:1\r\n:1\r\n$1\r\nc\r\n:2\r\n+PONG\r\n"
    assert queue.messages == [b"d", b"e"]


def _waiting(server: Server, backend: Backend, *words: str | int) -> tuple[Connection, FakeTransport]:
    """Return a client that waits."""
    connection, transport = server.connect()
    connection.data_received(packed(*words))
    server.send()
    _answer(server, backend)
    assert connection.session.is_waiting
    return connection, transport


@pytest.mark.parametrize("leaves", ["nobody", "the client that waits", "the client that asks"])
async def test_the_request_to_unblock_is_answered_when_the_operation_in_flight_is(
    server: Server, backend: Backend, leaves: str
) -> None:
    """The message that it brings goes to the client. A second request meanwhile changes nothing."""
    waiter, written = _waiting(server, backend, "BLPOP", "q", 0)
    session = cast(RespSession, waiter.session)
    other, _ = server.connect()
    other.data_received(packed("LPUSH", "q", "m"))
    server.send()
    first = asyncio.create_task(session.unblock(UnblockedError()))
    await asyncio.sleep(0)
    if leaves == "the client that waits":
        waiter.connection_lost(None)
        assert not await first
        return
    assert not await session.unblock(None)
    assert not first.done()
    if leaves == "the client that asks":
        first.cancel()
    while server.link.calls:
        _answer(server, backend)
        server.send()
    assert written.written == [b"*2\r\n$1\r\nq\r\n$1\r\nm\r\n"]
    assert leaves == "the client that asks" or not await first
    assert not await session.unblock(None)


async def test_a_command_that_looks_between_two_waits_is_unblocked_when_it_waits_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: asyncio.Queue[str] = asyncio.Queue()
    goes_on = asyncio.Event()

    async def reserve(*arguments: Any, **_options: Any) -> None:
        client, waiter, ended = arguments[4], Mock(), asyncio.Event()
        client.begin_wait(waiter, [b"q"])
        client.end_wait(waiter)
        steps.put_nowait("looks")
        await goes_on.wait()

        def unblock(unblocking: Unblocking) -> None:
            unblocking.take_effect()
            ended.set()

        waiter.unblock = unblock
        client.begin_wait(waiter, [b"q"])
        assert not ended.is_set()  # an operation would not be in its line yet
        await ended.wait()
        client.end_wait(waiter)

    monkeypatch.setattr(server.database, "reserve", reserve)
    connection, written = server.connect()
    session = cast(RespSession, connection.session)
    connection.data_received(packed("PRESSURE.RESERVE", "q", "r", "TIMEOUT", 0))
    await steps.get()
    assert not session.is_waiting
    unblocked = asyncio.create_task(session.unblock(None))
    await asyncio.sleep(0)
    goes_on.set()
    assert await unblocked
    assert written.written == [b"*-1\r\n"]


async def test_a_new_client_has_few_commands_in_flight_and_more_after_small_replies(server: Server) -> None:
    client, _ = server.connect()
    client.data_received(b"".join(packed("LLEN", f"q{number}") for number in range(300)))
    sent = list[int]()
    while sum(sent) < 300:
        server.send()
        numbers = [_queues(call) for call in server.link.calls]
        sent.append(sum(numbers))
        for number in numbers:
            server.link.reply([0, *([[0, 1]] * number)])
    assert sent[0] == 4
    assert sent == sorted(sent[:-1]) + sent[-1:]
    assert max(sent) > 100
