"""Clients that do nothing unusual while others do, and must be served in time meanwhile."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tests.support.programs import TIMEOUT, join, wait_for
from tests.support.protocols import Wire
from tests.support.waiters import Waiter

# Seconds for a put and a get, on a machine that may be busy.
SERVED_WITHIN = 10.0
_QUEUE = b"bystander"


@contextmanager
def served(*clients: Wire, flushed: bool = False) -> Iterator[None]:
    """Let each of these clients put and get messages all the while; each must be served in time.

    If queues are `flushed` meanwhile, a message may be gone before it is taken.
    """
    is_over = threading.Event()
    taken: dict[Wire, list[float]] = {client: [] for client in clients}
    wrong: list[object] = []

    def work(client: Wire) -> None:
        while not is_over.is_set():
            began = time.monotonic()
            client.put(_QUEUE + str(client.protocol).encode(), b"m\r\n")
            message = client.get(_QUEUE + str(client.protocol).encode())
            taken[client].append(time.monotonic() - began)
            if message != b"m\r\n" and not (flushed and message is None):
                wrong.append(message)
            is_over.wait(0.002)

    threads = [threading.Thread(target=work, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: all(taken.values()), "the bystanders to be served")
        yield
    finally:
        is_over.set()
        for thread in threads:
            join(thread)
        for client in clients:
            client.close()
    assert wrong == []
    for client, times in taken.items():
        print(f"{client.protocol}: {len(times)} times, worst {max(times) * 1000:.0f} ms")
        assert max(times) < SERVED_WITHIN


@dataclass
class Latency:
    """How long a client's commands took, in seconds; known after the client has ended."""

    count: int = 0
    median: float = 0.0
    worst: float = 0.0


@contextmanager
def bystander(port: int) -> Iterator[Latency]:
    """Let a process of its own put and get one message after the other all the while."""
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
