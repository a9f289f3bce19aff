"""A relay between a server and its backend that runs in a thread, for tests without asyncio."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.programs import join
from tests.support.relay import Link, Relay, connected

_BUFFER = 16384
# Bytes: half of a packet with several replies would have the first of them complete.
_LONGEST_CUT = 8


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


class BackendRelay(Relay):
    """Listens on `url` until `end`, and passes connections on to the unix socket `backend`.

    It delays each piece by `delay` seconds, and passes `rate` bytes a second in each direction (0: no limit).
    A reply that `cuts` selects is cut: half of it is passed on, at most eight bytes, and the connection
    breaks. A request that `drops` selects is not passed on, and the connection breaks.
    """

    new_link: type[Link] = _BackendLink

    def __init__(
        self, backend: Path, *, delay: float = 0.0, rate: float = 0.0, path: Path | None = None
    ) -> None:
        """Listen on the unix socket `path`, or on a port of 127.0.0.1."""
        super().__init__()
        self.backend = backend
        # The number of cuts.
        self.made = 0
        self.cuts: Callable[[bytes], bool] = _never
        self.drops: Callable[[bytes], bool] = _never
        self.slow(delay, rate)
        listening = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        if rate:
            # Small enough for a sender to notice the rate; loopback's segments are larger.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        listening.bind(str(path) if path else ("127.0.0.1", 0))
        listening.listen(100)
        self.port = 0 if path else int(listening.getsockname()[1])
        self.url = f"unix://{path}" if path else f"redis://127.0.0.1:{self.port}"
        self._is_over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(listening,), daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Pass on all bytes that were held, and hold no more."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def _run(self, listening: socket.socket) -> None:
        async def run() -> None:
            self.listen(lambda: connected(str(self.backend)), listening)
            await self._is_over.wait()
            await super(BackendRelay, self).close()

        self._loop.run_until_complete(run())
        self._loop.close()

    def end(self) -> None:
        """Break every connection, and end the thread."""
        self._loop.call_soon_threadsafe(self._is_over.set)
        join(self._thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.end()


def _never(_data: bytes) -> bool:
    return False
