"""A load generator for any text protocol: clients send prebuilt requests and count the lines of the replies.

redis-benchmark supports RESP only. This generator is written in Python and takes processor time from the
subjects. Use its results only for ratios between subjects that it measured one after the other.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.plan import BenchmarkError

_TIMEOUT = 20.0
# The replies to a connection's first write are checked, and then those to one write of this many.
_ONE_IN = 16
_MAX_RECEIVED = 1 << 18


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
    answered = 0
    with ExitStack() as stack, select.epoll() as poll:
        connections = {}
        for _ in range(clients):
            connection = stack.enter_context(_Connection(port, work))
            connections[connection.fileno()] = connection
            poll.register(connection, select.EPOLLIN)
        began = time.perf_counter()
        for connection, write in zip(connections.values(), left, strict=False):
            connection.sendall(write)
        while answered < len(work.writes):
            events = poll.poll(_TIMEOUT)
            if not events:
                raise BenchmarkError(f"timeout after replies to {answered} of {len(work.writes)} writes")
            for number, _ in events:
                connection = connections[number]
                if connection.is_answered():
                    answered += 1
                    if write := next(left, b""):
                        connection.sendall(write)
        return len(work.writes) * work.depth / (time.perf_counter() - began)


class _Connection(socket.socket):
    """One client, with one write in flight."""

    def __init__(self, port: int, work: Work) -> None:
        super().__init__()
        self.connect(("127.0.0.1", port))
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._expected = re.compile(b"(?:%b){%d}" % (work.reply, work.depth), re.DOTALL)
        self._missing = self._lines = work.depth * work.reply.count(rb"\n")
        self._looks_in = 0  # writes until replies are checked again
        self._replies = b""  # of the present write, if they are checked

    def is_answered(self) -> bool:
        """Receive replies. Return whether all have arrived, so that the next write may be sent."""
        received = self.recv(_MAX_RECEIVED)
        self._missing -= received.count(b"\n")
        if not self._looks_in:
            self._replies += received
        if self._missing > 0 and received:
            return False
        if self._missing or not (self._looks_in or self._expected.fullmatch(self._replies)):
            raise BenchmarkError(f"unexpected reply: {(self._replies or received)[:200]!r}")
        self._missing = self._lines
        self._looks_in = (self._looks_in or _ONE_IN) - 1
        self._replies = b""
        return True
