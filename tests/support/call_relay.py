"""A relay between a server and its backend that breaks connections in the middle of chosen calls."""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import hiredis

from tests.support.backend_relay import BackendRelay
from tests.support.programs import TIMEOUT
from tests.support.relay import Link, Relay
from tests.support.waiters import packed

_SCRIPT_CALL = b"EVALSHA"


@dataclass(frozen=True)
class Cut:
    """The place in a call at which its connection breaks.

    `asked`: after so many bytes of the request; None for all of it. Then `answered`: after so many bytes of
    the reply; a negative number counts from its end. If both are None, nothing breaks. `is_late`: only the
    server's side breaks, and the request comes to the backend at `deliver_late`.
    """

    asked: int | None = None
    answered: int | None = None
    is_late: bool = False


UNHEARD = Cut(asked=0)
NO_ANSWER = Cut(answered=0)
LATE = Cut(is_late=True)


class _CallLink(Link):
    _relay: CallRelay

    def __init__(self, relay: Relay, near: socket.socket, far: socket.socket) -> None:
        super().__init__(relay, near, far)
        self._commands = hiredis.Reader()
        self._replies = _Replies()
        # The cut of each request without a reply.
        self._awaited: deque[Cut | None] = deque()

    async def request(self, data: bytes) -> None:
        self._commands.feed(data)
        while (command := self._commands.gets()) is not False:
            cut = self._relay.next_cut(command)
            request = packed(*command)
            if cut is not None and (cut.is_late or cut.asked is not None):
                self._relay.count_cut()
                if cut.is_late:
                    self._relay.late.append((self.far.dup(), request))
                else:
                    await self.send(self.far, request[: cut.asked])
                raise ConnectionAbortedError("cut in a request")
            self._awaited.append(cut)
            await self.send(self.far, request)

    async def reply(self, data: bytes) -> None:
        for reply in self._replies.feed(data):
            is_push = reply.startswith(b">")
            if not is_push and not self._awaited:
                raise ConnectionAbortedError("the request was cut after its end")
            cut = None if is_push else self._awaited.popleft()
            if cut is not None:
                self._relay.seen.append(reply)
                if cut.answered is not None:
                    self._relay.count_cut()
                    await self.send(self.near, reply[: cut.answered])
                    raise ConnectionAbortedError("cut in a reply")
            await self.send(self.near, reply)


class CallRelay(BackendRelay):
    """Breaks only connections that call the batch script on the planned queue, as planned."""

    new_link = _CallLink

    def __init__(self, backend: Path, path: Path) -> None:
        # The number of cuts.
        self.made = 0
        # The replies to the calls that had a plan.
        self.seen: list[bytes] = []
        # Requests on their way to the backend, on connections that the server has given up.
        self.late: list[tuple[socket.socket, bytes]] = []
        self._plan: deque[Cut] = deque()
        self._key = b""
        self._stays_shut = False
        self._lock = threading.Lock()
        super().__init__(backend, path=path)

    def plan(self, *cuts: Cut, queue: str = "q", stays_shut: bool = False) -> None:
        """Plan the next calls on the queue, one cut for each.

        `stays_shut`: refuse all connections from the first cut until `reopen`.
        """
        with self._lock:
            self._stays_shut = stays_shut
            self._key = f"__pressure__:{queue}".encode()
            self._plan = deque(cuts)

    @property
    def is_done(self) -> bool:
        """Whether all planned cuts have been used."""
        return not self._plan

    @property
    def is_shut(self) -> bool:
        """Whether connections are refused."""
        return self._refuses

    def reopen(self) -> None:
        """Refuse no more connections."""
        self._refuses = False

    def deliver_late(self) -> int:
        """Send the late requests to the backend. Return the number of those whose connection is open."""
        delivered = 0
        for backend, request in self.late:
            backend.settimeout(TIMEOUT)
            with backend, suppress(ConnectionError):
                backend.sendall(request)
                delivered += 1
        self.late.clear()
        return delivered

    def next_cut(self, command: list[bytes]) -> Cut | None:
        """Return the cut that is planned for this command."""
        with self._lock:
            if self._plan and command[0] == _SCRIPT_CALL and self._key in command[3 : 3 + int(command[2])]:
                return self._plan.popleft()
        return None

    def count_cut(self) -> None:
        """Count a cut, and refuse connections if that is planned."""
        self.made += 1
        if self._stays_shut:
            self._refuses = True
            self.cut(rudely=False)


class _Replies:
    """Splits bytes into whole replies."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[bytes]:
        self._data += data
        replies = []
        while (end := _end_of(self._data, 0)) is not None:
            replies.append(self._data[:end])
            self._data = self._data[end:]
        return replies


def _end_of(data: bytes, start: int) -> int | None:
    """Return the end of the value that begins there, None if it has not come yet."""
    line = data.find(b"\r\n", start)
    if line < 0:
        return None
    end = line + 2
    kind = data[start : start + 1]
    if kind in b"+-:_,#(":
        return end
    count = int(data[start + 1 : line])
    if kind in b"$=!":
        end += count + 2 if count >= 0 else 0
        return end if end <= len(data) else None
    for _ in range(2 * count if kind == b"%" else max(count, 0)):
        inner = _end_of(data, end)
        if inner is None:
            return None
        end = inner
    return end
