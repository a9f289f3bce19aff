"""Clients that send prebuilt requests and count the lines of replies: the same for every text protocol.

redis-benchmark speaks RESP alone. This is Python, and takes its part of the cores on which the subjects run:
what it measures is for ratios of subjects that it has measured one after the other, and for nothing else.
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
# The replies to a connection's first write are looked at, and those to one in so many.
_ONE_IN = 16
_MOST_RECEIVED = 1 << 18


@dataclass(frozen=True)
class Work:
    """Writes of so many (`depth`) requests each, and what each request is replied.

    `reply` is a regular expression, in which each line of the reply ends with a CRLF that is escaped.
    """

    writes: Sequence[bytes]
    depth: int
    reply: bytes


def requests_per_second(port: int, clients: int, work: Work) -> float:
    """Each client sends a write as soon as its last one is answered, until all are.

    Raises BenchmarkError where a reply is not what it must be, or none comes for 20 seconds.
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
                raise BenchmarkError(f"{answered} of {len(work.writes)} writes are answered, and no more")
            for number, _ in events:
                connection = connections[number]
                if connection.is_answered():
                    answered += 1
                    if write := next(left, b""):
                        connection.sendall(write)
        return len(work.writes) * work.depth / (time.perf_counter() - began)


class _Connection(socket.socket):
    """One client, with a write under way."""

    def __init__(self, port: int, work: Work) -> None:
        super().__init__()
        self.connect(("127.0.0.1", port))
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._expected = re.compile(b"(?:%b){%d}" % (work.reply, work.depth), re.DOTALL)
        self._missing = self._lines = work.depth * work.reply.count(rb"\n")
        self._looks_in = 0  # so many writes
        self._replies = b""  # where they are looked at

    def is_answered(self) -> bool:
        """Receive what has come; whether all replies are there, and the next write may be sent."""
        received = self.recv(_MOST_RECEIVED)
        self._missing -= received.count(b"\n")
        if not self._looks_in:
            self._replies += received
        if self._missing > 0 and received:
            return False
        if self._missing or not (self._looks_in or self._expected.fullmatch(self._replies)):
            raise BenchmarkError(f"a reply is not what it must be: {(self._replies or received)[:200]!r}")
        self._missing = self._lines
        self._looks_in = (self._looks_in or _ONE_IN) - 1
        self._replies = b""
        return True
