"""A load generator for any text protocol: clients send requests, and count the lines of the replies.

redis-benchmark supports RESP only, and sends requests that do not depend on replies. This generator is written
in Python and takes processor time from the subjects. Use its results only for ratios between subjects that it
measured one after the other, and look at the processor time that it needed.
"""

from __future__ import annotations

import gc
import re
import select
import socket
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.plan import BenchmarkError

_TIMEOUT = 20.0
# The replies to a connection's first write are checked, and then those to one write of this many.
_ONE_IN = 16
_MAX_RECEIVED = 1 << 18


class Write(NamedTuple):
    """Requests that a client sends at once, and the number of lines in their replies."""

    data: bytes
    lines: int


# One client: it yields a write, gets the replies, and so on until it returns. It checks the replies, and raises
# BenchmarkError for a wrong one.
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


def requests_per_second(port: int, clients: int, work: Work) -> float:
    """Return the requests per second. Each client sends its next write when the last one is answered.

    Raise BenchmarkError for a wrong reply, or if there is no reply for 20 seconds.
    """
    left = iter(work.writes)
    taken = converse(("127.0.0.1", port), [_requests(work, left) for _ in range(clients)])
    return len(work.writes) * work.depth / taken.seconds


def converse(address: tuple[str, int], dialogues: Sequence[Dialogue]) -> Duration:
    """Run the dialogues side by side, each on its own connection, until all have ended."""
    with ExitStack() as stack, select.epoll() as poll:
        connections: dict[int, _Connection] = {}
        for dialogue in dialogues:
            connection = stack.enter_context(_Connection(address, dialogue))
            connections[connection.fileno()] = connection
            poll.register(connection, select.EPOLLIN)
        stack.enter_context(_without_collection())
        began, began_generator = time.perf_counter(), time.process_time()
        running = sum([connection.begin() for connection in connections.values()])
        while running:
            events = poll.poll(_TIMEOUT)
            if not events:
                raise BenchmarkError(f"no reply for {_TIMEOUT:.0f} seconds; {running} clients are waiting")
            for number, _ in events:
                running -= connections[number].has_ended()
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

    def __init__(self, address: tuple[str, int], dialogue: Dialogue) -> None:
        super().__init__()
        self.connect(address)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._dialogue = dialogue
        self._missing = 0  # lines of the replies to the present write
        self._replies = b""

    def begin(self) -> bool:
        """Send the first write. Return False if there is none."""
        first = next(self._dialogue, None)
        if first is not None:
            self.sendall(first.data)
            self._missing = first.lines
        return first is not None

    def has_ended(self) -> bool:
        """Receive replies, and send the next write after the last reply. Return whether there is none."""
        received = self.recv(_MAX_RECEIVED)
        self._missing -= received.count(b"\n")
        if self._replies:
            received = self._replies + received
        if self._missing > 0 and received:
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
