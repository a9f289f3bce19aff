"""The relays of tests/support: they pass all bytes on, except those that a test holds, cuts or drops."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.backend_relay import BackendRelay
from tests.support.programs import TIMEOUT, Valkey, wait_for
from tests.support.relay import Relay, connected
from tests.support.waiters import Waiter, packed

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Show = Callable[[Relay, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def through_a_relay(show: Show) -> None:
    """Run a test with a relay to an echo server, and a connection through it."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        relay = Relay()
        relay.listen(lambda: connected(address))
        async with asyncio.timeout(TIMEOUT):
            await show(relay, *await connect(relay))
        await relay.close()
        server.close()

    asyncio.run(run())


async def connect(relay: Relay) -> Streams:
    """Open a connection through the relay, and show that it is passed on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    writer.write(b"one")
    assert await reader.readexactly(3) == b"one"
    return reader, writer


def test_a_relay_that_stalls_holds_all_bytes_until_it_is_healed() -> None:
    async def show(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay.stall()
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        relay.heal()
        assert await reader.readexactly(3) == b"two"
        writer.close()

    through_a_relay(show)


def test_a_relay_cuts_in_the_middle_of_a_reply() -> None:
    async def show(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay.cut_after(4)
        writer.write(b"second")
        assert await reader.read() == b"seco"
        writer.close()

    through_a_relay(show)


@pytest.mark.parametrize("reset", [False, True])
def test_a_relay_cuts_and_refuses_connections_until_it_is_healed(reset: bool) -> None:
    async def show(relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay.cut(reset=reset)
        if reset:
            with pytest.raises(ConnectionResetError):
                await reader.read()
        else:
            assert await reader.read() == b""
        writer.close()
        relay.refuse()
        with pytest.raises(ConnectionResetError):
            await connect(relay)
        relay.heal()
        _, writer = await connect(relay)
        writer.close()

    through_a_relay(show)


def test_a_relay_that_holds_some_replies_passes_the_others_on(backend: Valkey) -> None:
    with BackendRelay(backend.socket) as relay, Waiter(relay.port) as held, Waiter(relay.port) as other:
        relay.hold(lambda data: b"held" in data)
        held.send("ECHO", "held")
        wait_for(lambda: relay.held == 1, "the reply")
        assert other("ECHO", "other") == b"other"
        held.send("ECHO", "after")
        assert not held.has_reply()
        relay.release()
        assert [held.reply(), held.reply()] == [b"held", b"after"]


def test_a_relay_that_drops_a_request_breaks_its_connection(backend: Valkey) -> None:
    with BackendRelay(backend.socket) as relay, Waiter(relay.port) as client, backend.client() as direct:
        relay.drops = lambda data: b"dropped" in data
        client.send("SET", "key", "dropped")
        with pytest.raises(ConnectionError):
            client.reply()
        assert direct.get("key") is None


def test_a_relay_that_cuts_a_reply_passes_its_beginning_on(backend: Valkey) -> None:
    with BackendRelay(backend.socket) as relay, socket.create_connection(("127.0.0.1", relay.port)) as client:
        relay.cuts = lambda data: b"cut" in data
        client.settimeout(TIMEOUT)
        client.sendall(packed("ECHO", "cut here, please"))
        received = b"".join(iter(lambda: client.recv(100), b""))
        assert received == b"$16\r\ncut"


def test_a_relay_follows_its_target(backend: Valkey, tmp_path: Path) -> None:
    with BackendRelay(tmp_path / "nothing") as relay:
        with Waiter(relay.port) as client, pytest.raises(ConnectionError):
            client("PING")
        relay.backend = backend.socket
        with Waiter(relay.port) as client:
            assert client("PING") == b"PONG"
