"""Messages per second through a queue with a bound of 10: pressure-server and native clients.

Each client waits for every reply. Native clients connect directly to the Redis behind pressure-server.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from benchmarks.client import Client
from benchmarks.native import NativeClient
from benchmarks.plan import Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Server, ours

_BOUND = 10
_MESSAGE = "element:000000000000"
_PAIRS = (1, 10)
_SUBJECTS = ("ours", "native")

# The puts of the producers and the gets of the consumers of a queue.
_Operations = tuple[list[Callable[[], object]], list[Callable[[], object]]]


def run(plan: Plan) -> list[Table]:
    """Measure pressure-server and native clients, with one pair of clients and with many, in each round."""
    samples = Samples()
    with ours() as server:
        for number in plan.each_round("bounded"):
            for pairs in _PAIRS:
                for subject, connect in zip(_SUBJECTS, (_ours, _native), strict=True):
                    with ExitStack() as clients:
                        operations = connect(server, f"bench:{number}:{pairs}:{subject}", pairs, clients)
                        rate = _rate(operations, plan.bounded_messages // pairs)
                    samples.add(pairs, subject, rate)
    return [
        Table(
            "bounded",
            f"messages per second through a bound of {_BOUND}, median of {plan.rounds} rounds",
            (*_SUBJECTS, "ours/native"),
            [_row(samples, pairs) for pairs in _PAIRS],
        )
    ]


def _ours(server: Server, queue: str, pairs: int, clients: ExitStack) -> _Operations:
    producers, consumers = (
        [clients.enter_context(Client(server.port)) for _ in range(pairs)] for _ in range(2)
    )
    producers[0]("PRESSURE.CREATE", queue, "BOUND", _BOUND)
    return (
        [partial(client, "PRESSURE.PUT", queue, _MESSAGE) for client in producers],
        [partial(client, "PRESSURE.GET", queue) for client in consumers],
    )


def _native(server: Server, queue: str, pairs: int, clients: ExitStack) -> _Operations:
    producers, consumers = (
        [
            clients.enter_context(NativeClient(server.backend_port, queue, f"native:{role}:{number}"))
            for number in range(pairs)
        ]
        for role in ("producer", "consumer")
    )
    producers[0].create(_BOUND)
    return (
        [partial(client.put, _MESSAGE.encode()) for client in producers],
        [client.get for client in consumers],
    )


def _rate(operations: _Operations, times: int) -> float:
    """Return the messages per second while all clients repeat their operation, each in its own thread."""
    puts, gets = operations

    def repeat(operation: Callable[[], object]) -> None:
        for _ in range(times):
            operation()

    with ThreadPoolExecutor(len(puts) + len(gets)) as threads:
        began = time.perf_counter()
        list(threads.map(repeat, [*puts, *gets], timeout=120))
        return len(puts) * times / (time.perf_counter() - began)


def _row(samples: Samples, pairs: int) -> Row:
    ratio = samples.ratio(pairs, *_SUBJECTS)
    rates = [samples.median(pairs, subject) for subject in _SUBJECTS]
    label = f"{pairs} producer{'s' * (pairs > 1)}, {pairs} consumer{'s' * (pairs > 1)}"
    return Row(label, (*rates, ratio), Target("x native", ratio, at_least=1.0), samples.of(pairs))
