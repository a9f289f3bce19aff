"""What the server's own code takes for a request, without sockets: 1 000 queues, 50 clients.

Connections, lanes, the courier, the link and its channel are the real ones. Between two transports in
memory, a backend answers each block as the library does on the fast path. Its time, and that of making the
requests, is not counted.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice
from math import inf
from random import Random
from time import process_time
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import hiredis
import uvloop

from benchmarks.plan import Plan
from benchmarks.results import Row, Samples, Table, Target
from handlers.resp import commands
from handlers.resp.parser import Limits
from handlers.resp.session import RespSession
from pressure_server.auth.access_policy import Access, AccessPolicy
from pressure_server.backend.durability import Durability
from pressure_server.backend.link import Link, Timeouts
from pressure_server.backend.requests import Channel
from pressure_server.backend.route import Route
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.lua.layout import BlockField, Header
from pressure_server.lua.scripts import library
from pressure_server.net.clients import Clients
from pressure_server.net.connection import Connection
from pressure_server.net.handler import Context
from pressure_server.net.memory import MemoryAccount
from pressure_server.net.workers import Workers
from pressure_server.queues.database import Database
from pressure_server.queues.operations.owners import Answers
from pressure_server.queues.operations.wait import WaiterCount
from pressure_server.queues.placement import Placement
from pressure_server.queues.policy import Policy
from pressure_server.queues.shard import Shard

_QUEUES, _CLIENTS = 1000, 50
_MESSAGE = b"m" * 84
# The most microseconds that a request may take.
_TARGETS = {("SADD", 16): 5.0, ("SPOP", 16): 6.0, ("SADD", 1): 7.0, ("SPOP", 1): 8.0}


class _Transport(asyncio.Transport):
    """A transport that keeps what is written, and whose socket takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def _encoded(value: Any) -> bytes:
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(_encoded, value))
    return b":%d\r\n" % value if isinstance(value, int) else b"$%d\r\n%b\r\n" % (len(value), value)


def _reply_to(words: list[bytes]) -> bytes:
    """Return the library's reply to a call: FCALL, its name, the number of keys, keys, and arguments."""
    arguments = words[3 + int(words[2]) :]
    replies: list[Any] = [1 if arguments[Header.NUMBER] else 0]
    at = len(Header)
    while at < len(arguments):
        last = at + len(BlockField) + int(arguments[at + BlockField.ARGUMENTS])
        reply: list[Any] = [0]
        at += len(BlockField)
        while at < last:
            name, count = arguments[at], int(arguments[at + 1])
            if name.startswith(b"put"):
                reply.append(b"new")
            else:
                reply.append([_MESSAGE] * int(arguments[at + 2]))
            at += 2 + count
        replies.append(reply)
    return _encoded(replies)


class _Backend:
    """The other side of the link's channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._transport = _Transport()
        self._reader = hiredis.Reader()
        channel.connection_made(self._transport)

    def replies(self) -> list[bytes]:
        """Return the replies to all calls that have been written since the last time."""
        for data in self._transport.written:
            self._reader.feed(data)
        self._transport.written.clear()
        calls: list[list[bytes]] = []
        while (words := self._reader.gets()) is not False:
            calls.append(words)
        return list(map(_reply_to, calls))

    def answer(self, reply: bytes) -> None:
        """Let the channel receive a reply."""
        self._channel.data_received(reply)


class _World:
    """A server whose sockets are in memory."""

    def __init__(self) -> None:
        commands.load()
        route = Mock(spec=Route)
        route.address = Mock()
        self._link = Link(
            0, route=route, library=library(), name="bench", timeouts=Timeouts(),
            guard=b"", layout=b"", outages=Counter(),
        )  # fmt: skip
        self._link.heartbeats = cast(Any, SimpleNamespace(overdue_at=inf))
        channel = Channel(library(), 60.0, 1, lambda _channel, _why: None)
        self.backend = _Backend(channel)
        self._link._channel = channel
        watch = Mock(spec=Watch)
        watch.is_up = True
        durability = Mock(spec=Durability)
        durability.is_enabled = False
        shard = Shard(
            self._link, watch, Mock(spec=Turns), durability,
            prefix=b"__pressure__", identity=b"me", policy=Policy(0), waiters=WaiterCount(1000),
            answers=Answers(),
        )  # fmt: skip
        self.database = Database([shard], Placement(b"__pressure__"))
        clients = Clients(1000, 0.0, Access(AccessPolicy()), MemoryAccount(1 << 40, 1 << 25))
        self._clients = clients
        broker = Mock()
        broker.default_database = self.database
        context = Context(Mock(), broker, clients, Workers(Mock()))
        self.connections: list[Connection] = []
        for _ in range(_CLIENTS):
            connection = Connection(clients, RespSession(context, Limits(1 << 25)))
            connection.connection_made(_Transport())
            self.connections.append(connection)

    def written(self) -> int:
        """Return how often the server has written to clients since the last time."""
        count = 0
        for connection in self.connections:
            count += len(cast(_Transport, connection.transport).written)
            cast(_Transport, connection.transport).written.clear()
        return count

    def close(self) -> None:
        """Stop the server's timers."""
        self._clients._ticking.cancel()


