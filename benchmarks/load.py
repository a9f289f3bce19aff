"""A load generator for any text protocol: clients send requests, and count the lines of the replies.

redis-benchmark supports RESP only, and its requests cannot depend on replies. This generator is written in
Python and takes processor time from the subjects. Use its results only for ratios between subjects that it
measured one after the other, and look at the processor time that it needed.
"""

from __future__ import annotations

import gc
import re
import select
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.plan import BenchmarkError

_TIMEOUT = 20.0
# The replies to a connection's first write are checked, and then those to one write of this many.
_ONE_IN = 16
# All connections receive into this: recv() would map and unmap memory each time for its greatest length.
_buffer = memoryview(bytearray(1 << 18))


class Write(NamedTuple):
    """Requests that a client sends at once, and the number of lines in their replies."""

    data: bytes
    lines: int


# One client's part: it yields a write, gets the replies, and so on until it returns. It raises BenchmarkError
# for a wrong reply.
Dialogue = Generator[Write, bytes, None]


@dataclass(frozen=True)
class Duration:
    """The seconds that a load took, and the seconds of processor time that the generator needed."""

    seconds: float
    generator: float


@dataclass(frozen=True)
class Work:
    """Writes of `depth` requests each, and the reply to each request.

    `reply` is a regular expression. Each line of the reply must end with an escaped CRLF.
    """

    writes: Sequence[bytes]
    depth: int
    reply: bytes


class Share:
    """Messages that one or more clients take, `at_once` each time."""

    def __init__(self, count: int, at_once: int) -> None:
        self._left, self._at_once = count, at_once

    def take(self) -> int:
        """Return how many messages a client takes now; 0 if none is left."""
        count = min(self._at_once, self._left)
        self._left -= count
        return count


def requests_per_second(port: int, clients: int, work: Work) -> float:
    """Return the requests per second. Each client sends its next write when the last one is answered.

    Raise BenchmarkError for a wrong reply, or if there is no reply for 20 seconds.
    """
    left = iter(work.writes)
    with Clients(("127.0.0.1", port), clients) as connected:
        taken = connected.converse([_requests(work, left) for _ in range(clients)])
    return len(work.writes) * work.depth / taken.seconds


class Clients:
    """Connections to a server, which carry one load after the other until they are closed."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        with ExitStack() as stack:
            self._poll = stack.enter_context(select.epoll())
            self._connections: dict[int, _Connection] = {}
            for _ in range(count):
                connection = stack.enter_context(_Connection(address))
                self._connections[connection.fileno()] = connection
                self._poll.register(connection, select.EPOLLIN)
            self._stack = stack.pop_all()

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def converse(self, dialogues: Iterable[Dialogue]) -> Duration:
        """Run a dialogue on each connection, side by side, until all have ended."""
        pairs = list(zip(self._connections.values(), dialogues, strict=True))
        with _without_collection():
            began, began_generator = time.perf_counter(), time.process_time()
            running = sum([connection.begin(dialogue) for connection, dialogue in pairs])
            while running:
                events = self._poll.poll(_TIMEOUT)
                if not events:
                    raise BenchmarkError(f"no reply for {_TIMEOUT:.0f} seconds; {running} clients wait")
                for number, _ in events:
                    running -= self._connections[number].has_ended()
            return Duration(time.perf_counter() - began, time.process_time() - began_generator)


def _requests(work: Work, left: Iterator[bytes]) -> Dialogue:
    """Send writes until none is left."""
    expected = re.compile(b"(?:%b){%d}" % (work.reply, work.depth), re.DOTALL)
    lines = work.depth * work.reply.count(rb"\n")
    looks_in = 0  # writes until replies are checked again
    for data in left:
        replies = yield Write(data, lines)
        if not (looks_in or expected.fullmatch(replies)):
            raise unexpected(replies)
        looks_in = (looks_in or _ONE_IN) - 1


def unexpected(replies: bytes) -> BenchmarkError:
    """Return the error for a wrong reply."""
    return BenchmarkError(f"unexpected reply: {replies[:200]!r}")


@contextmanager
def _without_collection() -> Iterator[None]:
    """Do not interrupt the load by garbage collections; nothing in it has cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Connection(socket.socket):
    """One client, with one write in flight."""

    _dialogue: Dialogue

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__()
        self.connect(address)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._missing = 0  # lines of the replies to the present write
        self._replies = b""

    def begin(self, dialogue: Dialogue) -> bool:
        """Send the dialogue's first write. Return False if there is none."""
        self._dialogue = dialogue
        first = next(dialogue, None)
        if first is not None:
            self.sendall(first.data)
            self._missing = first.lines
        return first is not None

    def has_ended(self) -> bool:
        """Receive replies, and send the next write after the last reply. Return whether there is none."""
        length = self.recv_into(_buffer)
        if not length:
            raise BenchmarkError(f"the server closed a connection after {self._replies[-200:]!r}")
        received = _buffer[:length].tobytes()
        self._missing -= received.count(b"\n")
        if self._replies:
            received = self._replies + received
        if self._missing > 0:
            self._replies = received
            return False
        if self._missing:
            raise unexpected(received)
        self._replies = b""
        try:
            data, self._missing = self._dialogue.send(received)
        except StopIteration:
            return True
        self.sendall(data)
        return False
