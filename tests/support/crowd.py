"""A crowd of clients that put and get continuously, with a ledger, while a test injects faults."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any

from tests.support.ledger import Event, Ledger
from tests.support.programs import TIMEOUT, Server, wait_for
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