async def _measure(request: Callable[[bytes], bytes], pipeline: int, rounds: int) -> tuple[float, float]:
    """Return the microseconds, and the writes to clients, for each request."""
    world, random, spent, writes = _World(), Random(1), 0.0, 0
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as the server
    # First every queue is used once.
    firsts = -(-_QUEUES // (_CLIENTS * pipeline))
    queues = chain(range(_QUEUES), iter(lambda: random.randrange(_QUEUES), None))
    for round_ in range(rounds + firsts):
        reads = [
            b"".join(request(b"queue:%d" % next(queues)) for _ in range(pipeline)) for _ in range(_CLIENTS)
        ]
        if round_ == firsts:
            spent, writes = 0.0, 0
        # As with sockets: some clients are read in one iteration of the loop, then the backend.
        pending = iter(reads)
        some = iter(zip(world.connections, pending, strict=True))
        while True:
            batch = list(islice(some, 12))
            replies = world.backend.replies()
            if not batch and not replies:
                began = process_time()
                for _ in range(3):
                    await asyncio.sleep(0)
                spent += process_time() - began
                replies = world.backend.replies()
                if not replies:
                    break
            began = process_time()
            for connection, read in batch:
                connection.data_received(read)
            for reply in replies:
                world.backend.answer(reply)
            await asyncio.sleep(0)
            spent += process_time() - began
        writes += world.written()
    world.close()
    requests = rounds * _CLIENTS * pipeline
    return spent / requests * 1e6, writes / requests


def _sadd(queue: bytes) -> bytes:
    return b"*3\r\n$4\r\nSADD\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(queue), queue, len(_MESSAGE), _MESSAGE)


def _spop(queue: bytes) -> bytes:
    return b"*2\r\n$4\r\nSPOP\r\n$%d\r\n%b\r\n" % (len(queue), queue)


_REQUESTS = {"SADD": _sadd, "SPOP": _spop}


def run(plan: Plan) -> list[Table]:
    """Measure SADD and SPOP, one at a time and in pipelines of 16."""
    samples = Samples()
    for _ in plan.each_round("in memory"):
        for name, pipeline in _TARGETS:
            rounds = max(20, plan.operations // pipeline // 8)
            spent, writes = uvloop.run(_measure(_REQUESTS[name], pipeline, rounds))
            line = f"{name}, P{pipeline}"
            samples.add(line, "microseconds", spent)
            samples.add(line, "writes", writes)
    rows = []
    for (name, pipeline), most in _TARGETS.items():
        line = f"{name}, P{pipeline}"
        spent = samples.median(line, "microseconds")
        values = (spent, samples.median(line, "writes"))
        rows.append(Row(line, values, Target("microseconds", spent, at_most=most), samples.of(line)))
    title = f"processor time of the server's code for a request, median of {plan.rounds} rounds"
    return [Table("in memory", title, ("microseconds", "writes to clients"), rows)]
