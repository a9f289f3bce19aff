"""Connections to servers, for clients whose requests must leave at an exact moment.

The sockets are used directly, because a transport of asyncio may send and close later than it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import hiredis

from tests.support import waiters
from tests.support.replies import BeanstalkReader, MemcachedReader, Reader

# The names of the wire protocols. NATIVE is the proxy of native.py, BACKEND the backend itself.
RESP, MEMCACHED, BEANSTALK, NATIVE, BACKEND = "resp", "memcached", "beanstalk", "native", "backend"
_WITH_DATA = {"put", "set", "add"}


def packed(by: str, words: Sequence[str]) -> bytes:
    """Return the request for a command. The last word of a put in a text protocol is its data."""
    if by in (RESP, NATIVE, BACKEND):
        return waiters.packed(*words)
    if words[0] not in _WITH_DATA:
        return " ".join(words).encode() + b"\r\n"
    *line, data = words
    return f"{' '.join(line)} {len(data)}\r\n{data}\r\n".encode()


def _new_reader(by: str) -> Reader:
    if by == MEMCACHED:
        return MemcachedReader()
    return BeanstalkReader() if by == BEANSTALK else hiredis.Reader()


class Wire:
    """A connection that speaks the protocol `by`."""

    def __init__(self, by: str, connected: socket.socket) -> None:
        self.by = by
        self._socket = connected
        self._reader = _new_reader(by)
        self._loop = asyncio.get_running_loop()
        self._replies: asyncio.Queue[tuple[float, Any]] = asyncio.Queue()
        self._loop.add_reader(connected, self._read)

    @classmethod
    async def connect(cls, by: str, address: int | str) -> Wire:
        """Connect to a port of 127.0.0.1, or to a unix socket."""
        family = socket.AF_INET if isinstance(address, int) else socket.AF_UNIX
        connected = socket.socket(family)
        connected.setblocking(False)
        if isinstance(address, int):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        target = ("127.0.0.1", address) if isinstance(address, int) else address
        await asyncio.get_running_loop().sock_connect(connected, target)
        return cls(by, connected)

    def _read(self) -> None:
        try:
            received = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            received = b""
        now = perf_counter()
        if not received:
            self._loop.remove_reader(self._socket)
            self._replies.put_nowait((now, ConnectionResetError("the server closed the connection")))
            return
        self._reader.feed(received)
        while (reply := self._reader.gets()) is not False:
            self._replies.put_nowait((now, reply))

    def send(self, data: bytes) -> float:
        """Send at once, and return the time."""
        self._socket.sendall(data)
        return perf_counter()

    async def reply(self) -> tuple[float, Any]:
        """Return the next reply, and when it came."""
        return await self._replies.get()

    async def call(self, *words: str) -> Any:
        """Send a command, and return its reply, which may be an error."""
        self.send(packed(self.by, words))
        return (await self.reply())[1]

    def unread(self) -> list[tuple[float, Any]]:
        """Return the replies that have come, and when."""
        found = []
        while not self._replies.empty():
            found.append(self._replies.get_nowait())
        return found

    def deafen(self) -> None:
        """Read nothing from now on."""
        self._loop.remove_reader(self._socket)

    @property
    def is_idle(self) -> bool:
        """Whether there is no unread reply."""
        return self._replies.empty()

    def close(self) -> None:
        """Close the connection (FIN, or an RST if there are unread bytes)."""
        with contextlib.suppress(ValueError, OSError):
            self._loop.remove_reader(self._socket)
        self._socket.close()

    def reset(self) -> None:
        """Close the connection with an RST."""
        with contextlib.suppress(ValueError, OSError):
            self._loop.remove_reader(self._socket)
        waiters.close_with_reset(self._socket)
