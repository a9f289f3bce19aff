"""Clients of each kind. They send a program's commands and collect the replies in the model's form."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import hiredis

from pressure_server import client as library
from pressure_server.errors import PressureError
from tests.simulate.world import OK, Error, Item, Words
from tests.support import native, replies
from tests.support.programs import TIMEOUT, Server, Valkey
from tests.support.replies import BeanstalkReader, MemcachedError, MemcachedReader, Reader
from tests.support.waiters import packed

# Seconds. memcached clients need a timeout, so this one stands for none.
_NO_TIMEOUT = 3600
_POLL_INTERVAL = 0.005
# Seconds for which a native client retries while its role is in use.
_ROLE_TIMEOUT = 0.5


class RespWire:
    """A Redis client. It calls `on_reply` when `replies` has new ones."""

    def __init__(self, port: int, protocol: int = 2) -> None:
        self.replies: deque[Any] = deque()
        self.on_reply: Callable[[], None] = lambda: None
        self._port = port
        self._protocol = protocol
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._task = asyncio.create_task(self._read(reader, self._new_reader()))
        if self._protocol == 3:
            await self.send((("HELLO", 3),))
            async with asyncio.timeout(TIMEOUT):
                while not self.replies:  # noqa: ASYNC110 -- only once for each client
                    await asyncio.sleep(_POLL_INTERVAL)
            self.replies.clear()

    async def send(self, commands: tuple[Words, ...]) -> None:
        assert self._writer is not None
        self._writer.write(b"".join(map(self._packed, commands)))

    async def close(self) -> None:
        if self._task is not None and self._writer is not None:
            self._task.cancel()
            self._writer.transport.abort()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self, stream: asyncio.StreamReader, reader: Reader) -> None:
        while data := await stream.read(1 << 16):
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                self.replies.append(self._plain(reply))
            self.on_reply()
        self.replies.append(Error("(the server closed the connection)"))
        self.on_reply()

    def _new_reader(self) -> Reader:
        return hiredis.Reader()

    def _packed(self, words: Words) -> bytes:
        make = _RESP_WORDS.get(words[0])
        words = make(*words[1:]) if make else words
        return packed(*(int(word) if isinstance(word, int) else word for word in words))

    def _plain(self, reply: Any) -> Any:
        if isinstance(reply, list):
            return [self._plain(one) for one in reply]
        return Error(str(reply).split(" ")[0]) if isinstance(reply, Exception) else reply


def _with_option(command: str, option: str) -> Callable[..., Words]:
    return lambda *words: (command, *words, *option.split())


# Commands that RESP has by other words.
_RESP_WORDS: dict[str, Callable[..., Words]] = {
    "PUT JOB": _with_option("PRESSURE.PUT", ""),
    "PUT TIMEOUT": lambda *words: ("PRESSURE.PUT", *words[:-1], "TIMEOUT", words[-1]),
    "GET TIMEOUT": lambda *words: ("PRESSURE.GET", *words[:-1], "TIMEOUT", words[-1]),
    "GET": _with_option("PRESSURE.GET", ""),
    "GET NOWAIT": _with_option("PRESSURE.GET", "NOWAIT"),
    **{
        f"PUT {option}".strip(): _with_option("PRESSURE.PUT", option)
        for option in ("", "NX", "NOWAIT", "OVERFILL", "OFFSET")
    },
    "PUT ONCE": lambda *words: ("PRESSURE.PUT", *words[:2], "OFFSET", "TXN", words[2]),
    "ADD ONCE": lambda name, _, *messages: ("SADD", name, *messages),
    "RESERVE BEST": lambda _, *words: ("PRESSURE.RESERVE", *words),
    "GROUP CREATE": lambda *words: ("PRESSURE.GROUP", "CREATE", *words[:2], "FROM", words[2]),
    "GROUP SEEK": lambda *words: ("PRESSURE.GROUP", "SEEK", *words[:2], "FROM", words[2]),
    "GROUP DELETE": lambda *words: ("PRESSURE.GROUP", "DELETE", *words),
    "READ": lambda name, *words: ("PRESSURE.READ", name, "GROUP", *words[:2], "COUNT", words[2]),
    "READ TIMEOUT": lambda name, *words: (
        "PRESSURE.READ",
        name,
        "GROUP",
        *words[:2],
        "COUNT",
        words[2],
        "TIMEOUT",
        words[3],
    ),
}


class MemcachedWire(RespWire):
    """A memcached client."""

    def _new_reader(self) -> Reader:
        return MemcachedReader()

    def _packed(self, words: Words) -> bytes:
        name, _, option = words[0].partition(" ")
        if name in ("set", "add"):
            _, queue, flags, data = words
            head = f"{name} {queue} {flags} {-1 if option else 0} {len(data)}\r\n"
            return b"%b%b\r\n" % (head.encode(), data)
        if option == "t":
            return f"get {words[1]}/t={int(1000 * (words[2] or _NO_TIMEOUT))}\r\n".encode()
        if option:
            return f"get {words[1]}/{option}\r\n".encode()
        return b" ".join(w if isinstance(w, bytes) else str(w).encode() for w in words) + b"\r\n"

    def _plain(self, reply: Any) -> Any:
        if isinstance(reply, list):
            return [Item(one.data, one.flags) for one in reply if isinstance(one, replies.Item)]
        if isinstance(reply, MemcachedError):
            return Error(str(reply).removeprefix("SERVER_ERROR ").split(" ")[0])
        return reply


class BeanstalkWire(RespWire):
    """A beanstalk client. A job in a reply is a word, the id and the message."""

    def _new_reader(self) -> Reader:
        return BeanstalkReader()

    def _packed(self, words: Words) -> bytes:
        name, queue, *rest = words
        if name == "put":
            message, options = rest[0], dict(zip(rest[1::2], rest[2::2], strict=True))
            head = f"put {options['PRIORITY']} {options['DELAY']} {options['TTR']} {len(message)}\r\n"
            return b"%b%b\r\n" % (head.encode(), message)
        if name == "peek" and isinstance(rest[0], str):
            return f"peek-{rest[0]}\r\n".encode()
        if name in ("use", "watch", "ignore"):
            return f"{name} {queue}\r\n".encode()
        if name in ("reserve", "reserve any"):
            return b"reserve\r\n"
        if name in ("reserve now", "reserve from"):
            return b"reserve-with-timeout 0\r\n"
        if name == "pause-tube":
            rest = [queue, *rest]
        return " ".join(["delete" if name == "delete job" else name, *map(str, rest)]).encode() + b"\r\n"

    def _plain(self, reply: Any) -> Any:
        name, *words = reply
        if name in (b"RESERVED", b"FOUND"):
            return (name, int(words[0]), words[-1])
        if name != b"OK":
            return b" ".join(reply)
        facts = dict(one.split(b": ", 1) for one in words[-1].split(b"\n") if b": " in one)
        numbers = {fact: int(facts[fact]) for fact in _FACTS[1:]}
        return [word for fact in ((_FACTS[0], facts[_FACTS[0]]), *numbers.items()) for word in fact]


_FACTS = (b"state", b"pri", b"reserves", b"timeouts", b"releases", b"buries", b"kicks")


class NativeWire:
    """A native client: this project's library, or the commands of the specification one by one."""

    def __init__(self, backend: Valkey, *, is_library: bool) -> None:
        self.replies: deque[Any] = deque()
        self.on_reply: Callable[[], None] = lambda: None
        self._backend = backend
        self._is_library = is_library
        self._client = backend.client()

    async def connect(self) -> None:
        """Do nothing. The client connects when it sends its first command."""

    async def send(self, commands: tuple[Words, ...]) -> None:
        for words in commands:
            self.replies.append(await asyncio.to_thread(self._do_with_retries, words))
        self.on_reply()

    async def close(self) -> None:
        self._client.close()

    def _do_with_retries(self, words: Words) -> Any:
        """Do an operation. Retry while a server holds the role."""
        end = monotonic() + _ROLE_TIMEOUT
        while (reply := self._do(words)) == Error("INUSE") and monotonic() < end:
            sleep(_POLL_INTERVAL)
        return reply

    def _do(self, words: Words) -> Any:
        what, queue, arguments = words[0].removeprefix("native "), words[1], words[2:]
        do = self._do_in_library if self._is_library else self._do_by_specification
        try:
            result = do(what, queue, arguments)
        except PressureError as error:
            return None if error.code == "EMPTY" else Error(error.code)
        except native.NativeError as error:
            return Error(_CODES[type(error)])
        return OK if result is None and what != "get" else result

    def _do_in_library(self, what: str, name: str, arguments: Words) -> Any:
        with library.Queue(name, self._backend.url) as queue:
            return getattr(queue, {"put": "put_nowait", "get": "get_nowait"}.get(what, what))(*arguments)

    def _do_by_specification(self, what: str, name: str, arguments: Words) -> Any:
        if what == "length":
            if not self._client.exists(f"__pressure__:{name}:bound"):
                raise native.QueueDoesNotExistError
            return self._client.llen(f"__pressure__:{name}")
        queue = native.NativeClient(self._client, name, f"native-{id(self)}")
        method = {"put": "put_non_blocking", "get": "get_non_blocking"}.get(what, what)
        return getattr(queue, method)(*arguments)


_CODES: dict[type[native.NativeError], str] = {
    native.QueueDoesNotExistError: "NOQUEUE",
    native.QueueAlreadyExistsError: "EXISTS",
    native.QueueClosedError: "CLOSED",
    native.QueueInUseError: "INUSE",
    native.QueueFullError: "FULL",
}


Wire = RespWire | NativeWire


def wire(kind: str, server: Server, backend: Valkey) -> Wire:
    """Return a client of a kind, not connected yet."""
    if kind in ("resp2", "resp3"):
        return RespWire(server.port, int(kind[-1]))
    if kind == "beanstalk":
        return BeanstalkWire(server.port_of("beanstalk"))
    if kind == "memcached":
        return MemcachedWire(server.port_of("memcached"))
    return NativeWire(backend, is_library=kind == "library")
