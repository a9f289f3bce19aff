"""Clients that put and get all the while, beside what a test does to the server or to its backend."""

from __future__ import annotations

import asyncio
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.support.ledger import Event, Ledger
from tests.support.programs import TIMEOUT, Server, wait_for
from tests.support.protocols import Wire
from tests.support.waiters import AsyncWaiter

# Seconds for which a client backs off after an error.
_AFTER_ERROR = 0.02
_QUEUE = "q"


class Crowd:
    """Clients of a server that put messages until the `with` block ends, and take one after each put."""

    def __init__(self, server: Server, clients: int = 50, *, takes: bool = True) -> None:
        self.ledger = Ledger()
        # The number of replies with each error.
        self.errors: Counter[str] = Counter()
        self._server = server
        self._clients = clients
        self._takes = takes
        self._successes = 0
        self._goes_on = True
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Crowd:
        self._work_of_all = self._thread.submit(asyncio.run, self._work_all())
        self.wait_for_success()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._goes_on = False
        with self._thread:
            self._work_of_all.result(TIMEOUT)

    def wait_for_success(self) -> None:
        """Return after two more successes per client, on average."""
        before = self._successes
        wait_for(lambda: self._successes >= before + 2 * self._clients, "the clients to succeed")

    def wait_for_errors(self, pattern: str) -> None:
        """Return after one more such error per client, on average."""
        before = self.errors_of(pattern)
        wait_for(lambda: self.errors_of(pattern) > before + self._clients, f"errors {pattern}")

    def errors_of(self, pattern: str) -> int:
        """Return the number of error replies that contain the pattern."""
        return sum(count for text, count in list(self.errors.items()) if re.search(pattern, text))

    async def _work_all(self) -> None:
        await asyncio.gather(*[self._work_one(number) for number in range(self._clients)])

    async def _work_one(self, number: int) -> None:
        waiter, event = await AsyncWaiter.connect(self._server.port), Event(str(number))
        for turn in count():
            if not self._goes_on:
                break
            message = b"%d-%d" % (number, turn)
            self.ledger.send([message], event)
            # 0 means that the queue already has the message, for example after a retry.
            is_done = await self._ask(waiter, "SADD", _QUEUE, message) in (0, 1)
            if is_done:
                self.ledger.acknowledge([message])
            if self._takes:
                taken = await self._ask(waiter, "SPOP", _QUEUE)
                is_done = taken is not None
                self.ledger.receive([taken] if is_done else [], event)
            self._successes += is_done
        waiter.close()

    async def _ask(self, waiter: AsyncWaiter, *words: str | bytes) -> Any:
        """Return the reply. Count an error, and return None."""
        reply = await waiter(*words)
        if isinstance(reply, Exception):
            self.errors[str(reply)] += 1
            await asyncio.sleep(_AFTER_ERROR)
            return None
        return reply

    def assert_nothing_lost(self) -> None:
        """Take the remaining messages. Raise AssertionError if a message was lost, doubled or is strange."""
        with self._server.client() as client:

            def take_the_rest() -> bool:
                self.ledger.receive(client.spop(_QUEUE, 100_000))
                return not self.ledger.lost()

            with suppress(AssertionError):
                wait_for(take_the_rest, "all acknowledged messages")
        self.ledger.check()


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
