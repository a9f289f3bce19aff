"""The jobs that one client has reserved: they are given up when its connection ends.

Those that it has popped are apart: its next pop acknowledges those whose replies were written before that.
"""

from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from math import inf

from pressure_server.queues.database import Database
from pressure_server.queues.operations.flagged import Popped
from pressure_server.queues.operations.jobs import ReservedJob
from pressure_server.queues.operations.operation import Operation

# The estimated memory for one of them, and for its deadline, in bytes.
_COST = 400
_DEADLINE_COST = 100
# Entries of ended reservations that are kept besides the others.
_MAX_STALE = 100
# The most reservations that `queues` looks at.
_MOST_SHOWN = 20


class Held:
    """A reserved job: its queue, how often it has been reserved, and its time to run in seconds.

    The reservation ends at `deadline`, by the loop's clock; inf for never.
    """

    __slots__ = ("database", "deadline", "queue", "reserves", "ttr")

    def __init__(self, database: Database, queue: bytes, reserves: int, ttr: float, deadline: float) -> None:
        self.database = database
        self.queue = queue
        self.reserves = reserves
        self.ttr = ttr
        self.deadline = deadline


class Pop:
    """Jobs of one queue that end together, such as what one pop has brought.

    `jobs` has the id of each, and how often it has been reserved. The reservations end at `deadline`, by the
    loop's clock; inf for never.
    """

    __slots__ = ("database", "deadline", "jobs", "queue")

    def __init__(
        self, database: Database, queue: bytes, jobs: list[tuple[int, int]], deadline: float
    ) -> None:
        self.database = database
        self.queue = queue
        self.jobs = jobs
        self.deadline = deadline


