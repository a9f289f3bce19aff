"""Cuts: a relay between a server and its backend that breaks connections where a test wants it.

It works in threads of its own, so that tests stay as they read. Connections pass until something is planned;
only one whose request calls the batch script on one of the queues named is cut.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hiredis

from tests.support.waiters import packed

_SCRIPT_CALL = b"EVALSHA"


@dataclass(frozen=True)
class Cut:
    """Where a call is cut.

    `asked`: after so many bytes of the request have passed; all of it where that is None. Then `answered`:
    after so many bytes of the reply; negative counts from its end. Both None is no cut at all.
    `is_late`: only the server's side ends; the request comes to the backend when the test says so.
    """

    asked: int | None = None
    answered: int | None = None
    is_late: bool = False


UNHEARD = Cut(asked=0)
NO_ANSWER = Cut(answered=0)
LATE = Cut(is_late=True)


class Cuts:
    """Listens at `path` for as many connections as come, and passes them on to the backend at `backend`."""

    def __init__(self, path: Path, backend: Path) -> None:
        self.url = f"unix://{path}"
        self.made = 0
        # The replies to the calls that were looked at.
        self.seen: list[bytes] = []
        # What is on its way to the backend, on a connection that the server has given up.
        self.late: list[tuple[socket.socket, bytes]] = []
        self._backend = str(backend)
        self._plan: deque[Cut] = deque()
        self._key = b""
        self._stays_shut = False
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._pairs: set[_Pair] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(100)
        threading.Thread(target=self._accept, daemon=True).start()

    def plan(self, *cuts: Cut, queue: str = "q", stays_shut: bool = False) -> None:
        """Treat the next calls on the queue so, one after the other.

        `stays_shut`: from the first cut on nothing passes, until `reopen`.
        """
        with self._lock:
            self._stays_shut = stays_shut
            self._key = f"__pressure__:{queue}".encode()
            self._plan = deque(cuts)

    @property
    def is_done(self) -> bool:
        """Whether nothing planned is left."""
        return not self._plan

    def deliver_late(self) -> int:
        """Let what is late come to the backend; how much of it did: it may have closed the connection."""
        delivered = 0
        for backend, request in self.late:
            with suppress(BrokenPipeError):
                backend.sendall(request)
                delivered += 1
        self.late.clear()
        return delivered

    def shut(self) -> None:
        """Break all connections, and let no new one through until `reopen`."""
        self._open.clear()
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.end()

    def reopen(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._listener.close()
        self.shut()

    def next_cut(self, command: list[bytes]) -> Cut | None:
        """What is planned for this command."""
        with self._lock:
            if self._plan and command[0] == _SCRIPT_CALL and self._key in command[3 : 3 + int(command[2])]:
                return self._plan.popleft()
        return None

    def has_cut(self) -> None:
        with self._lock:
            self.made += 1
            stays_shut = self._stays_shut
        if stays_shut:
            self.shut()

    @property
    def is_shut(self) -> bool:
        return not self._open.is_set()

    def ended(self, pair: _Pair) -> None:
        with self._lock:
            self._pairs.discard(pair)

    def _accept(self) -> None:
        while True:
            try:
                server, _ = self._listener.accept()
            except OSError:
                return
            if not self._open.is_set():
                server.close()
                continue
            try:
                backend = socket.socket(socket.AF_UNIX)
                backend.connect(self._backend)
            except OSError:
                server.close()
                continue
            pair = _Pair(self, server, backend)
            with self._lock:
                self._pairs.add(pair)
            pair.start()


class _Pair:
    """A connection of the server, and ours for it to the backend."""

    def __init__(self, cuts: Cuts, server: socket.socket, backend: socket.socket) -> None:
        self._cuts = cuts
        self._server = server
        self._backend = backend
        # For each request that has no answer yet, what is done to that.
        self._awaited: deque[Cut | None] = deque()
        self._is_late = False

    def start(self) -> None:
        for work in (self._requests, self._replies):
            threading.Thread(target=self._work, args=(work,), daemon=True).start()

    def end(self) -> None:
        """Break both connections off. What the backend has read it does."""
        for side in (self._server,) if self._is_late else (self._server, self._backend):
            with suppress(OSError):  # the other thread was faster
                side.shutdown(socket.SHUT_RDWR)

    def _work(self, work: Any) -> None:
        with suppress(OSError):  # one of the two has gone
            work()
        self.end()
        self._cuts.ended(self)

    def _requests(self) -> None:
        reader = hiredis.Reader()
        while data := self._server.recv(1 << 16):
            reader.feed(data)
            while (command := reader.gets()) is not False:
                cut = self._cuts.next_cut(command)
                request = packed(*command)
                if cut is not None and cut.is_late:
                    self._cuts.has_cut()
                    self._is_late = True
                    self._cuts.late.append((self._backend, request))
                    return
                if cut is not None and cut.asked is not None:
                    self._cuts.has_cut()
                    self._backend.sendall(request[: cut.asked])
                    return
                self._awaited.append(cut)
                self._backend.sendall(request)

    def _replies(self) -> None:
        reader = _Replies()
        while (data := self._backend.recv(1 << 16)) and not self._is_late:
            for reply in reader.feed(data):
                if not self._awaited and not reply.startswith(b">"):
                    return  # to a request that was cut behind its end
                cut = self._awaited.popleft() if not reply.startswith(b">") else None
                if cut is None:
                    self._server.sendall(reply)
                    continue
                self._cuts.seen.append(reply)
                if cut.answered is None:
                    self._server.sendall(reply)
                else:
                    self._cuts.has_cut()
                    self._server.sendall(reply[: cut.answered])
                    return


class _Replies:
    """Splits what comes into whole replies, as bytes."""

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
    """Where the value ends that begins there; None where it has not come yet."""
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
