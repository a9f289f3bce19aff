"""Jobs: messages that stay with their queue until a client deletes them.

It follows section 7 of the design, the protocol text of beanstalkd, and the comments in lua/kinds/jobs.lua.
Where these are silent, it says so: "decided:".

Time passes only where the test says so: `Job.is_due` means that the time of a delay or of a reservation is
over. The server notices it with the next operation on the queue; so does `JobQueue.begin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, Self

from tests.support.reference.queue import (
    FULL,
    Marked,
    Queue,
    RefusedError,
    deliveries_of,
    flags_of,
    require,
)

if TYPE_CHECKING:
    from tests.support.reference.queues import Queues

READY, DELAYED, RESERVED, BURIED = "ready", "delayed", "reserved", "buried"
STATES = (READY, DELAYED, RESERVED, BURIED)
BASE_PRIORITY, BASE_TTR = 1024, 60
COUNTERS = ("reserves", "timeouts", "releases", "buries", "kicks")
# Delays are in seconds. Jobs with equal delays become ready in the order of their puts.
_PLACES_OF_SECOND = 1_000_000


@dataclass(eq=False)
class Job:
    """A job. Times are in seconds. `place` orders the delayed by when they are due, others by their event."""

    id: int
    message: bytes
    priority: int = BASE_PRIORITY
    delay: float = 0
    ttr: float = BASE_TTR
    state: str = READY
    place: int = 0
    is_due: bool = False
    owner: str = ""
    own_ttr: float | None = None
    name: bytes | None = None  # makes it unique; None: its message does
    origin: str = ""  # of a dead letter: the queue from which it came
    # Of a group: the offset in its log, whether only the log has the message, and whether the group has
    # passed it.
    offset: int = 0
    is_in_range: bool = False
    is_passed: bool = False
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))

    def copy(self) -> Job:
        """Return a copy that shares no state."""
        clone = copy(self)
        clone.counts = dict(self.counts)
        return clone

    @property
    def time_to_run(self) -> float:
        """The time to run of the present reservation, else of the job; 0 for no limit."""
        return self.ttr if self.own_ttr is None else self.own_ttr

    @property
    def rank(self) -> tuple[int, int]:
        """The least is reserved first, except in a lifo."""
        return self.priority, self.id

    @property
    def key(self) -> bytes:
        """What must be unique in a queue of unique jobs."""
        return self.message if self.name is None else self.name


def _by_id(job: Job) -> int:
    return job.id


def _returned(job: Job) -> Marked:
    """Return the message of a job that goes back to its fifo, with what is known of it."""
    return Marked(job.message, flags_of(job.message), deliveries=job.counts["reserves"])


@dataclass(eq=False, kw_only=True)
class JobQueue(Queue):
    """A queue: a fifo, whose reserved and buried messages are jobs, or a queue of jobs.

    `messages` is the list of the protocol: in a queue of jobs, those which native clients have put and the
    server has not adopted yet.
    """

    home: Queues = field(repr=False)
    type: str = ""  # if the queue was created with one
    has_jobs: bool = False  # whether it is a queue of jobs
    is_paused: bool = False
    unique: str = ""
    max_deliveries: int = 0
    dead_letter: str = ""
    keeps: bool = False  # ACK NEXT
    in_flight: int = 0
    retry_delay: int = 0  # in seconds; longer than an hour, so it does not grow
    rate: int = 0  # how many jobs are taken in a time that does not end
    taken: int = 0  # how many have been, if there is a rate
    jobs: dict[int, Job] = field(default_factory=dict)
    last_id: int = 0

    def copy(self) -> Self:
        """Return a copy that shares no state but its home."""
        clone = super().copy()
        clone.jobs = {number: job.copy() for number, job in self.jobs.items()}
        return clone

    # Questions

    def in_state(self, state: str) -> list[Job]:
        """Return the jobs in a state, the next one first; the reserved ones by id.

        The priority decides, then the order of the puts; a lifo takes the newest.
        """
        orders: dict[str, Callable[[Job], Any]] = {
            READY: lambda job: (job.priority, -job.id) if self.type == "lifo" else job.rank,
            DELAYED: lambda job: (job.place, job.id),
            RESERVED: _by_id,
            BURIED: lambda job: job.place,
        }
        return sorted((job for job in self.jobs.values() if job.state == state), key=orders[state])

    @property
    def queued(self) -> list[Job]:
        """The queued jobs: those that are ready, then the delayed."""
        return self.in_state(READY) + self.in_state(DELAYED)

    @property
    def length(self) -> int:
        """The number of queued messages, as SCARD tells: also those that are not adopted yet."""
        return len(self.messages) + len(self.queued)

    @property
    def visible(self) -> list[bytes]:
        """A list of the queued messages, in the order in which they are taken.

        Decided: while a native client holds the consumer role of a queue of jobs, the messages of native
        producers are not jobs yet, and only their number is visible.
        """
        return [job.message for job in self.queued] if self.has_jobs else super().visible

    @property
    def takeable(self) -> list[Job]:
        """The jobs that may be reserved, the best first."""
        if self.is_paused:
            return []
        return self.in_state(READY)[: self.allowed]

    @property
    def allowed(self) -> int | None:
        """How many jobs the policies allow to take now; None if they set no limit."""
        limits = [self.in_flight - len(self.in_state(RESERVED))] if self.in_flight else []
        limits += [self.rate - self.taken] if self.rate else []
        return max(0, min(limits)) if limits else None

    @property
    def is_finished(self) -> bool:
        """Whether no message will come: a delayed or reserved job may, a buried one does not by itself."""
        may_come = any(job.state != BURIED for job in self.jobs.values())
        return self.is_closed and not self.messages and not may_come

    def equals(self, key: bytes) -> list[Job]:
        """Return the jobs that an equal one may not join, in a queue of unique jobs."""
        states = STATES if self.unique == "unfinished" else (READY, DELAYED)
        return [job for job in self.jobs.values() if job.key == key and job.state in states]

    def keeps_out(self, message: bytes) -> bool:
        return bool(self.equals(message)) if self.unique else super().keeps_out(message)

    @property
    def is_being_created(self) -> bool:
        # A native client creates lists only.
        return not self.has_jobs and super().is_being_created

    @property
    def may_produce(self) -> bool:
        return self.has_jobs or super().may_produce

    @property
    def may_consume(self) -> bool:
        return self.has_jobs or super().may_consume

    # Changes

    def begin(self) -> None:
        """Do what is due, as at the beginning of each operation: adopt native messages, end delays and
        reservations."""
        if not self.exists:
            return
        if self.has_jobs and self.tokens.consumer_free:
            messages, self.messages = self.messages, []
            for message in messages:
                self.store(message)
        for job in self.in_state(DELAYED):
            if job.is_due:
                job.state, job.is_due = READY, False
        ended = [job for job in self.in_state(RESERVED) if job.is_due]
        self.give_back(sorted(ended, key=lambda job: job.place), "timeouts")

    def store(self, message: bytes, number: int | None = None, **options: Any) -> Job:
        """Add a job, with the next id or this one. It is let in whether there is room or not."""
        job = Job(self.home.new_id(self) if number is None else number, message, **options)
        job.counts["reserves"] = deliveries_of(message)
        if job.delay:
            self._delay(job)
        self.jobs[job.id], self.producer = job, self.actor
        return job

    def convert(self) -> None:
        """Make this a queue of jobs. Its messages are adopted in order."""
        if self.has_jobs:
            return
        require(not self.type, "TYPE")
        self.has_jobs = True
        self.counters.consume([job.message for job in self.jobs.values()], -1)
        self.begin()

    def keep(self, *, keeps: bool) -> None:
        """Keep what is popped until the client's next pop, or not."""
        require(self.exists, "NOQUEUE")
        self.keeps = keeps

    def is_spent(self, job: Job) -> bool:
        """Whether the job has been delivered as often as it may."""
        return 0 < self.max_deliveries <= job.counts["reserves"]

    def give_back(self, some: Iterable[Job], counter: str = "") -> None:
        """Make reserved or buried jobs ready. In a fifo they are messages again, at the head, by id."""
        to_list: list[Job] = []
        spent: list[Job] = []
        for job in some:
            if counter:
                job.counts[counter] += 1
            was_reserved = job.state == RESERVED
            self._leave(job)
            if was_reserved and self.is_spent(job):
                job.state, job.place = BURIED, self.home.new_place()
                spent.append(job)
            elif was_reserved and self.retry_delay:
                job.delay = self._delay_of_retry(job)
                self._delay(job)
            elif self.has_jobs:
                job.state = READY
            else:
                del self.jobs[job.id]
                to_list.append(job)
        self.restore([_returned(job) for job in sorted(to_list, key=_by_id)])
        for job in sorted(spent, key=_by_id) if self.dead_letter else []:
            self._move_to_dead_letters(job)

    def _move_to_dead_letters(self, job: Job) -> None:
        """Move a buried job to the dead letters, unless that queue does not take it.

        There it is a job again, unless the queue has been a list before.
        """
        try:
            is_new = not self.home[self.dead_letter].exists
            dead = self.home.opened(self.dead_letter)
            dead.require_open()
            if is_new:
                dead.convert()
            if not dead.has_jobs:
                dead.put([job.message], overfill=True)
            elif not (dead.unique and dead.equals(job.message)):
                dead.counters.produce([job.message])
                origin = self.home.name_of(self)
                dead.store(job.message, priority=job.priority, ttr=job.ttr, origin=origin)
        except RefusedError:
            return
        self._delete([job])

    def put_back(self, job: Job) -> None:
        """Put a dead letter of another queue, as if it had never been delivered."""
        if self.has_jobs:
            self.put_job(job.message, priority=job.priority, ttr=job.ttr)
        else:
            self.put([Marked(job.message, flags_of(job.message))])

    def _delay_of_retry(self, job: Job) -> float:
        """Return the delay of a job that has failed, in seconds. It depends on the job's id, too."""
        part = 0.9 + 0.2 * (job.id * 7919 % 1000) / 1000
        return ceil(self.retry_delay * 1000 * part) / 1000

    def _delay(self, job: Job) -> None:
        job.state = DELAYED
        job.place = round(job.delay * _PLACES_OF_SECOND) + self.home.new_place()

    @staticmethod
    def _leave(job: Job) -> None:
        job.owner, job.own_ttr, job.is_due, job.place = "", None, False, 0

    def _delete(self, some: Iterable[Job]) -> None:
        """Delete jobs. A fifo queue has counted them as consumed when a client reserved them."""
        for job in some:
            del self.jobs[job.id]
            if self.has_jobs:
                self.counters.consume([job.message])

    # Puts and takes

    def put_job(
        self, message: bytes, *, is_unique: bool = False, by: bytes | None = None, **options: Any
    ) -> list[int]:
        """Put a job; makes the queue one of jobs. Return the ids that the reply may have."""
        self.require_open()
        require(self.type != "fifo" and (by is None or self.unique), "TYPE")
        require(self.room, FULL)
        self.convert()
        if self.unique:
            equals = self.equals(message if by is None else by)
        else:
            equals = [job for job in self.queued if is_unique and job.message == message]
        if equals:
            return [job.id for job in equals]
        self.counters.produce([message])
        return [self.store(message, name=by, **options).id]

    def _accept(self, messages: Sequence[bytes]) -> None:
        if not self.has_jobs:
            super()._accept(messages)
            return
        for message in messages:
            if not (self.unique and self.equals(message)):
                self.store(message)
                self.counters.produce([message])

    def take(self, count: int = 1) -> list[bytes]:
        if not self.has_jobs:
            return super().take(count)
        # What is taken for good is not in flight.
        most = min(count, self.rate - self.taken) if self.rate else count
        some = self.in_state(READY)[:most] if self.takeable else []
        self.taken += len(some)
        self._delete(some)
        return [job.message for job in some]

    def remove(self, messages: Iterable[bytes]) -> list[int]:
        """Remove all queued copies of each message. Reserved and buried jobs stay."""
        if not self.has_jobs:
            return super().remove(messages)
        found = []
        for message in messages:
            copies = [job for job in self.queued if job.message == message]
            self._delete(copies)
            found.append(int(bool(copies)))
        return found

    def remove_copies(self, wanted: int, message: bytes) -> int:
        if not self.has_jobs:
            return super().remove_copies(wanted, message)
        copies = [job for job in self.queued if job.message == message]
        gone = copies[wanted:] if wanted < 0 else copies[: wanted or None]
        self._delete(gone)
        return len(gone)

    def drop_newest(self, count: int) -> None:
        if not self.has_jobs:
            super().drop_newest(count)
        else:
            self._delete(self.queued[max(0, len(self.queued) - count) :])

    def flush(self) -> int:
        """Remove all queued messages. Decided: reserved and buried jobs are not queued."""
        if not self.has_jobs:
            return super().flush()
        some = self.queued
        self._delete(some)
        return len(some)

    def to_move(self, message: bytes | None = None) -> bytes | None:
        if message is not None or not self.has_jobs:
            return super().to_move(message)
        return self.takeable[0].message if self.takeable else None

    # Reservations

    def reserve(self, owner: str, count: int = 1, ttr: float | None = None) -> list[Job]:
        """Reserve up to `count` jobs. A message of a fifo becomes one; without `ttr` it has no limit."""
        if self.has_jobs:
            found = self.takeable[:count]
            self.taken += len(found)
        else:
            found = [self.store(message, ttr=0) for message in self.take(count)]
            ttr = ttr or 0
        for job in found:
            self.hold(job, owner, ttr)
        return found

    def hold(self, job: Job, owner: str, ttr: float | None = None) -> None:
        """Reserve this job."""
        job.state, job.is_due, job.owner, job.own_ttr = RESERVED, False, owner, ttr
        job.place = self.home.new_place()
        job.counts["reserves"] += 1

    def reserve_job(self, number: int, owner: str) -> Job | None:
        """Reserve a job that nobody has reserved. Decided: also in a paused queue."""
        job = self.jobs.get(number)
        if not job or job.state == RESERVED:
            return None
        self.hold(job, owner)
        return job

    def held_by(self, owner: str) -> list[Job]:
        """Return the jobs that an owner has reserved."""
        return [job for job in self.in_state(RESERVED) if job.owner == owner]

    def owned(self, number: int, owner: str) -> Job | None:
        """Return a job if this owner has reserved it."""
        job = self.jobs.get(number)
        return job if job and job.state == RESERVED and job.owner == owner else None

    def acknowledge(self, numbers: Iterable[int], owner: str) -> int:
        """Delete jobs that the owner has reserved, or that nobody has. Return how many."""
        count = 0
        for number in numbers:
            job = self.jobs.get(number)
            if job and (job.state != RESERVED or job.owner == owner):
                self._delete([job])
                count += 1
        return count

    def touch(self, numbers: Iterable[int], owner: str) -> int:
        """Begin the time to run again. Return for how many jobs."""
        return sum(self.owned(number, owner) is not None for number in numbers)

    def release(self, number: int, owner: str, priority: int | None = None, delay: float = 0) -> int:
        """Give a reserved job back. A delay, or a priority other than the base, needs a queue of jobs."""
        job = self.owned(number, owner)
        if not job:
            return 0
        if priority not in (None, BASE_PRIORITY) or delay:
            self.convert()
        job.priority = job.priority if priority is None else priority
        job.delay = delay
        if delay and not self.is_spent(job):
            self._leave(job)
            job.counts["releases"] += 1
            self._delay(job)
        else:
            self.give_back([job], "releases")
        return 1

    def bury(self, number: int, owner: str, priority: int | None = None) -> int:
        """Set a reserved job aside."""
        job = self.owned(number, owner)
        if not job:
            return 0
        self._leave(job)
        job.priority = job.priority if priority is None else priority
        job.counts["buries"] += 1
        job.state, job.place = BURIED, self.home.new_place()
        return 1

    def to_kick(self, count: int) -> list[Job]:
        """Return buried jobs; if there are none, delayed ones, the next to be ready first."""
        return (self.in_state(BURIED) or self.in_state(DELAYED))[:count]

    def kick(self, count: int) -> int:
        """Make buried or delayed jobs ready. Return how many."""
        self.require_existing()
        some = self.to_kick(count)
        self.give_back(some, "kicks")
        return len(some)

    def kick_job(self, number: int) -> int:
        """Make one buried or delayed job ready."""
        job = self.jobs.get(number)
        if not job or job.state not in (BURIED, DELAYED):
            return 0
        self.give_back([job], "kicks")
        return 1

    def give_up(self, owner: str) -> None:
        """Make the jobs ready that this owner had reserved: it has left."""
        self.give_back(self.held_by(owner))

    def pause(self, *, is_paused: bool) -> None:
        """Let nobody take jobs, or end that. Makes the queue one of jobs."""
        self.require_existing()
        self.convert()
        self.is_paused = is_paused

    # What clients are told

    def peek_job(self, which: int | str) -> tuple[int, bytes] | None:
        """Return id and message of a job by its id, or of the next one in a state.

        Decided: messages of a fifo are not jobs, and are not peeked at. A pause does not hide jobs.
        """
        some = self.in_state(which) if isinstance(which, str) else [self.jobs[which]] * (which in self.jobs)
        return (some[0].id, some[0].message) if some else None

    def describe(self, number: int) -> dict[bytes, Any] | None:
        """Return what PRESSURE.JOB tells, without times that depend on the clock."""
        job = self.jobs.get(number)
        if not job:
            return None
        return {
            b"state": job.state.encode(),
            b"priority": job.priority,
            b"delay_ms": round(job.delay * 1000),
            b"ttr_ms": round(job.time_to_run * 1000),
            **{counter.encode(): count for counter, count in job.counts.items()},
        }

    def info(self) -> dict[bytes, Any]:
        """Return what PRESSURE.INFO tells, without the roles. Messages that are no jobs yet are ready."""
        self.require_existing()
        counts = {state.encode(): len(self.in_state(state)) for state in STATES}
        counts[b"ready"] += len(self.messages)
        return {
            b"bound": self.bound,
            b"length": self.length,
            b"closed": int(self.is_closed),
            b"type": b"jobs" if self.has_jobs else b"fifo",
            b"unique": self.unique.encode(),
            b"max_deliveries": self.max_deliveries,
            b"dead_letter": self.dead_letter.encode(),
            **counts,
        }
