"""Puts and gets per second of a native client, which makes one round trip for each step of the protocol.

The native client uses the Redis behind pressure-server. While one of the two is measured, the other is idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import redis

from benchmarks.one_queue import COMMANDS, add_and_pop
from benchmarks.plan import BenchmarkError, Load, Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Server, ours

_MESSAGE = b"element:000000000000"  # as long as redis-benchmark's messages
_TIMEOUT = 60.0
_NATIVES = ("one native", "many natives")


class NativeClient:
    """A client of pressure 0.15 that follows the protocol's pseudo-code and waits for the roles."""

    def __init__(self, port: int, queue: str, identity: str) -> None:
        self._redis = redis.Redis(port=port, single_connection_client=True, socket_timeout=_TIMEOUT)
        self._call: Callable[..., object] = self._redis.execute_command
        self._base = f"__pressure__:{queue}"
        self._identity = identity

    def __enter__(self) -> NativeClient:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._redis.close()

    def create(self, bound: int = 0) -> None:
        """Create the queue; bound 0 means unbounded. Raise BenchmarkError if the queue exists."""
        if not self._call("SETNX", f"{self._base}:bound", bound):
            raise BenchmarkError("the queue already exists")
        for role in ("producer_free", "consumer_free", "not_full"):
            self._call("LPUSH", f"{self._base}:{role}", 1)

    def put(self, message: bytes) -> None:
        """Put a message. Wait for the role and for room."""
        self._begin("producer")
        if self._call("EXISTS", f"{self._base}:closed"):
            raise BenchmarkError("the queue is closed")
        self._call("BRPOP", f"{self._base}:not_full", 0)
        length = self._call("LPUSH", self._base, message)
        bound = self._call("GET", f"{self._base}:bound")
        assert isinstance(length, int)
        assert isinstance(bound, bytes)
        if int(bound) == 0 or length < int(bound):
            self._mark_not_full()
        self._end("producer", message)

    def get(self) -> bytes:
        """Take the oldest message. Wait for the role and for a message."""
        self._begin("consumer")
        closed = f"{self._base}:closed"
        if self._call("EXISTS", closed):
            raise BenchmarkError("the queue is closed")
        popped = self._call("BRPOP", self._base, closed, 0)
        assert isinstance(popped, list | tuple)
        message = bytes(popped[1])
        self._mark_not_full()
        self._end("consumer", message)
        return message

    def _begin(self, role: str) -> None:
        if not self._call("EXISTS", f"{self._base}:bound"):
            raise BenchmarkError("the queue does not exist")
        self._call("BRPOP", f"{self._base}:{role}_free", 0)
        self._call("SET", f"{self._base}:{role}", self._identity)

    def _end(self, role: str, message: bytes) -> None:
        counted = "produced" if role == "producer" else "consumed"
        self._call("INCR", f"{self._base}:stats:{counted}_messages")
        self._call("INCRBY", f"{self._base}:stats:{counted}_bytes", len(message))
        self._call("LPUSH", f"{self._base}:{role}_free", 0)

    def _mark_not_full(self) -> None:
        self._call("LPUSH", f"{self._base}:not_full", 0)
        self._call("LTRIM", f"{self._base}:not_full", 0, 0)


def run(plan: Plan) -> list[Table]:
    """Measure one and many native clients, then pressure-server under every load, in each round."""
    loads = (plan.single, plan.plain, plan.pipelined)
    samples = Samples()
    with ours() as server:
        for number in plan.each_round("native"):
            natives = {
                name: _put_and_get(server, f"bench:{number}:{name}", clients, plan.native_messages)
                for name, clients in zip(_NATIVES, (1, plan.plain.clients), strict=True)
            }
            fastest = tuple(max(rates) for rates in zip(*natives.values(), strict=True))
            for load in loads:
                measured = {"ours": add_and_pop(server, load), **natives, "fastest native": fastest}
                for subject, rates in measured.items():
                    for command, rate in zip(COMMANDS, rates, strict=True):
                        samples.add((command, load), subject, rate)
    return [
        Table(
            "native",
            f"messages per second, median of {plan.rounds} rounds; native clients wait for every reply",
            ("ours", *_NATIVES, "ours/fastest native"),
            [_row(samples, plan, command, load) for load in loads for command in COMMANDS],
        )
    ]


def _put_and_get(server: Server, queue: str, clients: int, messages: int) -> tuple[float, float]:
    """Return the puts per second, then the gets per second, of clients that share a queue."""
    with ExitStack() as stack:
        natives = [
            stack.enter_context(NativeClient(server.backend_port, queue, f"native:{number}"))
            for number in range(clients)
        ]
        natives[0].create()
        each = messages // clients
        puts = _rate([partial(native.put, _MESSAGE) for native in natives], each)
        gets = _rate([native.get for native in natives], each)
    return puts, gets


def _rate(operations: list[Callable[[], object]], times: int) -> float:
    """Return the operations per second while each is repeated in its own thread."""

    def repeat(operation: Callable[[], object]) -> None:
        for _ in range(times):
            operation()

    with ThreadPoolExecutor(len(operations)) as threads:
        began = time.perf_counter()
        list(threads.map(repeat, operations))
        return len(operations) * times / (time.perf_counter() - began)


def _row(samples: Samples, plan: Plan, command: str, load: Load) -> Row:
    of = (command, load)
    ratio = samples.ratio(of, "ours", "fastest native")
    target = Target("x native", ratio, at_least=40) if load == plan.pipelined else None
    rates = [samples.median(of, subject) for subject in ("ours", *_NATIVES)]
    return Row(f"{command}, {load}", (*rates, ratio), target, samples.of(of))
