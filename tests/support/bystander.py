"""Clients that do nothing unusual while others do, and must be served in time meanwhile."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.programs import TIMEOUT, wait_for
from tests.support.protocols import Wire

# Seconds for a put and a get, on a machine that may be busy.
SERVED_WITHIN = 10.0
# Seconds between a get and the next put: a delay is noticed that late, and more rounds cost processor time.
_PAUSE = 0.02
_MESSAGE = b"m\r\n"


@dataclass
class Latency:
    """How long each put and get took, in seconds."""

    times: list[float] = field(default_factory=list)

    @property
    def worst(self) -> float:
        return max(self.times)

    def __str__(self) -> str:
        median = statistics.median(self.times)
        return f"{len(self.times)} times, median {median * 1e3:.1f} ms, worst {self.worst * 1e3:.0f} ms"


@contextmanager
def served(*clients: Wire, flushed: bool = False) -> Iterator[Latency]:
    """Let each of these clients put and get messages all the while; each must be served in time.

    If queues are `flushed` meanwhile, a message may be gone before it is taken.
    """
    is_over = threading.Event()
    latencies = {client: Latency() for client in clients}
    wrong: list[object] = []

    def work(client: Wire) -> None:
        queue = b"bystander-" + client.protocol.name.encode()
        while not is_over.is_set():
            began = time.monotonic()
            client.put(queue, _MESSAGE)
            message = client.get(queue)
            latencies[client].times.append(time.monotonic() - began)
            if message != _MESSAGE and not (flushed and message is None):
                wrong.append(message)
            is_over.wait(_PAUSE)

    with ThreadPoolExecutor(len(clients)) as threads:
        working = [threads.submit(work, client) for client in clients]
        try:
            wait_for(
                lambda: all(latency.times for latency in latencies.values()), "the bystanders to be served"
            )
            yield latencies[clients[0]]
        finally:
            is_over.set()
            for each, client in zip(working, clients, strict=True):
                each.result(TIMEOUT)
                client.close()
    assert wrong == []
    for client, latency in latencies.items():
        print(f"{client.protocol}: {latency}")
        assert latency.worst < SERVED_WITHIN
