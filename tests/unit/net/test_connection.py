"""A connection in memory: when replies are written, and how it ends."""

import asyncio
import socket
import weakref
from collections.abc import Callable, Iterator

import pytest

from handlers.resp.parser import Limits
from handlers.resp.session import RespSession
from pressure_server.errors import BufferLimitError
from pressure_server.net.connection import Connection
from pressure_server.net.connection_state import ServerSide
from tests.support.waiters import packed
from tests.unit.net.fake_server import Server


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def server(runner: asyncio.Runner) -> Iterator[Server]:
    async def make() -> Server:
        return Server()

    made = runner.run(make())
    yield made
    made.close()


def receive(server: Server, runner: asyncio.Runner, client: Connection, *requests: str) -> None:
    """Let the server receive requests of a client, and send the blocks of their operations."""

    async def feed() -> None:
        client.data_received(b"".join(packed(*request.split()) for request in requests))
        server.send()

    runner.run(feed())


def test_the_replies_of_a_call_are_written_once_for_each_client(
    server: Server, runner: asyncio.Runner
) -> None:
    (one, to_one), (other, to_other) = server.connect(), server.connect()

    async def feed() -> None:
        one.data_received(packed("LLEN", "a") + packed("LLEN", "b") + packed("PING") + packed("LLEN", "c"))
        other.data_received(packed("LLEN", "b") + packed("LLEN", "d"))
        server.send()
        server.link.reply([0, [0, 1], [0, 2], [0, 3], [0, 4]])

    runner.run(feed())
    assert to_one.written == [b":1\r\n:2\r\n+PONG\r\n:3\r\n"]
    assert to_other.written == [b":2\r\n:4\r\n"]


def test_a_reply_waits_for_those_before_it(server: Server, runner: asyncio.Runner) -> None:
    client, to_client = server.connect()
    receive(server, runner, client, "LLEN a")
    receive(server, runner, client, "LLEN b", "PING")
    (first, second), server.link.calls = server.link.calls, []
    second.received([0, [0, 2]])
    assert to_client.written == []
    first.received([0, [0, 1]])
    assert to_client.written == [b":1\r\n:2\r\n+PONG\r\n"]


