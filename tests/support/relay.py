"""A relay that passes connections on, and stalls, slows, cuts or refuses them when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial

_PIECE = 1 << 14

# Opens a connection to the target, or raises OSError.
Connect = Callable[[], Awaitable[socket.socket]]
PassOn = Callable[[bytes], Awaitable[None]]


class Link:
    """One connection through a relay: `near` leads to the client, `far` to the target."""

    def __init__(self, relay: Relay, near: socket.socket, far: socket.socket) -> None:
        self.near = near
        self.far = far
        # Bytes of replies until the link breaks; None for no limit.
        self.left: int | None = None
        self._relay = relay
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Pass bytes on until both sides have ended, or one has failed."""
        pumps = [asyncio.create_task(self.requests()), asyncio.create_task(self.replies())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def requests(self) -> None:
        """Pass requests on until the client sends no more."""
        await self._pump(self.near, self.request, is_reply=False)
        self.far.shutdown(socket.SHUT_WR)

    async def replies(self) -> None:
        """Pass replies on until the target sends no more."""
        await self._pump(self.far, self.reply, is_reply=True)
        self.near.shutdown(socket.SHUT_WR)

    async def _pump(self, source: socket.socket, pass_on: PassOn, *, is_reply: bool) -> None:
        while data := await self._loop.sock_recv(source, _PIECE):
            await self._relay.let_pass(data, is_reply=is_reply)
            await pass_on(data)
        await self._relay.let_pass(b"", is_reply=is_reply)

    async def request(self, data: bytes) -> None:
        """Pass bytes of requests on. Raise OSError to break the link."""
        await self.send(self.far, data)

    async def reply(self, data: bytes) -> None:
        """Pass bytes of replies on. Raise OSError to break the link."""
        if self.left is not None:
            data = data[: self.left]
            self.left -= len(data)
        await self.send(self.near, data)
        if self.left == 0:
            raise ConnectionAbortedError("cut in the middle")

    async def send(self, side: socket.socket, data: bytes) -> None:
        """Send all bytes to this side."""
        await self._loop.sock_sendall(side, data)


class Relay:
    """Listens in the running loop. Orders such as `stall` apply to open and new connections, until `heal`."""

    new_link: type[Link] = Link

    def __init__(self) -> None:
        # The first port on which it listens.
        self.port = 0
        # How often bytes were held.
        self.held = 0
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._links: dict[asyncio.Task[None], Link | None] = {}
        self._flows = asyncio.Event()
        self._flows.set()
        self._holds: Callable[[bytes, bool], bool] = _always
        self._refuses = False
        self._delay = self._rate = 0.0

    def listen(self, connect: Connect, listening: socket.socket | None = None) -> int:
        """Listen on that socket, or on a port of 127.0.0.1. Return the port, 0 for a unix socket."""
        listening = listening or socket.create_server(("127.0.0.1", 0), backlog=1024)
        listening.setblocking(False)
        self._listening.append(listening)
        self._accepting.append(asyncio.create_task(self._accept(listening, connect)))
        port = 0 if listening.family == socket.AF_UNIX else int(listening.getsockname()[1])
        self.port = self.port or port
        return port

    def cut(self, *, reset: bool) -> None:
        """Break every connection. With `reset`, send an RST, which destroys bytes in flight."""
        if reset:
            for link in self._open_links():
                _reset_on_close(link.near)
                _reset_on_close(link.far)
        for task in self._links:
            task.cancel()

    def cut_after(self, count: int) -> None:
        """Break each connection after so many more bytes of replies."""
        for link in self._open_links():
            link.left = count

    def stall(self) -> None:
        """Hold all bytes, and the ends of connections."""
        self._holds = _always
        self._flows.clear()

    def hold(self, replies: Callable[[bytes], bool]) -> None:
        """Hold the replies that `replies` selects, and all later bytes of their connection."""
        self._holds = lambda data, is_reply: is_reply and data != b"" and replies(data)
        self._flows.clear()

    def slow(self, delay: float, rate: float) -> None:
        """Delay each piece by `delay` seconds, and pass `rate` bytes a second in each direction."""
        self._delay, self._rate = delay, rate

    def refuse(self) -> None:
        """Break every connection with an RST, also new ones."""
        self._refuses = True
        self.cut(reset=True)

    def heal(self) -> None:
        """Pass on all bytes that were held, and all later ones."""
        self._flows.set()
        self._refuses = False
        self._delay = self._rate = 0.0
        for link in self._open_links():
            link.left = None

    async def close(self) -> None:
        """Break every connection, and listen no more."""
        for accepting in self._accepting:
            accepting.cancel()
        self.cut(reset=False)
        await asyncio.gather(*self._accepting, *self._links, return_exceptions=True)
        for listening in self._listening:
            listening.close()

    async def let_pass(self, data: bytes, *, is_reply: bool) -> None:
        """Return when these bytes may go on; b"" stands for the end of a connection."""
        if not self._flows.is_set() and self._holds(data, is_reply):
            self.held += 1
            await self._flows.wait()
        if self._delay:
            await asyncio.sleep(self._delay)
        if self._rate:
            await asyncio.sleep(len(data) / self._rate)

    def _open_links(self) -> list[Link]:
        return [link for link in self._links.values() if link is not None]

    async def _accept(self, listening: socket.socket, connect: Connect) -> None:
        while True:
            near, _ = await asyncio.get_running_loop().sock_accept(listening)
            near.setblocking(False)
            if self._refuses:
                _reset_on_close(near)
                near.close()
                continue
            task = asyncio.create_task(self._pass_on(near, connect))
            self._links[task] = None
            task.add_done_callback(self._links.pop)
            # A task that is cancelled before it begins closes nothing.
            task.add_done_callback(partial(_close, near))

    async def _pass_on(self, near: socket.socket, connect: Connect) -> None:
        with contextlib.suppress(OSError), near, await connect() as far:
            link = self.new_link(self, near, far)
            task = asyncio.current_task()
            assert task is not None
            self._links[task] = link
            await link.run()


def _always(_data: bytes, _is_reply: bool) -> bool:
    return True


def _reset_on_close(side: socket.socket) -> None:
    if side.fileno() >= 0:  # else its link has just ended by itself
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _close(side: socket.socket, _: asyncio.Task[None]) -> None:
    side.close()


async def connected(address: str | tuple[str, int]) -> socket.socket:
    """Open a connection to a unix socket, or to a host and port. Raise OSError if that fails."""
    is_unix = isinstance(address, str)
    connection = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
    connection.setblocking(False)
    try:
        if not is_unix:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection
