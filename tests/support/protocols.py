"""The server's protocols for tests: the requests that clients send, and the server's replies.

`PROTOCOLS` has one instance for each; `each_protocol` parametrizes a test with all of them.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Self

import pytest

from tests.support.programs import TIMEOUT, Server, join
from tests.support.waiters import Connection, packed


@dataclass(frozen=True, eq=False)
class Protocol:
    """One wire protocol.

    Requests are complete; replies lack the last line end. `name` is the URL scheme of the listeners.
    """

    name: str
    read_reply: Callable[[Wire], bytes]
    # A command that always succeeds, and its reply.
    ping: bytes
    pong: re.Pattern[bytes]
    # Arguments: queue and message. The reply depends on the number of messages after the put.
    put: Callable[[bytes, bytes], bytes]
    stored: Callable[[int], bytes]
    # Argument: queue. A get that replies at once, a get that waits for a message, and their replies.
    get: Callable[[bytes], bytes]
    get_waiting: Callable[[bytes], bytes]
    got: Callable[[bytes, bytes], bytes]
    nothing: bytes
    message_in: Callable[[bytes], bytes | None]
    # The number of messages of a queue.
    size: Callable[[bytes], bytes]
    sized: Callable[[int], bytes]
    ready: bytes
    is_ready: bytes
    # Arguments: user and password.
    log_in: Callable[[bytes, bytes], bytes]
    logged_in: bytes
    login_failed: bytes
    unauthenticated: bytes
    no_permission: bytes
    # The beginning of a put, without its message of so many bytes.
    announce: Callable[[int], bytes]
    # By request: the error reply. After a fatal request the server closes the connection.
    refused: dict[bytes, bytes]
    fatal: dict[bytes, bytes]
    # Requests too large for a client that has not logged in, and the beginning of the reply.
    too_large_before_login: tuple[bytes, ...]
    refused_before_login: bytes
    too_many_clients: bytes
    out_of_memory: bytes
    protected_mode: bytes
    stopping: bytes
    backend_lost: bytes
    # Whether error replies have a text that gives the reason.
    has_reasons: bool = True
    # The request that ends a get, with its reply: without it, the message is put back when the client leaves.
    finish: Callable[[Wire], tuple[bytes, bytes]] | None = None
    # The options of a listener's URL.
    options: str = ""

    def __str__(self) -> str:
        return self.name

    def url(self, *, tls: bool = False) -> str:
        """Return a listener's URL; the system picks the port."""
        return f"{self.name}{'s' * tls}://127.0.0.1:0{self.options}"


class Wire(Connection):
    """A plain connection: the test decides what to send, and when and how to disconnect."""

    def __init__(
        self,
        protocol: Protocol,
        target: Server | int | str | socket.socket,
        *,
        small_buffers: bool = False,
    ) -> None:
        """Connect to the server's first listener for the protocol, or as Connection does."""
        self.protocol = protocol
        if isinstance(target, Server):
            target = target.port_of(protocol.name)
        if small_buffers:
            address = "127.0.0.1", target
            target = socket.socket()
            target.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            target.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            target.connect(address)
        super().__init__(target)
        self._unread = bytearray()
        # The id of the job in the last reply.
        self.job = b""

    def __call__(self, request: bytes) -> bytes:
        """Send a request and return the reply. Raises ConnectionError if the server closes."""
        self.send(request)
        return self.reply()

    def put(self, queue: bytes, message: bytes) -> None:
        """Put a message. Raises AssertionError if the server refuses it."""
        self.send(self.protocol.put(queue, message))
        reply = self.reply()
        assert reply in map(self.protocol.stored, range(1, 100)), reply

    def get(self, queue: bytes) -> bytes | None:
        """Take a message; return None if there is none, or if its queue was deleted meanwhile."""
        self.send(self.protocol.get(queue))
        message = self.message()
        if message is not None and self.protocol.finish is not None:
            request, reply = self.protocol.finish(self)
            if self(request) != reply:
                return None
        return message

    def message(self) -> bytes | None:
        """Return the message in the next reply."""
        return self.protocol.message_in(self.reply())

    def log_in(self, user: str, password: str) -> Self:
        """Log in. Raises AssertionError if the server refuses."""
        self.send(self.protocol.log_in(user.encode(), password.encode()))
        assert self.reply() == self.protocol.logged_in
        return self

    def send(self, data: bytes) -> None:
        """Send all data, unless the server closes first."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    @contextlib.contextmanager
    def sending(self, data: bytes) -> Iterator[None]:
        """Send all data in another thread while the block reads replies."""
        sender = threading.Thread(target=self.send, args=(data,), daemon=True)
        sender.start()
        yield
        join(sender)

    def send_until_blocked(self, data: bytes) -> int:
        """Send until the socket has been full for a second; return the number of bytes sent."""
        self.socket.setblocking(False)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < len(data) and select.select([], [self.socket], [], 1.0)[1]:
                sent += self.socket.send(data[sent : sent + 65536])
        self.socket.settimeout(TIMEOUT)
        return sent

    def reply(self) -> bytes:
        """Return the next reply. Raises ConnectionError if the server closes first."""
        return self.protocol.read_reply(self).removesuffix(b"\r\n")

    def replies(self, count: int) -> list[bytes]:
        """Return the next `count` replies. Raises ConnectionError if the server closes first."""
        return [self.reply() for _ in range(count)]

    def ask(self, *requests: bytes, lines: int = 1) -> list[bytes]:
        """Send requests in one write, and return so many lines of replies for each."""
        self.send(b"".join(request + b"\r\n" for request in requests))
        return [self.line().rstrip() for _ in range(lines * len(requests))]

    def exactly(self, size: int) -> bytes:
        """Return `size` bytes. Raises ConnectionError if the server closes first."""
        while len(self._unread) < size:
            self._receive_more()
        return self._take(size)

    def line(self) -> bytes:
        """Return a line with its end. Raises ConnectionError if the server closes first."""
        while b"\n" not in self._unread:
            self._receive_more()
        return self._take(self._unread.find(b"\n") + 1)

    def _receive_more(self) -> None:
        if not self.receive():
            raise ConnectionResetError(f"closed after {bytes(self._unread[-1000:])!r}")

    def rest(self) -> bytes:
        """Return all bytes until the server closes."""
        while self.receive():
            pass
        return self._take(len(self._unread))

    def is_closed(self) -> bool:
        """Wait for a byte or the end of the stream; return whether the server has closed."""
        return not (self._unread or self.receive())

    def has_reply(self) -> bool:
        """Return whether unread bytes have arrived."""
        return bool(self._unread or select.select([self.socket], [], [], 0)[0])

    def half_close(self) -> bytes:
        """Send no more (FIN), return all bytes until the server closes, and close."""
        with contextlib.suppress(OSError):  # if the server has closed first
            self.socket.shutdown(socket.SHUT_WR)
        found = self.rest()
        self.close()
        return found

    def receive(self) -> bool:
        """Wait for bytes and buffer them; return whether any arrived before the server closed."""
        received = b""
        with contextlib.suppress(ConnectionError):
            received = self.socket.recv(1 << 16)
        self._unread += received
        return bool(received)

    def _take(self, size: int) -> bytes:
        found = bytes(self._unread[:size])
        del self._unread[:size]
        return found


@dataclass(frozen=True)
class Reply:
    """A reply's bytes; for an aggregate, the bytes of its first line, and its items."""

    line: bytes
    items: tuple[Reply, ...] = ()

    @property
    def raw(self) -> bytes:
        return self.line + b"".join(item.raw for item in self.items)

    def unordered(self) -> Reply:
        """Return the reply with its items sorted."""
        items = (item.unordered() for item in self.items)
        return Reply(self.line, tuple(sorted(items, key=lambda item: item.raw)))


def resp_reply(wire: Wire) -> Reply:
    """Return the next reply. Raises ConnectionError if the server closes first."""
    line = wire.line()
    kind = line[:1]
    if kind in b"$=!" and line[1:2] != b"-":
        return Reply(line + wire.exactly(int(line[1:]) + 2))
    if kind in b"*~>%" and line[1:2] != b"-":
        count = int(line[1:]) * (2 if kind == b"%" else 1)
        return Reply(line, tuple(resp_reply(wire) for _ in range(count)))
    return Reply(line)


def _resp_message(reply: bytes) -> bytes | None:
    if reply in (b"$-1", b"*-1"):
        return None
    # LPOP returns a message, BLPOP the queue's name and a message.
    found = re.fullmatch(rb"(?:\*2\r\n\$\d+\r\n.+?\r\n)?\$\d+\r\n(.*)", reply, re.DOTALL)
    assert found, reply
    return found[1]


RESP = Protocol(
    name="resp",
    read_reply=lambda wire: resp_reply(wire).raw,
    ping=packed("PING"),
    pong=re.compile(rb"\+PONG"),
    put=lambda queue, message: packed("RPUSH", queue, message),
    stored=lambda length: b":%d" % length,
    get=lambda queue: packed("LPOP", queue),
    get_waiting=lambda queue: packed("BLPOP", queue, 0),
    got=lambda _queue, message: b"$%d\r\n%b" % (len(message), message),
    nothing=b"$-1",
    message_in=_resp_message,
    size=lambda queue: packed("LLEN", queue),
    sized=lambda length: b":%d" % length,
    ready=packed("PRESSURE.READY"),
    is_ready=b"+OK",
    log_in=lambda user, password: packed("AUTH", user, password),
    logged_in=b"+OK",
    login_failed=b"-WRONGPASS invalid username-password pair or user is disabled.",
    unauthenticated=b"-NOAUTH Authentication required.",
    no_permission=b"-NOPERM this user has no permissions to ",
    announce=lambda size: b"*3\r\n$5\r\nRPUSH\r\n$1\r\nq\r\n$%d\r\n" % size,
    refused={
        packed("LPOP"): b"-ERR wrong number of arguments for 'lpop' command",
        packed("nonsense"): b"-ERR unknown command 'nonsense', with args beginning with: ",
    },
    fatal={
        b"*x\r\n": b"-ERR Protocol error: invalid multibulk length",
        b"*1\r\n$33554433\r\n": b"-ERR Protocol error: invalid bulk length",
        b"A" * 70_000: b"-ERR Protocol error: too big inline request",
    },
    too_large_before_login=(
        b"*2\r\n$4\r\nAUTH\r\n$33554432\r\n",
        b"*3\r\n$5\r\nRPUSH\r\n$1\r\nq\r\n$30000000\r\n",
        b"*1000000\r\n" + b"$1\r\na\r\n" * 1000,
    ),
    refused_before_login=b"-ERR Protocol error: unauthenticated bulk or multibulk length",
    too_many_clients=b"-ERR max number of clients reached",
    out_of_memory=b"-OOM ",
    protected_mode=b"-DENIED ",
    stopping=b"-STOPPING ",
    backend_lost=b"-BACKEND ",
)


def _memcached_reply(wire: Wire) -> bytes:
    found = line = wire.line()
    while line.startswith((b"VALUE ", b"STAT ")):
        if line.startswith(b"VALUE "):
            found += wire.exactly(int(line.split()[3]) + 2)
        line = wire.line()
        found += line
    if line.startswith(b"VA "):
        found += wire.exactly(int(line.split()[1]) + 2)
    return found


def _memcached_message(reply: bytes) -> bytes | None:
    head, _, rest = reply.partition(b"\r\n")
    assert head == b"END" or head.startswith(b"VALUE "), reply
    return rest.removesuffix(b"\r\nEND") if rest else None


def stored(key: bytes, data: bytes, *, name: bytes = b"set", more: bytes = b"0 0") -> bytes:
    """Return a request of memcached's `set`, or of another storage command; `more` is flags and expiry."""
    return b"%b %b %b %d\r\n%b\r\n" % (name, key, more, len(data), data)


_BAD_FORMAT = b"CLIENT_ERROR bad command line format"

MEMCACHED = Protocol(
    name="memcached",
    read_reply=_memcached_reply,
    ping=b"version\r\n",
    pong=re.compile(rb"VERSION \S+"),
    put=stored,
    stored=lambda _length: b"STORED",
    get=lambda queue: b"get %b\r\n" % queue,
    get_waiting=lambda queue: b"get %b/t=60000\r\n" % queue,
    got=lambda queue, message: b"VALUE %b 0 %d\r\n%b\r\nEND" % (queue, len(message), message),
    nothing=b"END",
    message_in=_memcached_message,
    size=lambda queue: b"scard %b\r\n" % queue,
    sized=lambda length: b"%d" % length,
    ready=b"ready\r\n",
    is_ready=b"OK",
    log_in=lambda user, password: stored(b"any", b"%b %b" % (user, password)),
    logged_in=b"STORED",
    login_failed=b"CLIENT_ERROR authentication failure",
    unauthenticated=b"CLIENT_ERROR unauthenticated",
    no_permission=b"CLIENT_ERROR this user has no permission ",
    announce=lambda size: b"set q 0 0 %d\r\n" % size,
    refused={b"set q x 0 1\r\nm\r\n": _BAD_FORMAT, b"nonsense\r\n": b"ERROR"},
    fatal={
        b"set q 0 0 x\r\n": _BAD_FORMAT,
        b"ms q S3\r\n": _BAD_FORMAT,
        b"set q 0 0 1\r\nxyz": b"CLIENT_ERROR bad data chunk",
        b"set q 0 0 99999999999\r\n": _BAD_FORMAT,
        b"A" * 70_000: b"CLIENT_ERROR line too long",
    },
    too_large_before_login=(
        b"set any 0 0 3136\r\n",
        b"set any 0 0 30000000\r\n",
        b"set any 0 0 33554433\r\n",
        b"add any 0 0 30000000\r\n",
        b"get " + b"k " * 10_000,
    ),
    refused_before_login=b"CLIENT_ERROR unauthenticated",
    too_many_clients=b"ERROR Too many open connections",
    out_of_memory=b"SERVER_ERROR OOM ",
    protected_mode=b"SERVER_ERROR DENIED ",
    stopping=b"SERVER_ERROR STOPPING ",
    backend_lost=b"SERVER_ERROR BACKEND ",
)


# A put names its tube with `use`, a get with `watch`: a request may be several commands. Before them is an
# unknown command for each but the last; its reply, in any state of the connection, says that one more
# follows.
_MORE = b"more\r\n"
_MORE_FOLLOWS = b"UNKNOWN_COMMAND\r\n"
_DONE = (b"USING ", b"WATCHING ", b"NOT_IGNORED")


def joined(*commands: bytes) -> bytes:
    """Return one request of several beanstalk commands. Its reply is that of the last, or the first error."""
    return _MORE * (len(commands) - 1) + b"".join(commands)


def _beanstalk_reply(wire: Wire) -> bytes:
    """Read a reply. Leave out the job's id, which depends on all jobs before, and most of the statistics."""
    more = 0
    while (reply := _beanstalk_line(wire)) == _MORE_FOLLOWS:
        more += 1
    for _ in range(more):
        following = _beanstalk_line(wire)
        if reply.startswith(_DONE):
            reply = following
    return reply


def _beanstalk_line(wire: Wire) -> bytes:
    line = wire.line()
    name, *numbers = line.split()
    if name == b"INSERTED":
        wire.job = numbers[0]
        return b"INSERTED\r\n"
    if name in (b"RESERVED", b"FOUND"):
        wire.job = numbers[0]
        return b"%b %b\r\n%b" % (name, numbers[1], wire.exactly(int(numbers[1]) + 2))
    if name == b"OK":
        data = wire.exactly(int(numbers[0]) + 2)
        ready = re.search(rb"^current-jobs-ready: (\d+)$", data, re.MULTILINE)
        return b"OK %b\r\n" % ready[1] if ready else line + data
    return line


def _beanstalk_message(reply: bytes) -> bytes | None:
    head, _, message = reply.partition(b"\r\n")
    assert head == b"TIMED_OUT" or head.startswith(b"RESERVED "), reply
    return message if head != b"TIMED_OUT" else None


def _beanstalk_put(queue: bytes, message: bytes) -> bytes:
    return joined(b"use %b\r\n" % queue, b"put 0 0 1000 %d\r\n%b\r\n" % (len(message), message))


def _beanstalk_get(queue: bytes, reserve: bytes) -> bytes:
    """Return a get. The queues of earlier gets stay watched, so use a connection for each queue."""
    return joined(b"watch %b\r\n" % queue, b"ignore default\r\n", reserve + b"\r\n")


BEANSTALK = Protocol(
    name="beanstalk",
    read_reply=_beanstalk_reply,
    ping=b"list-tube-used\r\n",
    pong=re.compile(rb"USING \S+"),
    put=_beanstalk_put,
    stored=lambda _length: b"INSERTED",
    get=lambda queue: _beanstalk_get(queue, b"reserve-with-timeout 0"),
    get_waiting=lambda queue: _beanstalk_get(queue, b"reserve"),
    got=lambda _queue, message: b"RESERVED %d\r\n%b" % (len(message), message),
    nothing=b"TIMED_OUT",
    message_in=_beanstalk_message,
    size=lambda queue: joined(b"use %b\r\n" % queue, b"stats-tube %b\r\n" % queue),
    sized=lambda length: b"OK %d" % length,
    ready=b"ready\r\n",
    is_ready=b"READY",
    log_in=lambda user, password: b"auth %b %b\r\n" % (user, password),
    logged_in=b"AUTHENTICATED",
    login_failed=b"UNAUTHENTICATED",
    unauthenticated=b"UNAUTHENTICATED",
    no_permission=b"DENIED",
    announce=lambda size: b"put 0 0 1000 %d\r\n" % size,
    refused={b"peek x\r\n": b"BAD_FORMAT", b"put x 0 1000 3\r\nxyz\r\n": b"BAD_FORMAT"},
    # beanstalkd closes no connection because of an invalid request. It reads messages as commands.
    fatal={b"put 0 0 1000 1\r\nxyz": b"EXPECTED_CRLF", b"put 0 0 1000 x\r\n": b"BAD_FORMAT"},
    too_large_before_login=(
        b"put 0 0 1000 225\r\n",
        b"put 0 0 1000 30000000\r\n",
        b"put 0 0 1000 4294967295\r\n",
    ),
    refused_before_login=b"UNAUTHENTICATED",
    too_many_clients=b"OUT_OF_MEMORY",
    out_of_memory=b"OUT_OF_MEMORY",
    protected_mode=b"DENIED",
    stopping=b"DRAINING",
    backend_lost=b"INTERNAL_ERROR",
    has_reasons=False,
    finish=lambda wire: (b"delete %b\r\n" % wire.job, b"DELETED"),
    options=f"?max_job_size={32 << 20}",
)


PROTOCOLS = (RESP, MEMCACHED, BEANSTALK)
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=attrgetter("name"))
# Arguments for a server that listens for all protocols; it always has a listener for RESP.
LISTEN = tuple(part for each in PROTOCOLS if each is not RESP for part in ("--listen", each.url()))
