"""What operators cost: throughput while Prometheus scrapes each second and three consoles are open.

Both servers have the same load. The one without an HTTP listener has no survey of queues either.
"""

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.plan import Case, Plan
from benchmarks.processor import processor_time
from benchmarks.redis_benchmark import RANDOM, rate, start
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Server, ours

_KEY = f"watched:{RANDOM}"
_COMMANDS = (("SADD", _KEY, "message"), ("SPOP", _KEY))
_STREAMS = (
    "/api/overview/events?sort=messages&order=down",
    "/api/overview/events?sort=name&order=up",
    "/api/queue/events?db=0&id=watched%3A000000000001",
)
_LABELS = ("requests per second", "µs of the server per request")
_SUBJECTS = ("without --http", "watched")


def run(plan: Plan) -> list[Table]:
    """Measure a server without an HTTP listener, and a watched one, in turns."""
    tables = []
    with ExitStack() as stack:
        plain = stack.enter_context(ours())
        watched = stack.enter_context(ours("--http", "http://127.0.0.1:0"))
        for case in (plan.mixed, plan.cases[-1]):
            samples = Samples()
            for number in plan.each_round("console"):
                for name in _SUBJECTS if number % 2 else _SUBJECTS[::-1]:
                    if name == "watched":
                        with _watchers(watched):
                            found = _measure(watched, case)
                    else:
                        found = _measure(plain, case)
                    for label, value in found.items():
                        samples.add(label, name, value)
            tables.append(
                Table(
                    f"console {case.queues}",
                    f"SADD and SPOP, {case}, a scrape each second and three consoles; "
                    f"median of {plan.rounds} rounds",
                    (*_SUBJECTS, "ratio"),
                    [_row(samples, label) for label in _LABELS],
                )
            )
    return tables


def _measure(server: Server, case: Case) -> dict[str, float]:
    before, began, requests = processor_time(server.pid), time.perf_counter(), 0
    for command in _COMMANDS:
        rate(start(server, case.load, *command, numbers=case.queues))
        requests += case.load.requests
    seconds = time.perf_counter() - began
    used = processor_time(server.pid).total - before.total
    return {_LABELS[0]: requests / seconds, _LABELS[1]: used / requests * 1e6}


@contextmanager
def _watchers(server: Server) -> Iterator[None]:
    """Keep three consoles open, and scrape the metrics each second, until the block ends."""
    stop = threading.Event()
    threads = [threading.Thread(target=_look, args=(server, path, stop)) for path in _STREAMS]
    threads.append(threading.Thread(target=_scrape, args=(server, stop)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _look(server: Server, path: str, stop: threading.Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    while not stop.is_set():
        response.readline()
    connection.close()


def _scrape(server: Server, stop: threading.Event) -> None:
    while not stop.wait(1):
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        connection.close()


def _row(samples: Samples, label: str) -> Row:
    values = [samples.median(label, name) for name in _SUBJECTS]
    ratio = samples.ratio(label, "watched", "without --http")
    target = Target("of the throughput", ratio, at_least=0.98) if label == _LABELS[0] else None
    return Row(label, (*values, ratio), target, samples.of(label))
