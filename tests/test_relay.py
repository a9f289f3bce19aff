"""The relay of tests/support: it passes everything on, but for what it is told to do."""

from __future__ import annotations

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

Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def through_a_relay(show: Callable[[Relay, Open], Awaitable[None]]) -> None:
    """Show something of a relay to a server that repeats what it hears."""

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(repeat, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        relay = Relay()
        port = relay.listen(lambda: connected(address))
        async with asyncio.timeout(TIMEOUT):
            await show(relay, lambda: asyncio.open_connection("127.0.0.1", port))
        await relay.close()
        server.close()

    asyncio.run(run())


def test_a_relay_that_stalls_holds_everything_until_it_is_healed() -> None:
    async def show(relay: Relay, connect: Open) -> None:
        reader, writer = await connect()
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        relay.stall()
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        relay.heal()
        assert await reader.readexactly(3) == b"two"
        writer.close()

    through_a_relay(show)


def test_a_relay_cuts_in_the_middle_of_a_reply() -> None:
    async def show(relay: Relay, connect: Open) -> None:
        reader, writer = await connect()
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        relay.cut_after(4)
        writer.write(b"second")
        assert await reader.read() == b"seco"
        writer.close()

    through_a_relay(show)


@pytest.mark.parametrize("rudely", [False, True])
def test_a_relay_cuts_and_refuses(rudely: bool) -> None:
    async def show(relay: Relay, connect: Open) -> None:
        reader, writer = await connect()
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        relay.cut(rudely=rudely)
        if rudely:
            with pytest.raises(ConnectionResetError):
                await reader.read()
        else:
            assert await reader.read() == b""
        writer.close()
        relay.refuse()
        reader, writer = await connect()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        relay.heal()
        reader, writer = await connect()
        writer.write(b"two")
        assert await reader.readexactly(3) == b"two"
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
