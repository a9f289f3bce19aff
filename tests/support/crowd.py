"""A crowd of clients that put and take all the time, and keep a ledger, while a test makes trouble."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from contextlib import suppress
from types import TracebackType
from typing import Any

from tests.support.programs import Server, join, wait_for
from tests.support.waiters import AsyncWaiter

# Seconds that a client waits after an error, as sensible ones do.
_AFTER_ERROR = 0.02


class Crowd:
    """So many clients of a server, at work until the block ends; each puts a message, then takes one."""

    def __init__(self, server: Server, clients: int = 50, queue: str = "q") -> None:
        self._server = server
        self._clients = clients
        self._queue = queue
        self._going = True
        self.acknowledged: set[bytes] = set()
        self.taken: Counter[bytes] = Counter()
        # The errors' texts, and how often each came.
        self.errors: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed: Exception | None = None

    def __enter__(self) -> Crowd:
        self._thread.start()
        self.wait_for_success()
        return self

    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._going = False
        join(self._thread)
        if self._failed is not None:
            raise self._failed

    def wait_for_success(self) -> None:
        """Return when a few more have put and taken."""
        before = self.taken.total()
        wait_for(lambda: self.taken.total() >= before + 2 * self._clients, "messages to be put and taken")

    def wait_for_errors(self, code: str = "BACKEND") -> None:
        """Return when there are more errors of that code."""
        before = self.errors_of(code)
        wait_for(lambda: self.errors_of(code) > before + self._clients, f"errors {code}")

    def errors_of(self, code: str) -> int:
        return sum(count for text, count in self.errors.items() if re.search(code, text))

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except Exception as error:
            self._failed = error

    async def _work(self) -> None:
        await asyncio.gather(*[self._client(number) for number in range(self._clients)])

    async def _client(self, number: int) -> None:
        waiter = await AsyncWaiter.connect(self._server.port)
        count = 0
        while self._going:
            message = b"%d-%d" % (number, count)
            count += 1
            if await self._told(waiter, "SADD", self._queue, message) == 1:
                self.acknowledged.add(message)
            taken = await self._told(waiter, "SPOP", self._queue)
            if taken is not None:
                self.taken[taken] += 1
        waiter.close()

    async def _told(self, waiter: AsyncWaiter, *words: str | bytes) -> Any:
        reply = await waiter(*words)
        if isinstance(reply, Exception):
            self.errors[str(reply)] += 1
            await asyncio.sleep(_AFTER_ERROR)
            return None
        return reply

    def assert_nothing_lost(self) -> None:
        """Take what is left: all that was acknowledged has come, and nothing twice."""
        with self._server.client() as client:

            def take_the_rest() -> bool:
                self.taken.update(client.spop(self._queue, 100_000))
                return self.acknowledged <= self.taken.keys()

            with suppress(AssertionError):
                wait_for(take_the_rest, "all that was acknowledged")
        assert self.acknowledged - self.taken.keys() == set(), "lost"
        assert [message for message, count in self.taken.items() if count > 1] == []
