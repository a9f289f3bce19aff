"""Plain RESP connections: the test decides what to send, and when and how to disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import hiredis

from tests.support.programs import TIMEOUT, Client, Server, wait_for

# A command's name and arguments.
Words = tuple[str | bytes | int | float, ...]


def packed(*words: str | bytes | int | float) -> bytes:
    """Return the request for a command."""
    return bytes(hiredis.pack_command(words))  # type: ignore[arg-type] # its stub wants a tuple of one


def close_with_reset(connected: socket.socket) -> None:
    """Close a connection with an RST."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connected.close()


def _read_available(connected: socket.socket, reader: hiredis.Reader) -> None:
    with contextlib.suppress(BlockingIOError, ConnectionError):
        while received := connected.recv(1 << 16):
            reader.feed(received)


def replies_in(reader: hiredis.Reader) -> list[Any]:
    """Return the complete replies that the reader has."""
    replies: list[Any] = []
    while (reply := reader.gets()) is not False:
        replies.append(reply)
    return replies


class Connection:
    """A connection that a `with` block closes."""

    def __init__(self, target: int | str | socket.socket) -> None:
        """Connect to a port, or to the path of a unix socket, or use a socket."""
        if isinstance(target, int):
            self.socket = socket.create_connection(("127.0.0.1", target), TIMEOUT)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        elif isinstance(target, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(target)
        else:
            self.socket = target
        self.socket.settimeout(TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close with an RST."""
        close_with_reset(self.socket)


class Waiter(Connection):
    """A connection to a server. It reads replies when asked to, and returns errors without raising them."""

    def __init__(self, port: int, *, resp3: bool = False) -> None:
        super().__init__(port)
        self._reader = hiredis.Reader()
        if resp3:
            self("HELLO", 3)

    def __call__(self, *words: str | bytes | int | float) -> Any:
        """Send a command, and return its reply."""
        self.send(*words)
        return self.reply()

    def send(self, *words: str | bytes | int | float) -> None:
        self.socket.sendall(packed(*words))

    def reply(self, timeout: float = TIMEOUT) -> Any:
        """Return the next reply. Raises TimeoutError, or ConnectionError if the server has closed."""
        self.socket.settimeout(timeout)
        while (reply := self._reader.gets()) is False:
            received = self.socket.recv(1 << 16)
            if not received:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(received)
        return reply

    def ends_without_reply(self) -> bool:
        """Wait until the server closes the connection, or replies. Return whether it closed first."""
        try:
            self.reply()
        except ConnectionError:
            return True
        return False

    def has_reply(self) -> bool:
        """Return whether unread bytes have arrived."""
        return self._reader.has_data() or bool(select.select([self.socket], [], [], 0)[0])

    def half_close(self) -> list[Any]:
        """Send no more (FIN), return all replies until the server closes, and close."""
        replies: list[Any] = []
        with contextlib.suppress(ConnectionError):
            with contextlib.suppress(OSError):  # if the server has closed first
                self.socket.shutdown(socket.SHUT_WR)
            while True:
                replies.append(self.reply())
        self.socket.close()
        return replies

    def replies_now(self) -> list[Any]:
        """Return the replies that have arrived, without waiting."""
        self.socket.settimeout(0)
        _read_available(self.socket, self._reader)
        return replies_in(self._reader)


@contextmanager
def waiters(server: Server, count: int) -> Iterator[list[Waiter]]:
    """Open `count` connections, which are closed at the end of the block."""
    with ExitStack() as stack:
        yield [stack.enter_context(Waiter(server.port)) for _ in range(count)]


def is_refused(reply: Any, code: str) -> bool:
    """Return whether the reply is an error with this code."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(f"{code} ")


def all_are_refused(waiting: list[Waiter], *codes: str) -> None:
    """Raise AssertionError unless each connection receives an error with one of these codes."""
    for waiter in waiting:
        reply = waiter.reply()
        assert any(is_refused(reply, code) for code in codes), reply


def create(client: Client, queue: str, *options: str | int) -> None:
    """Create a queue by PRESSURE.CREATE."""
    client.execute_command("PRESSURE.CREATE", queue, *options)


def about(client: Client, queue: str) -> dict[bytes, Any]:
    """Return the reply of PRESSURE.INFO."""
    values = client.execute_command("PRESSURE.INFO", queue)
    return dict(values) if isinstance(values, dict) else dict(zip(values[::2], values[1::2], strict=True))


def wait_for_waiting(client: Client, queue: str, *, consumers: int = 0, producers: int = 0) -> None:
    """Return when exactly so many clients wait on the queue."""

    def waiting() -> tuple[int, int]:
        found = about(client, queue)
        return found[b"waiting_consumers"], found[b"waiting_producers"]

    wait_for(
        lambda: waiting() == (consumers, producers),
        f"{consumers} consumers and {producers} producers to wait on {queue}",
    )


def blocked(client: Client) -> int:
    """Return the number of the server's waiting clients."""
    return int(client.info("clients")["blocked_clients"])


def wait_for_blocked(client: Client, count: int, timeout: float = TIMEOUT) -> None:
    """Return when exactly `count` clients of the server wait."""
    wait_for(lambda: blocked(client) == count, f"{count} clients to wait", timeout)


class AsyncWaiter(Connection):
    """A `Waiter` for asyncio, with `close_now`, which reads and closes without yielding to the loop."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        connected.setblocking(False)
        self._reader = hiredis.Reader()
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, port: int) -> AsyncWaiter:
        connected = socket.socket()
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", port))
        return cls(connected)

    async def __call__(self, *words: str | bytes | int | float) -> Any:
        """Send a command, and return its reply."""
        await self.send(packed(*words))
        return await self.reply()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def reply(self, timeout: float | None = TIMEOUT) -> Any:
        """Return the next reply. Raises TimeoutError, or ConnectionError if the server has closed."""
        async with asyncio.timeout(timeout):
            while (reply := self._reader.gets()) is False:
                received = await self._loop.sock_recv(self.socket, 1 << 16)
                if not received:
                    raise ConnectionResetError("the server closed the connection")
                self._reader.feed(received)
        return reply

    async def half_close(self) -> list[Any]:
        """Send no more (FIN), return all replies until the server closes, and close."""
        replies: list[Any] = []
        with contextlib.suppress(ConnectionError):
            with contextlib.suppress(OSError):  # if the server has closed first
                self.socket.shutdown(socket.SHUT_WR)
            while True:
                replies.append(await self.reply())
        self.close()
        return replies

    def close_now(self, *, reset: bool) -> list[Any]:
        """Close, with an RST if `reset`, and return the replies that had arrived."""
        _read_available(self.socket, self._reader)
        if reset:
            self.reset()
        else:
            self.close()
        # Parsed only now, because a reply that arrives between reading and closing is lost.
        return replies_in(self._reader)
