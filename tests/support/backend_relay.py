"""Relays that run in a thread: for tests without asyncio, and for tests that block their own loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import hiredis

from tests.support.blocking import running_loop
from tests.support.programs import TIMEOUT
from tests.support.relay import Connect, Link, Relay, connected
from tests.support.waiters import packed

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


@dataclass(frozen=True)
class Cut:
    """The place in a call at which its connection breaks.

    It breaks after `request` bytes of the request, or after `reply` bytes of the reply. Negative numbers
    count from the end. If both are None, nothing breaks. If `is_late`, only the server's side breaks, and
    `deliver_late` sends the request to the backend.
    """

    request: int | None = None
    reply: int | None = None
    is_late: bool = False


NO_REQUEST = Cut(request=0)
NO_REPLY = Cut(reply=0)
LATE = Cut(is_late=True)


class _CallLink(Link):
    _relay: CallRelay

    def __init__(self, relay: Relay, near: socket.socket, far: socket.socket) -> None:
        super().__init__(relay, near, far)
        self._commands, self._replies = hiredis.Reader(), hiredis.Reader()
        self._reply = b""
        # The cuts of the requests in flight.
        self._in_flight: deque[Cut | None] = deque()

    async def request(self, data: bytes) -> None:
        self._commands.feed(data)
        while (command := self._commands.gets()) is not False:
            cut = self._relay.next_cut(command)
            request = packed(*command)
            if cut is not None and (cut.is_late or cut.request is not None):
                self._relay.count_cut()
                if cut.is_late:
                    self._relay.late.append((self.far.dup(), request))
                else:
                    await self.send(self.far, request[: cut.request])
                raise ConnectionAbortedError("cut in a request")
            self._in_flight.append(cut)
            await self.send(self.far, request)

    async def reply(self, data: bytes) -> None:
        # Each reply ends with a line.
        for line in data.splitlines(keepends=True):
            self._reply += line
            self._replies.feed(line)
            if self._replies.gets() is not False:
                reply, self._reply = self._reply, b""
                await self._pass_on(reply)

    async def _pass_on(self, reply: bytes) -> None:
        is_push = reply.startswith(b">")
        if not is_push and not self._in_flight:
            raise ConnectionAbortedError("the request was cut after its end")
        cut = None if is_push else self._in_flight.popleft()
        if cut is not None:
            self._relay.seen.append(reply)
            if cut.reply is not None:
                self._relay.count_cut()
                await self.send(self.near, reply[: cut.reply])
                raise ConnectionAbortedError("cut in a reply")
        await self.send(self.near, reply)


class CallRelay(BackendRelay):
    """Breaks connections in the middle of calls of the library on one queue, as planned."""

    new_link = _CallLink

    def __init__(self, backend: Path, *, prefix: str = "__pressure__") -> None:
        """Listen as BackendRelay does. Servers that connect use this `prefix`."""
        self._prefix = prefix
        # The replies to the calls that had a plan.
        self.seen: list[bytes] = []
        # Requests that have not reached the backend, with the connections that the server has given up.
        self.late: list[tuple[socket.socket, bytes]] = []
        self._plan: deque[Cut] = deque()
        self._key = b""
        self._before: Callable[[], object] = lambda: None
        self._stays_shut = False
        self._lock = threading.Lock()
        super().__init__(backend)

    def plan(
        self,
        *cuts: Cut,
        queue: str = "q",
        stays_shut: bool = False,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Plan the next calls on the queue, one cut for each.

        `stays_shut`: refuse all connections from the first cut until `reopen`. `before`: is done when the
        first of these calls has come, before the backend gets it.
        """
        with self._lock:
            self._stays_shut = stays_shut
            self._key = f"{self._prefix}:{queue}".encode()
            self._plan = deque(cuts)
            self._before = before

    @property
    def is_done(self) -> bool:
        """Whether all planned cuts have been used."""
        return not self._plan

    @property
    def is_shut(self) -> bool:
        """Whether connections are refused."""
        return self._refuses

    def reopen(self) -> None:
        """Accept connections again."""
        self._refuses = False

    def deliver_late(self) -> int:
        """Send the late requests to the backend. Return the number of those whose connection was open."""
        delivered = 0
        for backend, request in self.late:
            backend.settimeout(TIMEOUT)
            with backend, suppress(ConnectionError):
                backend.sendall(request)
                delivered += 1
        self.late.clear()
        return delivered

    def next_cut(self, command: list[bytes]) -> Cut | None:
        """Return the cut that is planned for this command, None if there is none."""
        with self._lock:
            if self._plan and command[0] == b"FCALL" and self._key in command[3 : 3 + int(command[2])]:
                before, self._before = self._before, lambda: None
                before()
                return self._plan.popleft()
        return None

    def count_cut(self) -> None:
        """Count a cut, and refuse further connections if that is planned."""
        self.made += 1
        if self._stays_shut:
            self._refuses = True
            self.cut(reset=False)
