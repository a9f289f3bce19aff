"""Workers: clients that reserve jobs, and then delete, release, bury or touch them, or keep them too long.

A worker that dies deletes none of the jobs that it has reserved. A job counts as received when the reply to
its deletion has been read. If that reply does not come, the job is doubtful: it may be deleted, or not.
"""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.chaos.caller import Caller
from tests.chaos.consumers import Consumer
from tests.chaos.journal import Journal
from tests.chaos.ledger import Refusal
from tests.support.ledger import Event
from tests.support.waiters import Words

# Seconds for which a reserve waits, rounded for beanstalk.
WAIT = 0.2
# How many jobs a worker reserves at once.
BATCHES = (1, 5, 20)
# The shares of batches that a worker keeps beyond their time to run, if that is short; of which it sends
# the deletions and hangs up; and with which it dies.
_KEPT, _UNREAD, _DEATHS = 0.02, 0.02, 0.06
_SHORT_TTR = 2.0
# Seconds for which a worker keeps a batch, at most, and for which it keeps one too long.
_WORK = 0.03
_TOO_LONG = 0.3
# Seconds after which a client counts as silent. If it resets its connection just after it got a reply, its
# jobs return to their queue, detached ones too.
_SILENT = 1.0
# Events of a reserved job, with their shares; the last ends it.
DELETE = "delete"
_EVENTS = {"release": 0.08, "release later": 0.06, "bury": 0.06, "touch": 0.05, DELETE: 0.75}
# Replies of events, by what they say.
_DONE = (1, b"DELETED", b"RELEASED", b"BURIED", b"TOUCHED")
_REFUSED = (0, b"NOT_FOUND")
ANSWERED = (*_DONE, *_REFUSED)
MAX_PRIORITY = 2000


class Held(NamedTuple):
    """A job that a worker has reserved, at the earliest at `since`, for `ttr` seconds.

    `connection` is the number of the worker's connection, None if the reservation outlives it.
    """

    id: int
    name: bytes
    queue: str
    since: float
    ttr: float
    connection: int | None
    token: str = ""


@dataclass
class JobConsumer(Consumer):
    """A client that reserves jobs."""

    journal: Journal
    # Queues whose messages have no id while they are not reserved.
    lists: Sequence[str]

    def _hold(
        self, job: int, data: bytes, since: float, ttr: float | None = None, *, token: str = ""
    ) -> list[Held]:
        """Note a job that was read. Return it, or nothing if nobody sent it."""
        name = self.ledger.see(data, self._event("jobs", time.monotonic()))
        if not name:
            return []
        queue = self.ledger.queue_of(name)
        # The first job makes `mixed` a queue of jobs: until then its messages have no ids of their own.
        is_kept = queue not in self.lists and self.ledger.is_job(name)
        self.ledger.identify(name, job, is_kept=is_kept)
        ttr = self.ledger.ttr_of(name) if ttr is None else ttr
        return [Held(job, name, queue, since, ttr, None if token else self.caller.connections, token)]

    def _event(self, queue: str, when: float, caller: Caller | None = None) -> Event:
        caller = caller or self.caller
        return Event(caller.name, queue, caller.proxy, when)

    def _count(self, event: str, jobs: int) -> None:
        self.journal.jobs[event] += jobs


class Worker(JobConsumer):
    """A client that reserves jobs and ends them. Its connection may be cut at any moment."""

    async def round(self) -> bool:
        jobs = await self._reserve(self.chance.choice(BATCHES))
        if jobs:
            await self._work_on(jobs)
        return bool(jobs)

    @abstractmethod
    async def _reserve(self, most: int) -> list[Held]:
        """Reserve up to `most` jobs."""

    @abstractmethod
    def _words(self, event: str, job: Held) -> Words:
        """Return the command for an event."""

    async def _work_on(self, jobs: Sequence[Held]) -> None:
        """Let something happen to jobs that were just reserved."""
        await asyncio.sleep(self.chance.uniform(0, _WORK))
        end = self.chance.random()
        shortest = min(job.ttr for job in jobs)
        if end < _DEATHS:
            self._die(jobs)
            return
        if end < _DEATHS + _UNREAD:
            await self.caller.send(*(self._words(DELETE, job) for job in jobs))
            self.ledger.doubt(job.name for job in jobs)
            self._count(f"{DELETE} with an unread reply", len(jobs))
            self._die(jobs)
            return
        if end < _DEATHS + _UNREAD + _KEPT and shortest <= _SHORT_TTR:
            await asyncio.sleep(shortest + _TOO_LONG)
            self._count("kept too long", len(jobs))
        await self._finish(self.caller, jobs)

    def _die(self, jobs: Sequence[Held]) -> None:
        waited = time.monotonic() - min(job.since for job in jobs)
        reset = self.chance.random() < 0.5 and waited < _SILENT
        self.caller.hang_up(reset=reset)
        self._count("left by a reset" if reset else "left by hanging up", len(jobs))

    async def _finish(self, caller: Caller, jobs: Sequence[Held]) -> None:
        """Let an event happen to each job; those that were touched are deleted.

        After an error hang up: a job may still be reserved, for as long as the connection stands.
        """
        events = self.chance.choices(list(_EVENTS), list(_EVENTS.values()), k=len(jobs))
        planned = [*zip(events, jobs, strict=True)]
        planned += [(DELETE, job) for event, job in planned if event == "touch"]
        commands = [self._words(event, job) for event, job in planned]
        replies: list[Any] = await caller.ask(*commands)
        replies += [None] * (len(planned) - len(replies))
        for (event, job), reply in zip(planned, replies, strict=True):
            self._note(caller, event, job, reply)
        if not all(reply in ANSWERED for reply in replies):
            caller.close()

    def _note(self, caller: Caller, event: str, job: Held, reply: Any) -> None:
        now = self._event(job.queue, time.monotonic(), caller)
        if reply in _DONE:
            self._count(event, 1)
            if event == DELETE:
                self.ledger.end(job.name, now)
        elif reply in _REFUSED:
            is_over = now.when - job.since >= job.ttr
            is_cut = job.connection not in (None, caller.connections)
            reason = "late" if is_over else "connection broken" if is_cut else "early"
            self._count(f"refused: {reason}", 1)
            if reason == "early":
                reserved = self._event(job.queue, job.since)
                self.ledger.refusals.append(Refusal(job.name, event, reserved, now, job.connection is None))
        else:
            self._count(f"{event} without a reply", 1)
            if event == DELETE:
                self.ledger.doubt([job.name])
