"""A client with one connection to a proxy, directly or through a relay. It reconnects after a break."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import hiredis

from tests.chaos.journal import Journal, Pause
from tests.chaos.stand import Proxy
from tests.support.replies import Reader
from tests.support.waiters import Words, packed

# Seconds between attempts to connect, and of rest after an error or a break.
_RECONNECT_INTERVAL = 0.02
_ERROR_PAUSE = 0.05
# Seconds after which a client without a reply is stuck.
_STUCK = 120.0
_READ_SIZE = 1 << 16


class Caller:
    """A Redis client. Faults break its connection only if `relayed`. `name` is its name in the ledger."""

    def __init__(self, name: str, proxy: Proxy, journal: Journal, *, relayed: bool) -> None:
        self.name = name
        self.proxy = proxy.name
        self.target = proxy
        # How many connections it has had.
        self.connections = 0
        self._relayed = relayed
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._reader = self._new_reader()

    def _new_reader(self) -> Reader:
        return hiredis.Reader()

    def _packed(self, words: Words) -> bytes:
        return packed(*words)

    def _port(self, proxy: Proxy, *, relayed: bool) -> int:
        return proxy.client_relay.port if relayed else proxy.port

    async def ask(self, *commands: Words, waits: float = 0.0) -> list[Any]:
        """Send commands in one write and return their replies, errors as exceptions.

        The commands may block for `waits` seconds. If the connection breaks, return only the replies that had
        arrived, even if sending failed.
        """
        began = time.monotonic()
        connection = await self._connected()
        replies: list[Any] = []
        try:
            async with asyncio.timeout(_STUCK):
                with contextlib.suppress(ConnectionError):
                    await self._loop.sock_sendall(connection, b"".join(map(self._packed, commands)))
                while len(replies) < len(commands):
                    reply = self._reader.gets()
                    if reply is not False:
                        replies.append(reply)
                        continue
                    data = await self._loop.sock_recv(connection, _READ_SIZE)
                    if not data:
                        break
                    self._reader.feed(data)
        except TimeoutError:
            self._journal.complain(f"{self.name} has waited {_STUCK:g} seconds for {commands[0][0]!s}")
        except OSError:
            pass  # broken: handled like the end of the connection
        if len(replies) < len(commands):
            self.close()
        now = time.monotonic()
        self._journal.note_pause(Pause(now - began - waits, now, self.name, str(commands[0][0])))
        errors = list(_errors_in(replies))
        for error in errors:
            self._journal.note_error(error)
        if errors or len(replies) < len(commands):
            await asyncio.sleep(_ERROR_PAUSE)
        return replies

    async def send(self, *commands: Words) -> None:
        """Send commands in one write and wait for no reply. Without commands only connect."""
        connection = await self._connected()
        with contextlib.suppress(OSError):
            await self._loop.sock_sendall(connection, b"".join(map(self._packed, commands)))

    def hang_up(self, *, reset: bool) -> list[Any]:
        """Close the connection, by RST or FIN. Return the replies that had arrived before."""
        connection = self._socket
        if connection is None:
            return []
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            while data := connection.recv(_READ_SIZE):
                self._reader.feed(data)
        return self._close_and_parse()

    async def half_close(self) -> list[Any]:
        """Close the sending side by FIN. Return all replies that arrive until the server closes.

        For the server this looks like a client that closes both sides, but all that the server sends is read.
        """
        connection = await self._connected()
        try:
            async with asyncio.timeout(_STUCK):
                connection.shutdown(socket.SHUT_WR)
                while data := await self._loop.sock_recv(connection, _READ_SIZE):
                    self._reader.feed(data)
        except TimeoutError:
            self._journal.complain(f"{self.name} closed its side {_STUCK:g} seconds ago, the server did not")
        except OSError:
            pass  # the server has closed
        return self._close_and_parse()

    def _close_and_parse(self) -> list[Any]:
        """Close the connection. Return the complete replies received and not returned yet."""
        self.close()
        replies: list[Any] = []
        while (reply := self._reader.gets()) is not False:
            replies.append(reply)
        return replies

    async def _connected(self) -> socket.socket:
        while self._socket is None:
            connection = socket.socket()
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            port = self._port(self.target, relayed=self._relayed)
            try:
                await self._loop.sock_connect(connection, ("127.0.0.1", port))
            except OSError:
                connection.close()
                await asyncio.sleep(_RECONNECT_INTERVAL)
            else:
                self._socket = connection
                self.connections += 1
                self._reader = self._new_reader()
        return self._socket

    def close(self) -> None:
        """Close the connection. The next command opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _errors_in(replies: list[Any]) -> Iterator[Exception]:
    for reply in replies:
        if isinstance(reply, Exception):
            yield reply
        elif isinstance(reply, list):
            yield from _errors_in(reply)
