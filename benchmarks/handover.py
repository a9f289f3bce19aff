"""The latency of a message from one connection to another that waits for it: pressure-server and Redis.

"LPUSH to BRPOP" is the time from sending the LPUSH until the waiting BRPOP has its reply. "there and back"
includes an answer in the other direction. "LPUSH to its reply", without a waiting client, is a lower bound.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from benchmarks.client import Client
from benchmarks.plan import Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Subject, ours, redis_server

_QUEUES = ("bench:there", "bench:back")
_UNWATCHED = "bench:alone"
_MESSAGE = "element:000000000000"
_SUBJECTS = ("ours", "redis")
_BLOCKS = 5  # in a round; the subjects alternate, so that both meet the same load
_MAX_RATIO = 2.0


def run(plan: Plan) -> list[Table]:
    """Run alternating blocks of each measurement, in each round."""
    samples = Samples()
    times = plan.hand_overs // _BLOCKS
    with ExitStack() as stack:
        subjects = (stack.enter_context(ours()), stack.enter_context(redis_server()))
        exchanges = [(subject.name, stack.enter_context(_Exchange(subject))) for subject in subjects]
        for _, exchange in exchanges:
            for measure in _MEASURES.values():
                measure(exchange, times)  # to warm up
        for _ in plan.each_round("handover"):
            for _ in range(_BLOCKS):
                for label, measure in _MEASURES.items():
                    for name, exchange in exchanges:
                        taken = measure(exchange, times)
                        samples.add((label, "median"), name, statistics.median(taken))
                        samples.add((label, "p99"), name, percentile(taken))
    return [
        Table(
            "handover",
            f"microseconds, median of {plan.rounds * _BLOCKS} blocks",
            (*_SUBJECTS, "ours/redis"),
            [_row(samples, label, figure) for label in _MEASURES for figure in ("median", "p99")],
        )
    ]


def percentile(values: Sequence[float]) -> float:
    """Return the 99th percentile of at least two values."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


class _Exchange:
    """A putting and a waiting connection for each of two directions, and one that watches the server."""

    def __init__(self, subject: Subject) -> None:
        self._putting = [Client(subject.port) for _ in _QUEUES]
        self._waiting = [Client(subject.port) for _ in _QUEUES]
        self._looking = Client(subject.port)

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_exception: object) -> None:
        for client in (*self._putting, *self._waiting, self._looking):
            client.__exit__()

    def hand_over(self, times: int) -> list[float]:
        """Return the microseconds of each LPUSH to a waiting BRPOP."""
        return self._send(times, directions=1)

    def there_and_back(self, times: int) -> list[float]:
        """Return the microseconds of each exchange of a message and an answer."""
        return self._send(times, directions=2)

    def _send(self, times: int, directions: int) -> list[float]:
        pairs = list(zip(_QUEUES, self._putting, self._waiting, strict=True))[:directions]
        taken = []
        for _ in range(times):
            for queue, _, waiting in pairs:
                waiting.send("BRPOP", queue, 0)
            while not re.search(rb"blocked_clients:%d\r" % directions, self._looking("INFO", "clients")):
                pass
            began = time.perf_counter_ns()
            for queue, putting, waiting in pairs:
                putting.send("LPUSH", queue, _MESSAGE)
                waiting.reply()
            taken.append((time.perf_counter_ns() - began) / 1_000)
            for _, putting, _ in pairs:
                putting.reply()
        return taken

    def put(self, times: int) -> list[float]:
        """Return the microseconds of each LPUSH to a queue on which no client waits."""
        taken = []
        for _ in range(times):
            began = time.perf_counter_ns()
            self._looking("LPUSH", _UNWATCHED, _MESSAGE)
            taken.append((time.perf_counter_ns() - began) / 1_000)
        self._looking("DEL", _UNWATCHED)
        return taken


_HANDED_OVER = "LPUSH to BRPOP"
_MEASURES: dict[str, Callable[[_Exchange, int], list[float]]] = {
    _HANDED_OVER: _Exchange.hand_over,
    "there and back": _Exchange.there_and_back,
    "LPUSH to its reply": _Exchange.put,
}


def _row(samples: Samples, label: str, figure: str) -> Row:
    of = (label, figure)
    ratio = samples.ratio(of, *_SUBJECTS)
    target = Target("x redis", ratio, at_most=_MAX_RATIO) if label == _HANDED_OVER else None
    times = [samples.median(of, subject) for subject in _SUBJECTS]
    return Row(f"{label}, {figure}", (*times, ratio), target, samples.of(of))
