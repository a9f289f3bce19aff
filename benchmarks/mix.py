"""Puts, gets and blocking gets together on many queues: pressure-server, Redis and an empty proxy.

twemproxy is not measured, because it does not support blocking commands.
"""

import time
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.client import Client
from benchmarks.plan import Case, Load, Plan
from benchmarks.processor import processor_time
from benchmarks.redis_benchmark import RANDOM, rate, start
from benchmarks.results import Row, Samples, Table
from benchmarks.subjects import Subject, empty_proxy, ours, redis_server

_SUBJECTS = ("ours", "redis", "empty proxy")
_KEY = f"mixed:{RANDOM}"


class _Share(NamedTuple):
    """A command's part of the clients and of the requests."""

    words: tuple[str, ...]
    clients: float
    requests: float


# There are more puts than gets, so that most blocking gets end before their timeout.
_SHARES = (
    _Share(("LPUSH", _KEY, "x" * 84), clients=0.4, requests=0.6),
    _Share(("RPOP", _KEY), clients=0.3, requests=0.25),
    _Share(("BRPOP", _KEY, "0.05"), clients=0.3, requests=0.15),
)


def run(plan: Plan) -> list[Table]:
    """Measure all shares together on each subject, one subject after the other in each round."""
    samples = Samples()
    with ExitStack() as stack:
        subjects = [stack.enter_context(start_one()) for start_one in (ours, redis_server, empty_proxy)]
        for _ in plan.each_round("mix"):
            for subject in subjects:
                for label, value in _measure(subject, plan.mixed).items():
                    samples.add(label, subject.name, value)
    return [
        Table(
            "mix",
            f"LPUSH, RPOP and BRPOP together, {plan.mixed}, median of {plan.rounds} rounds",
            (*_SUBJECTS, "ours/redis", "ours/empty proxy"),
            [_row(samples, label) for label in _LABELS],
        )
    ]


_LABELS = ("requests per second", "µs of the server per request", "µs of the backend per request")


def _measure(subject: Subject, case: Case) -> dict[str, float]:
    backend = subject.store
    load = case.load
    loads = [
        Load(int(load.clients * share.clients), load.pipeline, int(load.requests * share.requests))
        for share in _SHARES
    ]
    requests = sum(load.requests for load in loads)
    before, backend_before = processor_time(subject.pid), processor_time(backend.pid)
    began = time.perf_counter()
    running = [
        start(subject, load, *share.words, numbers=case.queues)
        for share, load in zip(_SHARES, loads, strict=True)
    ]
    for one in running:
        rate(one)
    seconds = time.perf_counter() - began
    after, backend_after = processor_time(subject.pid), processor_time(backend.pid)
    with Client(subject.port) as client:
        client("FLUSHALL")
    values = (
        requests / seconds,
        (after.total - before.total) * 1e6 / requests,
        (backend_after.total - backend_before.total) * 1e6 / requests,
    )
    return dict(zip(_LABELS, values, strict=True))


def _row(samples: Samples, label: str) -> Row:
    values = [samples.median(label, subject) for subject in _SUBJECTS]
    ratios = [samples.ratio(label, "ours", other) for other in _SUBJECTS[1:]]
    return Row(label, (*values, *ratios), None, samples.of(label))
