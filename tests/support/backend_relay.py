"""Relays that run in a thread: for tests without asyncio, and for tests that block their own loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.support.blocking import running_loop
from tests.support.programs import TIMEOUT
from tests.support.relay import Connect, Link, Relay, connected

_BUFFER = 16384
# Bytes: half of a packet with several replies would have the first of them complete.
_LONGEST_CUT = 8


class ThreadRelay(Relay):
    """Listens in a thread of its own until `end`, on each of these sockets for one target."""

    def __init__(self, *listeners: tuple[socket.socket, Connect]) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._loop = self._stack.enter_context(running_loop())

        async def listen() -> None:
            for listening, connect in listeners:
                self.listen(connect, listening)

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(TIMEOUT)

    def end(self) -> None:
        """Break every connection, and end the thread."""
        with self._stack:
            asyncio.run_coroutine_threadsafe(self.close(), self._loop).result(TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()


class _BackendLink(Link):
    _relay: BackendRelay

    async def request(self, data: bytes) -> None:
        if self._relay.drops(data):
            raise ConnectionAbortedError("dropped")
        await super().request(data)

    async def reply(self, data: bytes) -> None:
        if self._relay.cuts(data):
            self._relay.made += 1
            await self.send(self.near, data[: min(len(data) // 2, _LONGEST_CUT)])
            raise ConnectionAbortedError("cut")
        await super().reply(data)


class BackendRelay(ThreadRelay):
    """Listens on `url` until `end`, and passes connections on to the unix socket `backend`.

    It delays each piece by `delay` seconds, and passes `rate` bytes a second in each direction (0: no limit).
    A reply that `cuts` selects is cut: half of it is passed on, at most eight bytes, and the connection
    breaks. A request that `drops` selects is not passed on, and the connection breaks.
    """

    new_link: type[Link] = _BackendLink

    def __init__(self, backend: Path, *, delay: float = 0.0, rate: float = 0.0) -> None:
        self.backend = backend
        # The number of cuts.
        self.made = 0
        self.cuts: Callable[[bytes], bool] = lambda _: False
        self.drops: Callable[[bytes], bool] = lambda _: False
        listening = socket.socket()
        if rate:
            # Small enough for a sender to notice the rate; loopback's segments are larger.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        super().__init__((listening, lambda: connected(str(self.backend))))
        self.slow(delay, rate)
        self.url = f"redis://127.0.0.1:{self.port}"

    def release(self) -> None:
        """Pass on all bytes that were held, and hold no more."""
        self._loop.call_soon_threadsafe(self._flows.set)
