"""A TCP relay that makes trouble: it cuts, stalls, slows and refuses the connections that go through it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial

_PIECE = 1 << 16

# Opens a connection to where it leads. Raises OSError.
Connect = Callable[[], Awaitable[socket.socket]]


class _Pair:
    """A client's connection and the one that goes on from it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near = near
        self.far = far
        # Bytes of replies until it is cut; None where it is not to be.
        self.left: int | None = None


class Relay:
    """Listens on `port`, and where it is told. What it is told to do holds for old and new connections."""

    def __init__(self, connect: Connect) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._pairs: dict[asyncio.Task[None], _Pair | None] = {}
        self._flows = asyncio.Event()
        self._flows.set()
        self._refuses = False
        self._delay = 0.0
        self._rate = 0.0
        self.port = self.listen(connect)

    def listen(self, connect: Connect) -> int:
        """The port of what leads there."""
        listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listening.setblocking(False)
        self._listening.append(listening)
        self._accepting.append(asyncio.create_task(self._accept(listening, connect)))
        port: int = listening.getsockname()[1]
        return port

    def cut(self, *, rudely: bool) -> None:
        """Break every connection; `rudely` with an RST, and what was on its way is gone."""
        for task, pair in self._pairs.items():
            if rudely and pair is not None:
                for side in (pair.near, pair.far):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            task.cancel()

    def cut_after(self, count: int) -> None:
        """Break each connection when so many more bytes of replies have passed."""
        for pair in self._pairs.values():
            if pair is not None:
                pair.left = count

    def stall(self) -> None:
        """Hold every byte until `heal`; then it arrives, also of connections closed meanwhile."""
        self._flows.clear()

    def slow(self, delay: float, rate: float) -> None:
        """Let each piece take `delay` seconds, and pass `rate` bytes a second in each direction."""
        self._delay, self._rate = delay, rate

    def refuse(self) -> None:
        """Break every connection, and each new one at once."""
        self._refuses = True
        self.cut(rudely=True)

    def heal(self) -> None:
        """Pass everything on."""
        self._flows.set()
        self._refuses = False
        self._delay = self._rate = 0.0
        for pair in self._pairs.values():
            if pair is not None:
                pair.left = None

    async def close(self) -> None:
        """Break everything and listen no more."""
        for accepting in self._accepting:
            accepting.cancel()
        self.cut(rudely=False)
        await asyncio.gather(*self._accepting, *self._pairs, return_exceptions=True)
        for listening in self._listening:
            listening.close()

    async def _accept(self, listening: socket.socket, connect: Connect) -> None:
        while True:
            near, _ = await self._loop.sock_accept(listening)
            if self._refuses:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                near.close()
                continue
            task = asyncio.create_task(self._pass_on(near, connect))
            self._pairs[task] = None
            task.add_done_callback(self._pairs.pop)
            # A task that is cancelled before it begins closes nothing.
            task.add_done_callback(partial(_close, near))

    async def _pass_on(self, near: socket.socket, connect: Connect) -> None:
        with contextlib.suppress(OSError), near, await connect() as far:
            pair = _Pair(near, far)
            task = asyncio.current_task()
            assert task is not None
            self._pairs[task] = pair
            pumps = [
                asyncio.create_task(self._pump(pair, near, far)),
                asyncio.create_task(self._pump(pair, far, near)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket) -> None:
        while data := await self._loop.sock_recv(source, _PIECE):
            await self._flows.wait()
            if self._delay:
                await asyncio.sleep(self._delay + len(data) / self._rate)
            if source is pair.far and pair.left is not None:
                data = data[: pair.left]
                pair.left -= len(data)
            await self._loop.sock_sendall(sink, data)
            if pair.left == 0:
                raise ConnectionAbortedError("cut in the middle")
        await self._flows.wait()
        sink.shutdown(socket.SHUT_WR)


def _close(side: socket.socket, _: asyncio.Task[None]) -> None:
    side.close()
