"""Clients of each kind: they send what a program says, and collect what comes, in the model's terms."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Protocol

import hiredis
import redis

from pressure_server import client as library
from pressure_server.errors import PressureError
from tests.chaos.memcached import Item as MemcachedItem
from tests.chaos.memcached import MemcachedError, MemcachedReader
from tests.differential.model import OK, Error, Item, Words
from tests.support import native
from tests.support.programs import TIMEOUT, Server, Valkey
from tests.support.waiters import packed

# Seconds for which a memcached client waits that is to wait for ever.
_FOR_EVER = 3600
_AGAIN = 0.005
# Seconds for which a native client asks again for a role.
_ROLE_TIMEOUT = 0.5


class Wire(Protocol):
    """A client. `replies` are what has come and was not looked at yet; `on_reply` is called for each."""

    replies: deque[Any]
    on_reply: Callable[[], None]

    async def connect(self) -> None:
        """Connect."""

    async def send(self, commands: tuple[Words, ...]) -> None:
        """Send commands in one write."""

    async def close(self) -> None:
        """Close the connection."""


class _Reader(Protocol):
    def feed(self, data: bytes) -> object:
        """Take what has come."""

    def gets(self) -> Any:
        """Return the next reply; False if there is none yet."""


class _Stream(ABC):
    """A connection to a server."""

    def __init__(self, port: int) -> None:
        self.replies: deque[Any] = deque()
        self.on_reply: Callable[[], None] = lambda: None
        self._port = port
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._task = asyncio.create_task(self._read(reader, self._new_reader()))

    async def send(self, commands: tuple[Words, ...]) -> None:
        assert self._writer is not None
        self._writer.write(b"".join(map(self._packed, commands)))

    async def close(self) -> None:
        if self._task is not None and self._writer is not None:
            self._task.cancel()
            self._writer.transport.abort()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self, stream: asyncio.StreamReader, reader: _Reader) -> None:
        while data := await stream.read(1 << 16):
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                self.replies.append(self._plain(reply))
            self.on_reply()
        self.replies.append(Error("(the server has closed the connection)"))
        self.on_reply()

    @abstractmethod
    def _new_reader(self) -> _Reader:
        """What reads its replies."""

    @abstractmethod
    def _packed(self, words: Words) -> bytes:
        """A command, as it is sent."""

    @abstractmethod
    def _plain(self, reply: Any) -> Any:
        """A reply, as the model has it."""


class RespWire(_Stream):
    """A Redis client."""

    def __init__(self, port: int, protocol: int) -> None:
        super().__init__(port)
        self._protocol = protocol

    async def connect(self) -> None:
        await super().connect()
        if self._protocol == 3:
            await self.send((("HELLO", 3),))
            async with asyncio.timeout(TIMEOUT):
                while not self.replies:  # noqa: ASYNC110 -- once for each client
                    await asyncio.sleep(_AGAIN)
            self.replies.clear()

    def _new_reader(self) -> _Reader:
        return hiredis.Reader()

    def _packed(self, words: Words) -> bytes:
        name, _, option = words[0].partition(" ")
        if name in ("PUT", "GET"):
            if option == "TIMEOUT":
                return packed(f"PRESSURE.{name}", *words[1:-1], option, words[-1])
            return packed(f"PRESSURE.{name}", *words[1:], *option.split())
        return packed(*words)

    def _plain(self, reply: Any) -> Any:
        if isinstance(reply, list):
            return [self._plain(one) for one in reply]
        return Error(str(reply).split(" ")[0]) if isinstance(reply, Exception) else reply


class MemcachedWire(_Stream):
    """A memcached client."""

    def _new_reader(self) -> _Reader:
        return MemcachedReader()

    def _packed(self, words: Words) -> bytes:
        name, _, option = words[0].partition(" ")
        if name in ("set", "add"):
            _, queue, flags, data = words
            return b"%b %b %d 0 %d\r\n%b\r\n" % (name.encode(), queue.encode(), flags, len(data), data)
        if option == "t":
            return f"get {words[1]}/t={int(1000 * (words[2] or _FOR_EVER))}\r\n".encode()
        if option == "peek":
            return f"get {words[1]}/peek\r\n".encode()
        return b" ".join(w if isinstance(w, bytes) else str(w).encode() for w in words) + b"\r\n"

    def _plain(self, reply: Any) -> Any:
        if isinstance(reply, list):
            return [Item(one.data, one.flags) for one in reply if isinstance(one, MemcachedItem)]
        if isinstance(reply, MemcachedError):
            return Error(str(reply).removeprefix("SERVER_ERROR ").split(" ")[0])
        return reply


class NativeWire:
    """A native client: the library of this project, or the specification's commands one after the other."""

    def __init__(self, backend: Valkey, *, is_library: bool) -> None:
        self.replies: deque[Any] = deque()
        self.on_reply: Callable[[], None] = lambda: None
        self._backend = backend
        self._is_library = is_library
        self._client: redis.Redis | None = None

    async def connect(self) -> None:
        self._client = self._backend.client()

    async def send(self, commands: tuple[Words, ...]) -> None:
        for words in commands:
            self.replies.append(await asyncio.to_thread(self._do_again, words))
        self.on_reply()

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _do_again(self, words: Words) -> Any:
        """A server may hold a role for a moment."""
        end = monotonic() + _ROLE_TIMEOUT
        while (reply := self._do(words)) == Error("INUSE") and monotonic() < end:
            sleep(_AGAIN)
        return reply

    def _do(self, words: Words) -> Any:
        assert self._client is not None
        what = words[0].removeprefix("native ")
        try:
            if self._is_library:
                with library.Queue(words[1], self._backend.url) as queue:
                    result = getattr(queue, _IN_LIBRARY.get(what, what))(*words[2:])
            else:
                result = _Plain(self._client, words[1], f"native-{id(self)}").do(what, words[2:])
        except PressureError as error:
            return None if error.code == "EMPTY" else Error(error.code)
        except native.NativeError as error:
            return Error(_CODES[type(error)])
        return OK if result is None and what != "get" else result


_IN_LIBRARY = {"put": "put_nowait", "get": "get_nowait"}
_CODES: dict[type[native.NativeError], str] = {
    native.QueueDoesNotExistError: "NOQUEUE",
    native.QueueAlreadyExistsError: "EXISTS",
    native.QueueClosedError: "CLOSED",
    native.QueueInUseError: "INUSE",
    native.QueueFullError: "FULL",
}


class _Plain:
    def __init__(self, client: redis.Redis, queue: str, identity: str) -> None:
        self._queue = native.NativeClient(client, queue, identity)
        self._client = client
        self._key = f"__pressure__:{queue}"

    def do(self, what: str, arguments: Words) -> Any:
        if what == "length":
            if not self._client.exists(f"{self._key}:bound"):
                raise native.QueueDoesNotExistError
            return self._client.llen(self._key)
        method = {"put": "put_non_blocking", "get": "get_non_blocking"}.get(what, what)
        return getattr(self._queue, method)(*arguments)


def wire(kind: str, server: Server, backend: Valkey) -> Wire:
    """Return a client of that kind, which is not connected yet."""
    if kind in ("resp2", "resp3"):
        return RespWire(server.port, int(kind[-1]))
    if kind == "memcached":
        return MemcachedWire(server.port_of("memcached"))
    return NativeWire(backend, is_library=kind == "library")