def test_a_client_that_cannot_be_written_to_stops_no_other(
    server: Server, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    (one, to_one), (other, to_other) = server.connect(), server.connect()
    to_one.is_broken = True

    async def feed() -> None:
        one.data_received(packed("LLEN", "a"))
        other.data_received(packed("LLEN", "b"))
        server.send()
        server.link.reply([0, [0, 1], [0, 2]])

    runner.run(feed())
    assert to_other.written == [b":2\r\n"]
    assert "OSError: the transport is broken" in caplog.text


def test_messages_for_a_client_that_has_left_go_back(server: Server, runner: asyncio.Runner) -> None:
    client, to_client = server.connect()

    async def leave() -> None:
        client.data_received(packed("SPOP", "a") + packed("SPOP", "b"))
        server.send()
        client.client_disconnected(entirely=True)
        server.link.reply([1, [0, [b"x"]], [0, [b"y"]]])
        for _ in range(10):
            await asyncio.sleep(0)
        server.shard.flush_put_backs()
        server.send()

    runner.run(leave())
    assert to_client.written == []
    (call,) = server.link.calls
    assert set(call.keys.unpacked()) == {b"p:a", b"p:b"}
    assert {word for word in call.arguments.unpacked() if word in (b"x", b"y")} == {b"x", b"y"}


def play(runner: asyncio.Runner, *steps: Callable[[], object]) -> None:
    """Do these steps in the event loop, with an iteration after each."""

    async def all_steps() -> None:
        for step in steps:
            step()
            await asyncio.sleep(0)

    runner.run(all_steps())


def test_after_the_last_reply_the_server_closes_its_side_and_reads_on(
    server: Server, runner: asyncio.Runner
) -> None:
    client, to_client = server.connect()
    play(
        runner,
        lambda: client.data_received(packed("LLEN", "a") + packed("QUIT") + packed("PING")),
        server.send,
    )
    assert (to_client.written, client.server_side) == ([], ServerSide.ENDING)
    play(runner, lambda: server.link.reply([0, [0, 1]]))
    assert b"".join(to_client.written) == b":1\r\n+OK\r\n"
    assert (to_client.has_written_eof, to_client.is_closed, client.is_read) == (True, False, True)
    assert client.server_side is ServerSide.HUNG_UP


def test_a_client_that_closes_its_side_gets_its_replies_before_the_end(
    server: Server, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, to_client = server.connect()
    # Over a unix socket nothing need be acknowledged.
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(to_client, "get_extra_info", {"socket": ours}.get)
    play(
        runner,
        lambda: client.data_received(packed("LLEN", "a")),
        lambda: client.client_disconnected(entirely=False),
        client.eof_received,
        server.send,
    )
    assert not to_client.is_closed
    assert client.server_side is ServerSide.OPEN
    play(runner, lambda: server.link.reply([0, [0, 1]]))
    assert (to_client.written, to_client.is_closed) == ([b":1\r\n"], True)
    for end in (ours, theirs):
        end.close()


def test_a_stop_closes_an_idle_client_at_once_and_a_busy_one_after_its_reply(
    server: Server, runner: asyncio.Runner
) -> None:
    (idle, to_idle), (busy, to_busy) = server.connect(), server.connect()
    play(runner, lambda: busy.data_received(packed("LLEN", "a")), server.send, idle.drain, busy.drain)
    assert (to_idle.is_closed, idle.server_side) == (True, ServerSide.STOPPING_IDLE)
    assert busy.server_side is ServerSide.STOPPING
    play(runner, lambda: server.link.reply([0, [0, 1]]))
    assert (to_busy.written, to_busy.has_written_eof) == ([b":1\r\n"], True)


def test_a_client_whose_replies_are_unread_or_that_is_throttled_gets_no_command_executed(
    server: Server, runner: asyncio.Runner
) -> None:
    client, to_client = server.connect()
    play(runner, client.throttle, client.pause_writing, lambda: client.data_received(packed("PING")))
    assert client.is_throttled
    play(runner, client.resume)
    assert (client.is_throttled, client.is_read, to_client.written) == (False, False, [])
    play(runner, client.resume_writing)
    assert (client.is_read, to_client.written) == (True, [b"+PONG\r\n"])


class WatchedConnection(Connection):
    """A connection to which a weak reference can be made."""


def test_a_connection_without_a_client_is_freed_at_once(server: Server) -> None:
    """As after a TLS handshake that has failed: nobody would break a cycle of references."""
    client = weakref.ref(WatchedConnection(server.clients, RespSession(server.context, Limits(1 << 20))))
    assert client() is None


def test_a_client_that_is_evicted_keeps_no_part_of_a_request(server: Server, runner: asyncio.Runner) -> None:
    client, to_client = server.connect()

    async def evict() -> None:
        client.data_received(b"*2\r\n$4\r\nSADD\r\n$1000000\r\n" + bytes(500_000))
        client.evict(BufferLimitError(500_000, 1))

    runner.run(evict())
    assert client.session.buffered_bytes() == 0
    assert to_client.written[0].startswith(b"-")


def test_what_a_client_that_is_evicted_has_not_read_is_not_counted(
    server: Server, runner: asyncio.Runner
) -> None:
    client, to_client = server.connect()
    play(runner, lambda: client.data_received(packed("PING")))
    to_client.buffered = 10_000
    play(runner, lambda: client.evict(BufferLimitError(10_000, 1)))
    assert (server.clients.memory.held, to_client.is_aborted) == (0, True)
    assert client.server_side is ServerSide.BROKEN_OFF
