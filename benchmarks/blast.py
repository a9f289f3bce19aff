"""Blast radius: the latency of one client on its own queue while other clients cause trouble or load.

The client puts and takes one message at a time. The others send commands as fast as they can, or do not read.
"""

import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from benchmarks.client import Client, packed
from benchmarks.plan import Plan
from benchmarks.results import Row, Samples, Table
from benchmarks.subjects import Server, ours, program

_PERCENTILES = (50, 99)
# Messages in the list that SREM searches, messages in the set of SMEMBERS, and bytes that a client does not
# read.
_LONG = 300_000
_LARGE = 20_000
_UNREAD = 8 << 20
_ENDLESS = 10**9


def run(plan: Plan) -> list[Table]:
    """Measure the latency without other clients, and beside each kind of trouble, in each round."""
    samples = Samples()
    with ours() as server:
        _fill(server)
        for _ in plan.each_round("blast radius"):
            for trouble, begin in _TROUBLES.items():
                with begin(server):
                    latencies = _latencies(server, plan.operations)
                for percentile in _PERCENTILES:
                    samples.add(trouble, f"p{percentile}", _of(latencies, percentile))
    columns = [f"p{percentile}" for percentile in _PERCENTILES]
    return [
        Table(
            "blast radius",
            f"microseconds per SADD or SPOP on a separate queue, median of {plan.rounds} rounds",
            (*columns, *(f"{column}/quiet" for column in columns)),
            [_row(samples, trouble, columns) for trouble in _TROUBLES],
        )
    ]


def _row(samples: Samples, trouble: str, columns: list[str]) -> Row:
    values = [samples.median(trouble, column) for column in columns]
    quiet = [samples.median("nothing", column) for column in columns]
    ratios = [value / to for value, to in zip(values, quiet, strict=True)]
    return Row(trouble, (*values, *ratios), None, samples.of(trouble))


def _of(latencies: list[float], percentile: int) -> float:
    return statistics.quantiles(latencies, n=100)[percentile - 1] * 1e6


def _latencies(server: Server, operations: int) -> list[float]:
    found: list[float] = []
    with Client(server.port) as client:
        for number in range(operations // 2):
            for words in (("SADD", "own", number), ("SPOP", "own")):
                began = time.perf_counter()
                client(*words)
                found.append(time.perf_counter() - began)
    return found


def _fill(server: Server) -> None:
    with Client(server.port) as client:
        for first in range(0, _LONG, 1000):
            client("RPUSH", "long", *(f"message {number}" for number in range(first, first + 1000)))
        client("SADD", "large", *(f"message {number}" for number in range(_LARGE)))


@contextmanager
def _repeated(server: Server, *words: str, clients: int = 1, pipeline: int = 1) -> Iterator[None]:
    """Run clients that repeat the command, in another process."""
    options = ("-p", server.port, "-c", clients, "-P", pipeline, "-n", _ENDLESS, "-r", _ENDLESS)
    command = [program("redis-benchmark"), *map(str, options), *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def _nothing(_server: Server) -> Iterator[None]:
    yield


@contextmanager
def _stalled(server: Server) -> Iterator[None]:
    """Have a client that requests large replies and does not read them."""
    with Client(server.port) as client, socket.create_connection(("127.0.0.1", server.port)) as stalled:
        for _ in range(_UNREAD >> 20):
            client("RPUSH", "unread", "x" * (1 << 20))
        stalled.sendall(packed("LPOP", "unread", _UNREAD >> 20) * 2)
        yield


_TROUBLES: dict[str, Callable[[Server], AbstractContextManager[None]]] = {
    "nothing": _nothing,
    "a client that does not read": _stalled,
    f"SREM in a list of {_LONG:,}, again and again": lambda server: _repeated(server, "SREM", "long", "none"),
    f"SMEMBERS of {_LARGE:,}, again and again": lambda server: _repeated(server, "SMEMBERS", "large"),
    "one hot queue, 50 clients": lambda server: _repeated(
        server, "SADD", "hot", "__rand_int__", clients=50, pipeline=16
    ),
}
