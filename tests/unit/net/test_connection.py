"""A connection in memory: when replies are written, and how it ends."""

import asyncio
import socket
import sys
import weakref
from collections.abc import Callable

import pytest

from handlers.resp.parser import Limits
from handlers.resp.session import RespSession
from pressure_server.errors import BufferLimitError
from pressure_server.net.connection import Connection
from pressure_server.net.connection_state import ServerSide
from tests.support.waiters import packed
from tests.unit.net.fake_server import Server


async def test_the_replies_of_a_call_are_written_once_for_each_client(server: Server) -> None:
    (one, to_one), (other, to_other) = server.connect(), server.connect()
    one.data_received(packed("LLEN", "a") + packed("LLEN", "b") + packed("PING") + packed("LLEN", "c"))
    other.data_received(packed("LLEN", "b") + packed("LLEN", "d"))
    server.send()
    server.link.reply([0, [0, 1], [0, 2], [0, 3], [0, 4]])
    assert to_one.written == [b":1\r\n:2\r\n+PONG\r\n:3\r\n"]
    assert to_other.written == [b":2\r\n:4\r\n"]


async def test_a_reply_waits_for_those_before_it(server: Server) -> None:
    client, to_client = server.connect()
    for requests in (packed("LLEN", "a"), packed("LLEN", "b") + packed("PING")):
        client.data_received(requests)
        server.send()
    (first, second), server.link.calls = server.link.calls, []
    second.received([0, [0, 2]])
    assert to_client.written == []
    first.received([0, [0, 1]])
    assert to_client.written == [b":1\r\n:2\r\n+PONG\r\n"]


async def test_a_client_that_cannot_be_written_to_stops_no_other(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    (one, to_one), (other, to_other) = server.connect(), server.connect()
    to_one.is_broken = True
    one.data_received(packed("LLEN", "a"))
    other.data_received(packed("LLEN", "b"))
    server.send()
    server.link.reply([0, [0, 1], [0, 2]])
    assert to_other.written == [b":2\r\n"]
    assert "OSError: the transport is broken" in caplog.text


async def test_messages_for_a_client_that_has_left_go_back(server: Server) -> None:
    client, to_client = server.connect()
    client.data_received(packed("SPOP", "a") + packed("SPOP", "b"))
    server.send()
    client.client_disconnected(entirely=True)
    server.link.reply([1, [0, [b"x"]], [0, [b"y"]]])
    for _ in range(10):
        await asyncio.sleep(0)
    server.shard.flush_put_backs()
    server.send()
    assert to_client.written == []
    (call,) = server.link.calls
    assert set(call.keys) == {b"p:a", b"p:b"}
    assert {word for word in call.arguments() if word in (b"x", b"y")} == {b"x", b"y"}


async def play(*steps: Callable[[], object]) -> None:
    """Do these steps, with an iteration of the event loop after each."""
    for step in steps:
        step()
        await asyncio.sleep(0)


async def test_after_the_last_reply_the_server_closes_its_side_and_reads_on(server: Server) -> None:
    client, to_client = server.connect()
    requests = packed("LLEN", "a") + packed("QUIT") + packed("PING")
    await play(lambda: client.data_received(requests), server.send)
    assert (to_client.written, client.server_side) == ([], ServerSide.ENDING)
    await play(lambda: server.link.reply([0, [0, 1]]))
    assert b"".join(to_client.written) == b":1\r\n+OK\r\n"
    assert (to_client.has_written_eof, to_client.is_closed, client.is_read) == (True, False, True)
    assert client.server_side is ServerSide.HUNG_UP


async def test_a_client_that_closes_its_side_gets_its_replies_before_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, to_client = server.connect()
    # Over a unix socket nothing need be acknowledged.
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(to_client, "get_extra_info", {"socket": ours}.get)
    await play(
        lambda: client.data_received(packed("LLEN", "a")),
        lambda: client.client_disconnected(entirely=False),
        client.eof_received,
        server.send,
    )
    assert (to_client.is_closed, client.server_side) == (False, ServerSide.OPEN)
    await play(lambda: server.link.reply([0, [0, 1]]))
    assert (to_client.written, to_client.is_closed) == ([b":1\r\n"], True)
    for end in (ours, theirs):
        end.close()


async def test_a_stop_closes_an_idle_client_at_once_and_a_busy_one_after_its_reply(server: Server) -> None:
    (idle, to_idle), (busy, to_busy) = server.connect(), server.connect()
    await play(lambda: busy.data_received(packed("LLEN", "a")), server.send, idle.drain, busy.drain)
    assert (to_idle.is_closed, idle.server_side) == (True, ServerSide.STOPPING_IDLE)
    assert busy.server_side is ServerSide.STOPPING
    await play(lambda: server.link.reply([0, [0, 1]]))
    assert (to_busy.written, to_busy.has_written_eof) == ([b":1\r\n"], True)


async def test_a_client_whose_replies_are_unread_or_that_is_throttled_gets_no_command_executed(
    server: Server,
) -> None:
    client, to_client = server.connect()
    await play(client.throttle, client.pause_writing, lambda: client.data_received(packed("PING")))
    assert client.is_throttled
    await play(client.resume)
    assert (client.is_throttled, client.is_read, to_client.written) == (False, False, [])
    await play(client.resume_writing)
    assert (client.is_read, to_client.written) == (True, [b"+PONG\r\n"])


class WatchedConnection(Connection):
    """A connection to which a weak reference can be made."""


def test_a_connection_without_a_client_is_freed_at_once(server: Server) -> None:
    """As after a TLS handshake that has failed: nobody would break a cycle of references."""
    client = weakref.ref(WatchedConnection(server.clients, RespSession(server.context, Limits(1 << 20))))
    assert client() is None


async def test_a_client_that_is_evicted_keeps_no_part_of_a_request(server: Server) -> None:
    client, to_client = server.connect()
    client.data_received(b"*2\r\n$4\r\nSADD\r\n$1000000\r\n" + bytes(500_000))
    client.evict(BufferLimitError(500_000, 1))
    assert client.session.buffered_bytes() == 0
    assert to_client.written[0].startswith(b"-")


@pytest.mark.parametrize("count", [50, 10_000])
async def test_the_memory_of_short_words_is_counted(server: Server, count: int) -> None:
    client, _ = server.connect()
    words = [b"%d" % number for number in range(count)]
    client.data_received(packed("SADD", "q", *words))
    assert client.session.buffered_bytes() > sum(map(sys.getsizeof, words))


async def test_what_a_client_that_is_evicted_has_not_read_is_not_counted(server: Server) -> None:
    client, to_client = server.connect()
    await play(lambda: client.data_received(packed("PING")))
    to_client.buffered = 10_000
    await play(lambda: client.evict(BufferLimitError(10_000, 1)))
    assert (server.clients.memory.held, to_client.is_aborted) == (0, True)
    assert client.server_side is ServerSide.BROKEN_OFF
