"""The order of a client's replies, and that the replies of a call are written once for each client."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator

import pytest

from handlers.resp.parser import Limits
from handlers.resp.session import RespSession
from pressure_server.errors import BufferLimitError
from pressure_server.net.connection import Connection
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
        server.shard.send_put_backs()
        server.send()

    runner.run(leave())
    assert to_client.written == []
    (call,) = server.link.calls
    assert set(call.keys.unpacked()) == {b"p:a", b"p:b"}
    assert {word for word in call.arguments.unpacked() if word in (b"x", b"y")} == {b"x", b"y"}


class WatchedConnection(Connection):
    """A connection to which a weak reference can be made."""

    __slots__ = ("__weakref__",)


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
