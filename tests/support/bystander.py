"""A client that does nothing unusual while others do, in a process of its own: how long its commands take."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tests.support.programs import TIMEOUT
from tests.support.waiters import Waiter


@dataclass
class Latency:
    """Of what it has done, in seconds; known when it has ended."""

    count: int = 0
    median: float = 0.0
    worst: float = 0.0


@contextmanager
def bystander(port: int) -> Iterator[Latency]:
    """Puts and takes one message after the other, all the while."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_work, args=(port, its), daemon=True)
    process.start()
    latency = Latency()
    try:
        assert ours.poll(60), "the bystander has not begun"
        assert ours.recv() == "begun"
        yield latency
        ours.send("end")
        assert ours.poll(60), "the bystander is not served"
        times = sorted(ours.recv())
        latency.count, latency.median, latency.worst = len(times), times[len(times) // 2], times[-1]
    finally:
        process.kill()
        process.join(TIMEOUT)


def _work(port: int, told: Connection) -> None:
    times: list[float] = []
    with Waiter(port) as waiter:
        while not told.poll():
            began = time.perf_counter()
            assert waiter("SADD", "bystander", len(times)) == 1
            assert waiter("SPOP", "bystander") == b"%d" % len(times)
            times.append((time.perf_counter() - began) / 2)
            if len(times) == 1:
                told.send("begun")
    told.send(times)
