"""The jobs that one client has reserved: they are given up when its connection ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pressure_server.queues.database import Database
from pressure_server.queues.operations.jobs import ReservedJob
from pressure_server.queues.operations.operation import Operation

# The estimated memory for one of them, in bytes.
_COST = 300


class Held(NamedTuple):
    """A reserved job: its queue, and its time to run in seconds; `deadline` is when the reservation ends.

    Times are by the loop's clock; inf if the reservation does not end by itself.
    """

    database: Database
    queue: bytes
    ttr: float
    deadline: float


class ReservedJobs:
    """The reserved jobs of a connection, by id."""

    __slots__ = ("_jobs",)

    def __init__(self) -> None:
        self._jobs: dict[bytes, Held] = {}

    def __len__(self) -> int:
        """Return how many jobs are reserved."""
        return len(self._jobs)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the ids."""
        return iter(self._jobs)

    @property
    def size(self) -> int:
        """The estimated memory in bytes."""
        return _COST * len(self._jobs)

    def add(self, operation: Operation, database: Database, now: float) -> None:
        """Add the jobs that an operation has reserved; `now` is the time by the loop's clock."""
        for result in operation.results:
            job = ReservedJob.of(result)
            ttr = job.ttr or float("inf")
            self._jobs[job.id] = Held(database, operation.name, ttr, now + ttr)

    def find(self, job: bytes) -> Held | None:
        """Return the job with that id; None if the client has not reserved it."""
        return self._jobs.get(job)

    def end(self, job: bytes) -> None:
        """Note that the client asks to end a reservation: its deadline does not matter any longer."""
        held = self._jobs.get(job)
        if held is not None:
            self._jobs[job] = held._replace(deadline=float("inf"))

    def discard(self, job: bytes) -> None:
        """Forget a job that the client has deleted, released or buried."""
        self._jobs.pop(job, None)

    def touch(self, job: bytes, now: float) -> None:
        """Note that a reservation begins again."""
        held = self._jobs.get(job)
        if held is not None:
            self._jobs[job] = held._replace(deadline=now + held.ttr)

    def first_deadline(self, now: float) -> float:
        """Return when the first reservation ends; inf if there is none. Forget those that have ended."""
        ended = [job for job, held in self._jobs.items() if held.deadline <= now]
        for job in ended:
            del self._jobs[job]
        return min((held.deadline for held in self._jobs.values()), default=float("inf"))

    def give_up_all(self, owner: bytes) -> None:
        """Give up all of them: the connection has ended."""
        jobs, self._jobs = self._jobs, {}
        for job, held in jobs.items():
            held.database.reservations.give_up(held.queue, [job], owner)
