"""Redis clients of jobs: producers, workers whose reservations end with their connection, and workers whose
reservations belong to a token.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.caller import Caller
from tests.chaos.consumers import Consumer
from tests.chaos.journal import Journal
from tests.chaos.messages import message
from tests.chaos.producers import Producer, Put
from tests.chaos.workers import MAX_PRIORITY, WAIT, Held, Worker
from tests.support.waiters import Words

# Times to run, in seconds. Jobs with the longest come back only because their worker has died.
TTRS = (1, 1, 2, 3, 300)
_MAX_DELAY = 1.0
# The share of detached workers that die, and of those of whom another process goes on with the token.
_DEATHS, _CONTINUED = 0.3, 0.6
# The longest time between two kicks, in seconds.
_KICK_INTERVAL = 0.5


class JobProducer(Producer):
    """Puts by `PRESSURE.PUT` with priorities, times to run, and delays."""

    def _puts(self, count: int) -> list[Put]:
        puts: list[Put] = []
        for _ in range(count):
            queue, ttr = self.chance.choice(self.queues), self.chance.choice(TTRS)
            name = self.sender.new_job(queue, ttr)
            words: Words = ("PRESSURE.PUT", queue, message(name), "TTR", ttr)
            if self.chance.random() < 0.8:
                words += ("PRIORITY", self.chance.randrange(MAX_PRIORITY))
            if self.chance.random() < 0.2:
                words += ("DELAY", round(self.chance.uniform(0.001, _MAX_DELAY), 3))
            puts.append((words, [name]))
        return puts


@dataclass
class RedisWorker(Worker):
    """Reserves by `PRESSURE.RESERVE` of one queue or several."""

    def __post_init__(self) -> None:
        self._made = 0

    async def _reserve(self, most: int) -> list[Held]:
        since = time.monotonic()
        words, ttr, token = self._request(most)
        replies = await self.caller.ask(words, waits=WAIT)
        found: list[Any] = replies[0] if replies and isinstance(replies[0], list) else []
        held: list[Held] = []
        for _, job, data, _ in found if "COUNT" in words else [found] if found else []:
            held += self._hold(job, data, since, ttr, token=token)
        return held

    def _request(self, most: int) -> tuple[Words, float | None, str]:
        """Return a command, the time to run if it has one, and the token if it has one."""
        queues = self.chance.sample(self.queues, self.chance.choice((1, 1, 2, len(self.queues))))
        words: Words = ("PRESSURE.RESERVE", *queues, "TIMEOUT", WAIT)
        ttr = self._ttr(queues)
        token = self._token()
        if most > 1:
            words += ("COUNT", most)
        if ttr is not None:
            words += ("TTR", ttr)
        if token:
            words += ("DETACHED", token)
        return words, ttr, token

    def _ttr(self, queues: Sequence[str]) -> float | None:
        """Return a time to run. Messages of a list have none of their own."""
        has_own = not set(queues) & set(self.lists) and self.chance.random() < 0.5
        return None if has_own else self.chance.choice(TTRS)

    def _token(self) -> str:
        return ""

    def _words(self, event: str, job: Held) -> Words:
        words: Words
        match event:
            case "release":
                words = ("PRESSURE.RELEASE", job.queue, job.id)
            case "release later":
                delay = 0 if job.queue in self.lists else round(self.chance.uniform(0.001, _MAX_DELAY), 3)
                words = ("PRESSURE.RELEASE", job.queue, job.id, "DELAY", delay)
            case "bury":
                words = ("PRESSURE.BURY", job.queue, job.id)
            case "touch":
                words = ("PRESSURE.TOUCH", job.queue, job.id)
            case _:
                words = ("PRESSURE.ACK", job.queue, job.id)
        return (*words, "TOKEN", job.token) if job.token else words


@dataclass
class DetachedWorker(RedisWorker):
    """Reserves for tokens. If the worker dies, `successor` sometimes goes on with the token."""

    successor: Caller

    def _token(self) -> str:
        self._made += 1
        return f"{self.caller.name}-{self._made}"

    def _ttr(self, queues: Sequence[str]) -> float | None:
        return self.chance.choice((0.5, 1, 2, 5))

    async def _work_on(self, jobs: Sequence[Held]) -> None:
        if self.chance.random() >= _DEATHS:
            await super()._work_on(jobs)
            return
        self._die(jobs)
        if self.chance.random() < _CONTINUED:
            self._count("continued with the token", len(jobs))
            await self._finish(self.successor, jobs)


@dataclass
class RedisKicker(Consumer):
    """Kicks buried jobs by `PRESSURE.KICK`."""

    journal: Journal

    async def round(self) -> bool:
        await asyncio.sleep(self.chance.uniform(0, _KICK_INTERVAL))
        for queue in self.queues:
            replies = await self.caller.ask(
                ("PRESSURE.PEEK", queue, "BURIED"), ("PRESSURE.KICK", queue, self.chance.randint(1, 50))
            )
            if len(replies) == 2 and isinstance(replies[1], int):
                self.journal.jobs["kicked"] += replies[1]
        return True