class ReservedJobs:
    """The reserved jobs of a connection, by id; and its pops."""

    __slots__ = ("_deadlines", "_elsewhere", "_jobs", "finished_pops", "pops")

    def __init__(self) -> None:
        self._jobs: dict[int, Held] = {}
        # Jobs whose ids `_jobs` has for another database.
        self._elsewhere: list[Pop] = []
        # A heap of deadlines and ids. Entries of jobs that have ended, or have another deadline, stay in it.
        self._deadlines: list[tuple[float, int]] = []
        # The pops whose replies are written, and how many of them the client had when it last sent something.
        self.pops: list[Pop] = []
        self.finished_pops = 0

    def __len__(self) -> int:
        """Return how many jobs are reserved."""
        return len(self._jobs) + sum(len(pop.jobs) for pop in (*self._elsewhere, *self.pops))

    def queues(self) -> tuple[tuple[int, bytes], ...]:
        """Return the queues from which the first of these jobs are, by database number and name."""
        reserved: Iterable[Held | Pop] = chain(self.pops, self._jobs.values(), self._elsewhere)
        first = islice(reserved, _MOST_SHOWN)
        return tuple(dict.fromkeys((one.database.database_number, one.queue) for one in first))

    @property
    def size(self) -> int:
        """The estimated memory in bytes."""
        return _COST * len(self) + _DEADLINE_COST * len(self._deadlines)

    def add(self, operation: Operation, database: Database, now: float) -> None:
        """Add the jobs that an operation has reserved; `now` is the time by the loop's clock."""
        for result in operation.results:
            job = ReservedJob.of(result)
            before = self._jobs.get(job.id)
            if before is not None and before.database is not database:
                same_id = [(job.id, before.reserves)]
                self._elsewhere.append(Pop(before.database, before.queue, same_id, before.deadline))
            ttr = job.ttr or inf
            self._note(job.id, Held(database, operation.name, job.reserves, ttr, now + ttr))

    def add_pop(self, operation: Operation, database: Database, now: float) -> None:
        """Add what a pop has brought: its reply is written."""
        messages: list[Popped] = operation.results
        jobs = [(message.job, message.reserves) for message in messages]
        self.pops.append(Pop(database, operation.name, jobs, now + (messages[0].ttr or inf)))

    def take_finished(self) -> list[Pop]:
        """Forget the pops that the client has finished, and return them."""
        if self.finished_pops == len(self.pops):  # nearly always
            finished, self.pops, self.finished_pops = self.pops, [], 0
            return finished
        finished = self.pops[: self.finished_pops]
        self.pops, self.finished_pops = self.pops[self.finished_pops :], 0
        return finished

    def popped_from(self, database: Database, queue: bytes) -> list[tuple[int, int]]:
        """Return the messages that the client has popped from one queue, as the `jobs` of its pops."""
        return [
            job for pop in self.pops if pop.queue == queue and pop.database is database for job in pop.jobs
        ]

    def forget_pops(self, database: Database, queue: bytes, jobs: Collection[int]) -> None:
        """Forget the pops from one queue that have brought these jobs."""
        kept: list[Pop] = []
        finished = 0
        for at, pop in enumerate(self.pops):
            if pop.queue != queue or pop.database is not database or pop.jobs[0][0] not in jobs:
                kept.append(pop)
                finished += at < self.finished_pops
        self.pops, self.finished_pops = kept, finished

    def _note(self, job: int, held: Held) -> None:
        self._jobs[job] = held
        if held.deadline < inf:
            heappush(self._deadlines, (held.deadline, job))
            if len(self._deadlines) > 2 * len(self._jobs) + _MAX_STALE:
                self._deadlines = [(held.deadline, job) for job, held in self._jobs.items()]
                heapify(self._deadlines)

    def find(self, job: int) -> Held | None:
        """Return the job with that id; None if the client has not reserved it."""
        return self._jobs.get(job)

    def end(self, job: int) -> None:
        """Note that the client asks to end a reservation: its deadline does not matter any longer."""
        held = self._jobs.get(job)
        if held is not None:
            held.deadline = inf

    def discard_from(self, database: Database, queue: bytes, job: int) -> None:
        """Forget a job of that queue, if the client has reserved it there."""
        held = self._jobs.get(job)
        if held is not None and held.queue == queue and held.database is database:
            self.discard(job)
        else:
            self._elsewhere = [
                one
                for one in self._elsewhere
                if (one.database, one.queue, one.jobs[0][0]) != (database, queue, job)
            ]

    def discard(self, job: int) -> None:
        """Forget a job that the client has deleted, released or buried."""
        self._jobs.pop(job, None)
        if not self._jobs:
            self._deadlines.clear()

    def touch(self, job: int, now: float) -> None:
        """Note that a reservation begins again."""
        held = self._jobs.get(job)
        if held is not None:
            held.deadline = now + held.ttr
            self._note(job, held)

    def first_deadline(self, now: float) -> float:
        """Return when the first reservation ends; inf if there is none. Forget those that have ended."""
        deadlines = self._deadlines
        while deadlines:
            deadline, job = deadlines[0]
            held = self._jobs.get(job)
            is_current = held is not None and held.deadline == deadline
            if is_current and deadline > now:
                return deadline
            heappop(deadlines)
            if is_current:
                del self._jobs[job]
        return inf

    def any_at(self, now: float) -> bool:
        """Return whether a reservation has not ended at this time by the loop's clock."""
        deadlines = [held.deadline for held in self._jobs.values()]
        deadlines += [pop.deadline for pop in (*self._elsewhere, *self.pops)]
        return max(deadlines, default=now) > now

    def all(self) -> Iterator[tuple[Database, bytes, int, int]]:
        """Yield each job: its database, its queue, its id, and how often it has been reserved."""
        for job, held in self._jobs.items():
            yield held.database, held.queue, job, held.reserves
        for pop in (*self._elsewhere, *self.pops):
            for job, reserves in pop.jobs:
                yield pop.database, pop.queue, job, reserves

    def give_up_all(self, owner: bytes, *, at_once: bool = False) -> None:
        """Give up all jobs: the connection ends. Send them `at_once`, or with the jobs of other clients."""
        queues: dict[tuple[Database, bytes], list[tuple[int, int]]] = {}
        for database, queue, job, reserves in self.all():
            queues.setdefault((database, queue), []).append((job, reserves))
        self._jobs, self.pops, self.finished_pops = {}, [], 0
        self._elsewhere.clear()
        self._deadlines.clear()
        for (database, queue), reserved in queues.items():
            database.shard_of(queue).reservations.give_up(queue, reserved, owner)
        if at_once:
            for shard in {database.shard_of(queue) for database, queue in queues}:
                shard.reservations.restore()
