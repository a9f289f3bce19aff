"""A crowd of clients that put and get continuously, with a ledger, while a test injects faults."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from tests.support.ledger import Event, Ledger
from tests.support.programs import TIMEOUT, Server, wait_for
from tests.support.waiters import AsyncWaiter

# Seconds for which a client backs off after an error.
_AFTER_ERROR = 0.02


class Member:
    """One client of a crowd."""

    def __init__(self, crowd: Crowd, waiter: AsyncWaiter, number: int) -> None:
        self._crowd = crowd
        self._waiter = waiter
        self._event = Event(str(number))
        self._number = number
        self._count = 0

    async def put(self) -> bool:
        """Put a message. Return whether that succeeded."""
        message = b"%d-%d" % (self._number, self._count)
        self._count += 1
        self._crowd.ledger.send([message], self._event)
        # 0 means that the queue already has the message, for example after a retry.
        is_put = await self._ask("SADD", self._crowd.queue, message) in (0, 1)
        if is_put:
            self._crowd.ledger.acknowledge([message])
        return is_put

    async def put_and_take(self) -> bool:
        """Put a message and take one, the same or another. Return whether a message was taken."""
        await self.put()
        taken = await self._ask("SPOP", self._crowd.queue)
        if taken is not None:
            self._crowd.ledger.receive([taken], self._event)
        return taken is not None

    async def _ask(self, *words: str | bytes) -> Any:
        """Return the reply. Count an error, and return None."""
        reply = await self._waiter(*words)
        if isinstance(reply, Exception):
            self._crowd.errors[str(reply)] += 1
            await asyncio.sleep(_AFTER_ERROR)
            return None
        return reply


class Crowd:
    """Clients of a server, which repeat their work until the `with` block ends."""

    def __init__(
        self,
        server: Server,
        clients: int = 50,
        queue: str = "q",
        work: Callable[[Member], Awaitable[bool]] = Member.put_and_take,
    ) -> None:
        self.queue = queue
        self.ledger = Ledger()
        # The number of replies with each error.
        self.errors: Counter[str] = Counter()
        self._server = server
        self._clients = clients
        self._work = work
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
        waiter = await AsyncWaiter.connect(self._server.port)
        member = Member(self, waiter, number)
        while self._goes_on:
            # `+=` with an await on its right would lose the successes of other clients.
            succeeded = await self._work(member)
            self._successes += succeeded
        waiter.close()

    def assert_nothing_lost(self) -> None:
        """Take the remaining messages. Raise AssertionError if a message was lost, doubled or is strange."""
        with self._server.client() as client:

            def take_the_rest() -> bool:
                self.ledger.receive(client.spop(self.queue, 100_000))
                return not self.ledger.lost()

            with suppress(AssertionError):
                wait_for(take_the_rest, "all acknowledged messages")
        self.ledger.check()
