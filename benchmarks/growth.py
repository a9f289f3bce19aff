"""The time of an operation as the queue grows, for one client that waits for each reply.

Measured by the client (median), and by Redis inside scripts (mean, from INFO commandstats).
"""

import random
import re
import statistics
import time
from collections.abc import Callable
from itertools import count, islice

from benchmarks.client import Client
from benchmarks.plan import BenchmarkError, Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import ours

_QUEUE = "bench:growth"
_FILL_AT_ONCE = 1_000
_MAX_GROWTH = 1.5
_OPERATIONS = ("SADD and SPOP", "SISMEMBER, a hit", "SISMEMBER, a miss")
_CLOCKS = ("the client's time", "the script's time")


def run(plan: Plan) -> list[Table]:
    """Measure every operation at every length, in each round."""
    samples = Samples()
    with ours() as server, Client(server.port) as client, Client(server.backend_port) as backend:
        for _ in plan.each_round("growth"):
            for length in plan.lengths:
                _fill(client, length)
                for name, operate in _operations(client, length).items():
                    times = _microseconds(operate, plan.operations, backend)
                    for clock, value in zip(_CLOCKS, times, strict=True):
                        samples.add((name, clock), _column(length), value)
    columns = [_column(length) for length in plan.lengths]
    return [
        Table(
            "growth",
            f"microseconds, by the length of the queue, median of {plan.rounds} rounds",
            (*columns, "growth"),
            [_row(samples, columns, name, clock) for clock in _CLOCKS for name in _OPERATIONS],
        )
    ]


def _fill(client: Client, length: int) -> None:
    """Fill the queue with `length` messages, numbered from 0."""
    client("DEL", _QUEUE)
    numbers = iter(range(length))
    while some := list(islice(numbers, _FILL_AT_ONCE)):
        client("SADD", _QUEUE, *map(_message, some))
    if (found := client("SCARD", _QUEUE)) != length:
        raise BenchmarkError(f"the queue has {found} messages after {length} were put")


def _operations(client: Client, length: int) -> dict[str, Callable[[], None]]:
    """Return the operations by name. The last one changes the queue, but not its length."""
    fresh = count(length)

    def hit() -> None:
        client("SISMEMBER", _QUEUE, _message(random.randrange(length)))

    def miss() -> None:
        client("SISMEMBER", _QUEUE, _message(length + random.randrange(length)))

    def add_and_pop() -> None:
        client("SADD", _QUEUE, _message(next(fresh)))
        client("SPOP", _QUEUE)

    return dict(zip(reversed(_OPERATIONS), (miss, hit, add_and_pop), strict=True))


def _message(number: int) -> str:
    return f"element:{number:012}"


def _microseconds(operate: Callable[[], None], times: int, backend: Client) -> tuple[float, float]:
    """Return an operation's time measured by the client, and its time in Redis's scripts."""
    for _ in range(times // 10):
        operate()
    backend("CONFIG", "RESETSTAT")
    taken = []
    for _ in range(times):
        began = time.perf_counter_ns()
        operate()
        taken.append(time.perf_counter_ns() - began)
    statistic = re.search(rb"cmdstat_fcall:calls=\d+,usec=(\d+)", backend("INFO", "commandstats"))
    if statistic is None:
        raise BenchmarkError("the backend's INFO commandstats has no FCALL")
    return statistics.median(taken) / 1_000, int(statistic[1]) / times


def _column(length: int) -> str:
    return f"{length:,}"


def _row(samples: Samples, columns: list[str], name: str, clock: str) -> Row:
    of = (name, clock)
    growth = samples.ratio(of, columns[-1], columns[0])
    values = (*(samples.median(of, column) for column in columns), growth)
    target = Target("x the shortest", growth, at_most=_MAX_GROWTH)
    return Row(f"{name}, {clock}", values, target, samples.of(of))
