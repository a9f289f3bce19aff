"""A model of queues with jobs: what each command of the server does to them, and replies.

It follows section 7 of the design, the protocol text of beanstalkd, and the comments in lua/jobs.lua. Where
these are silent, it says so: "decided:". A refused command changes nothing, unless a comment says otherwise.

Time passes only where the test says so: `Job.is_due` means that the time of a delay or of a reservation is
over. The server notices it with the next operation on the queue, so the model does, too (`Queue.begin`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

READY, DELAYED, RESERVED, BURIED = "ready", "delayed", "reserved", "buried"
STATES = (READY, DELAYED, RESERVED, BURIED)
BASE_PRIORITY, BASE_TTR = 1024, 60
COUNTERS = ("reserves", "timeouts", "releases", "buries", "kicks")
_IDS_OF_BLOCK = 64
# A reply that the model does not predict: any is right.
ANY: Any = object()


class RefusedError(Exception):
    """A command is refused; the text is the code of the error over RESP."""


@dataclass(eq=False)
class Job:
    """A job. Times are in seconds. `place` orders the delayed by when they are due, and the buried."""

    id: int
    message: bytes
    priority: int = BASE_PRIORITY
    delay: int = 0
    ttr: int = BASE_TTR
    state: str = READY
    place: int = 0
    is_due: bool = False
    owner: str = ""
    own_ttr: int | None = None
    name: bytes | None = None  # makes it unique; None: its message does
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))

    @property
    def time_to_run(self) -> int:
        """The time to run of the present reservation, else of the job; 0 for no limit."""
        return self.ttr if self.own_ttr is None else self.own_ttr

    @property
    def rank(self) -> tuple[int, int]:
        """The least is reserved first."""
        return self.priority, self.id

    @property
    def key(self) -> bytes:
        """What must be unique in a queue of unique jobs."""
        return self.message if self.name is None else self.name


def _by_id(job: Job) -> int:
    return job.id


@dataclass
class Roles:
    """What the protocol's keys tell of native clients: which roles are free, and tokens for room."""

    producer_free: bool = True
    consumer_free: bool = True
    not_full: int = 1


@dataclass(eq=False)
class Queue:
    """A queue: a fifo, whose reserved and buried messages are jobs, or a queue of jobs.

    `messages` is the list of the protocol, oldest first: in a queue of jobs, those which native clients have
    put and the server has not adopted yet.
    """

    model: Model
    name: str
    exists: bool = False
    type: str = ""  # if the queue was created with one
    has_jobs: bool = False  # whether it is a queue of jobs
    bound: int = 0
    is_closed: bool = False
    is_paused: bool = False
    unique: str = ""
    max_deliveries: int = 0
    dead_letter: str = ""
    messages: list[bytes] = field(default_factory=list)
    jobs: dict[int, Job] = field(default_factory=dict)
    last_id: int = 0
    produced: int = 0
    roles: Roles = field(default_factory=Roles)

    # Questions

    def in_state(self, state: str) -> list[Job]:
        """Return the jobs in a state, the next one first; the reserved ones by id."""
        orders: dict[str, Callable[[Job], Any]] = {
            READY: lambda job: job.rank,
            DELAYED: lambda job: (job.place, job.id),
            RESERVED: lambda job: job.id,
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
        """The queued messages in the order in which they are taken.

        Decided: while a native client holds the consumer role of a queue of jobs, the messages of native
        producers are not jobs yet, and only their number is visible.
        """
        return [job.message for job in self.queued] if self.has_jobs else self.messages

    @property
    def takeable(self) -> list[Job]:
        """The jobs that may be reserved, the best first."""
        return [] if self.is_paused else self.in_state(READY)

    @property
    def has_room(self) -> bool:
        return self.bound == 0 or self.length < self.bound

    def room(self) -> float:
        """How many messages may be put. None while a native consumer may be about to push :not_full."""
        if self.bound == 0:
            return float("inf")
        if not self.roles.not_full and not self.roles.consumer_free:
            return 0
        return max(0, self.bound - self.length)

    def equals(self, key: bytes) -> list[Job]:
        """Return the jobs that an equal one may not join, in a queue of unique jobs."""
        states = STATES if self.unique == "unfinished" else (READY, DELAYED)
        return [job for job in self.jobs.values() if job.key == key and job.state in states]

    # Changes

    def begin(self) -> None:
        """Do what is due, as at the beginning of each operation: adopt native messages, end delays and
        reservations."""
        if not self.exists:
            return
        if self.has_jobs and self.roles.consumer_free:
            messages, self.messages = self.messages, []
            for message in messages:
                self.store(message)
        for job in self.in_state(DELAYED):
            if job.is_due:
                job.state, job.is_due = READY, False
        ended = [job for job in self.in_state(RESERVED) if job.is_due]
        self.give_back(sorted(ended, key=lambda job: job.place), "timeouts")

    def store(self, message: bytes, **options: Any) -> Job:
        """Add a job. It is let in whether there is room or not."""
        job = Job(self.model.new_id(self), message, **options)
        if job.delay:
            job.state, job.place = DELAYED, self.model.new_place()
        self.jobs[job.id] = job
        return job

    def convert(self) -> None:
        """Make this a queue of jobs. Its messages are adopted in order."""
        if self.has_jobs:
            return
        if self.type:
            raise RefusedError("TYPE")
        self.has_jobs = True
        self.begin()

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
                job.state, job.place = BURIED, self.model.new_place()
                spent.append(job)
            elif self.has_jobs:
                job.state = READY
            else:
                del self.jobs[job.id]
                to_list.append(job)
        self.messages = [job.message for job in sorted(to_list, key=_by_id)] + self.messages
        for job in sorted(spent, key=_by_id) if self.dead_letter else []:
            self.move_to_dead_letters(job)

    def is_spent(self, job: Job) -> bool:
        """Whether the job has been delivered as often as it may."""
        return 0 < self.max_deliveries <= job.counts["reserves"]

    def move_to_dead_letters(self, job: Job) -> None:
        """Move a buried job to the dead letters, unless that queue does not take it."""
        if not self.model.queue(self.dead_letter).exists:
            self.model.create(self.dead_letter)
        dead = self.model.queues[self.dead_letter]
        if not dead.is_closed and (dead.has_jobs or dead.roles.producer_free):
            if dead.has_jobs:
                if not (dead.unique and dead.equals(job.message)):
                    dead.store(job.message)
                    dead.produced += 1
            else:
                dead.messages.append(job.message)
                dead.produced += 1
            del self.jobs[job.id]

    def reserve(self, job: Job, owner: str, ttr: int | None = None) -> None:
        """Reserve a job."""
        job.state, job.is_due, job.owner, job.own_ttr = RESERVED, False, owner, ttr
        job.counts["reserves"] += 1

    def oldest(self) -> Job:
        """Return the job that the oldest message of a fifo becomes when it is reserved."""
        return Job(self.model.next_id(self), self.messages[0], ttr=0)

    def hold(self, owner: str, ttr: int | None) -> Job:
        """Reserve the oldest message of a fifo. Without a time to run, the reservation has no limit."""
        job = self.store(self.messages.pop(0), ttr=0)
        self.reserve(job, owner, ttr or 0)
        return job

    def _leave(self, job: Job) -> None:
        job.owner, job.own_ttr, job.is_due, job.place = "", None, False, 0

    def leave(self, job: Job, state: str, counter: str) -> None:
        """End a reservation, or a delay."""
        self._leave(job)
        job.counts[counter] += 1
        job.state = state
        if state != READY:
            job.place = self.model.new_place()

    def require_role(self, *, is_free: bool) -> None:
        """Refuse what needs a role that a native client holds. Jobs need none."""
        if not self.has_jobs and not is_free:
            raise RefusedError("INUSE")


class Model:
    """Queues by name, and all commands on them. A method returns the reply of a command.

    Ids are given in blocks of 64, so that they find their queue.
    """

    def __init__(self, last_block: int) -> None:
        self.queues: dict[str, Queue] = {}
        self._blocks = last_block
        self._places = 0

    def queue(self, name: str) -> Queue:
        """Return the queue of that name, which need not exist, after what is due."""
        found = self.queues.setdefault(name, Queue(self, name))
        found.begin()
        return found

    def new_id(self, queue: Queue) -> int:
        """Return the id of a new job."""
        if queue.last_id % _IDS_OF_BLOCK == 0:
            queue.last_id = self._blocks * _IDS_OF_BLOCK
            self._blocks += 1
        queue.last_id += 1
        return queue.last_id

    def next_id(self, queue: Queue) -> int:
        """Return the id that the next job of a queue will have."""
        start = self._blocks * _IDS_OF_BLOCK if queue.last_id % _IDS_OF_BLOCK == 0 else queue.last_id
        return start + 1

    def new_place(self) -> int:
        """Return a number above all others that were returned."""
        self._places += 1
        return self._places

    def _existing(self, name: str) -> Queue:
        queue = self.queue(name)
        if not queue.exists:
            raise RefusedError("NOQUEUE")
        return queue

    # Lives of queues

    def create(
        self,
        name: str,
        bound: int = 0,
        type_: str = "",
        unique: str = "",
        max_deliveries: int = 0,
        dead_letter: str = "",
    ) -> bytes:
        """PRESSURE.CREATE."""
        if self.queue(name).exists:
            raise RefusedError("EXISTS")
        type_ = "jobs" if unique or max_deliveries else type_
        self.queues[name] = Queue(
            self, name, True, type_, type_ == "jobs", bound,
            unique=unique, max_deliveries=max_deliveries, dead_letter=dead_letter,
        )  # fmt: skip
        return b"OK"

    def delete(self, name: str) -> int:
        """DEL: the jobs are gone, whatever their state is."""
        existed = self.queue(name).exists
        self.queues[name] = Queue(self, name)
        return int(existed)

    def close(self, name: str) -> bytes:
        """PRESSURE.CLOSE. Needs the producer role also in a queue of jobs."""
        queue = self._existing(name)
        if queue.is_closed:
            raise RefusedError("CLOSED")
        if not queue.roles.producer_free:
            raise RefusedError("INUSE")
        queue.is_closed = True
        return b"OK"

    def _open_for_put(self, name: str) -> Queue:
        """Return the queue for a put, which creates it."""
        queue = self.queue(name)
        if not queue.exists:
            self.create(name)
            queue = self.queues[name]
        if queue.is_closed:
            raise RefusedError("CLOSED")
        return queue

    # Puts

    def put_job(
        self,
        name: str,
        message: bytes,
        *,
        creates: bool,
        is_unique: bool = False,
        by: bytes | None = None,
        **options: Any,
    ) -> list[int]:
        """Put a job; makes the queue one of jobs. Return the ids that the reply may have."""
        queue = self._open_for_put(name) if creates else self._existing(name)
        if queue.is_closed:
            raise RefusedError("CLOSED")
        if queue.type == "fifo" or (by is not None and not queue.unique):
            raise RefusedError("TYPE")
        if queue.room() < 1:
            raise RefusedError("FULL")
        queue.convert()
        if queue.unique:
            equals = queue.equals(message if by is None else by)
        else:
            equals = [job for job in queue.queued if is_unique and job.message == message]
        if equals:
            return [job.id for job in equals]
        queue.produced += 1
        return [queue.store(message, name=by, **options).id]

    def put(self, name: str, messages: Sequence[bytes], *, creates: bool = True) -> int:
        """RPUSH, or another plain put: all messages or none. Return the length after it."""
        queue = self._open_for_put(name) if creates else self._existing(name)
        if queue.is_closed:
            raise RefusedError("CLOSED")
        room = queue.room()
        if room >= 1:
            queue.require_role(is_free=queue.roles.producer_free)
        if len(messages) > room:
            raise RefusedError("FULL")
        self._accept(queue, messages)
        return queue.length

    def add(self, name: str, messages: Sequence[bytes], *, creates: bool = True) -> int:
        """SADD: put those that are not queued, all or none. Return how many."""
        queue = self._open_for_put(name) if creates else self._existing(name)
        if queue.is_closed:
            raise RefusedError("CLOSED")
        room = queue.room()
        if room >= 1:
            queue.require_role(is_free=queue.roles.producer_free)
        elif not queue.has_jobs and not queue.roles.producer_free:
            raise RefusedError("FULL")
        if queue.unique:
            new = [message for message in dict.fromkeys(messages) if not queue.equals(message)]
        else:
            new = [message for message in dict.fromkeys(messages) if message not in queue.visible]
        if len(new) > room:
            raise RefusedError("FULL")
        self._accept(queue, new)
        return len(new)

    def _accept(self, queue: Queue, messages: Sequence[bytes]) -> None:
        for message in messages:
            if not queue.has_jobs:
                queue.messages.append(message)
            elif queue.unique and queue.equals(message):
                continue
            else:
                queue.store(message)
            queue.produced += 1

    # Takes

    def take(self, name: str, count: int = 1) -> list[bytes]:
        """SPOP, LPOP and others: take the best jobs, or the oldest messages, for good."""
        queue = self.queue(name)
        if queue.has_jobs:
            some = queue.takeable[:count]
            for job in some:
                del queue.jobs[job.id]
            return [job.message for job in some]
        if queue.messages:
            queue.require_role(is_free=queue.roles.consumer_free)
        taken, queue.messages = queue.messages[:count], queue.messages[count:]
        return taken

    def get(self, name: str) -> list[bytes]:
        """PRESSURE.GET NOWAIT: like `take`, but there must be a queue, and more to come if it is closed.

        A delayed or reserved job may still come; a buried one does not come by itself.
        """
        queue = self._existing(name)
        may_come = any(job.state != BURIED for job in queue.jobs.values())
        if queue.is_closed and not queue.messages and not may_come:
            raise RefusedError("CLOSED")
        return self.take(name)

    def remove(self, name: str, messages: Sequence[bytes]) -> int:
        """SREM: remove all queued copies. Reserved and buried jobs stay."""
        queue = self.queue(name)
        if queue.messages and queue.exists:
            queue.require_role(is_free=queue.roles.consumer_free)
        found = 0
        for message in messages:
            found += message in queue.visible
            if queue.has_jobs:
                for job in queue.queued:
                    if job.message == message:
                        del queue.jobs[job.id]
            else:
                queue.messages = [one for one in queue.messages if one != message]
        return found

    def flush(self, name: str) -> None:
        """Kestrel's flush: remove all queued messages. Decided: reserved and buried jobs are not queued."""
        queue = self.queue(name)
        if queue.has_jobs:
            for job in queue.queued:
                del queue.jobs[job.id]
        elif queue.messages:
            queue.require_role(is_free=queue.roles.consumer_free)
            queue.messages = []

    def move(self, name: str, other: str, message: bytes | None = None) -> bytes | None:
        """LMOVE the next message; or SMOVE all copies of one, unless the other queue has it already."""
        queue = self.queue(name)
        if message is None:
            head = queue.takeable[0].message if queue.takeable else None
            found = head if queue.has_jobs else queue.messages[0] if queue.messages else None
        else:
            found = message if message in queue.visible else None
        if found is None:
            return None
        queue.require_role(is_free=queue.roles.consumer_free)
        if other != name:
            (self.put if message is None else self.add)(other, [found])
        elif message is not None:
            return found
        else:
            if queue.is_closed:
                raise RefusedError("CLOSED")
            queue.require_role(is_free=queue.roles.producer_free)
        if message is None:
            self.take(name)
        else:
            self.remove(name, [found])
        if other == name:
            self._accept(queue, [found])
        return found

    # Reservations

    def heads(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return priority and id of the best job of each queue that has any; without an id it is the oldest.

        Decided: messages of a list, which have no time of their own, are older than all jobs. Only the queue
        that is chosen adopts its messages.
        """
        found = {}
        queues = {name: self.queues[name] for name in names if name in self.queues}
        for queue in queues.values():
            if any(job.is_due for job in queue.jobs.values()):
                queue.begin()
        for name, queue in queues.items():
            head = queue.takeable[0].rank if queue.takeable else None
            is_open = not queue.has_jobs or (queue.roles.consumer_free and not queue.is_paused)
            if queue.messages and is_open:
                found[name] = (min(BASE_PRIORITY, head[0]) if head else BASE_PRIORITY, 0)
            elif head:
                found[name] = head
        return found

    def reserve(self, name: str, owner: str, count: int = 1, ttr: int | None = None) -> list[Job]:
        """Reserve up to `count` jobs of one queue. Waits for nothing."""
        queue = self.queue(name)
        found: list[Job] = []
        if queue.has_jobs:
            found = queue.takeable[:count]
            for job in found:
                queue.reserve(job, owner, ttr)
        elif queue.messages:
            queue.require_role(is_free=queue.roles.consumer_free)
            found = [queue.hold(owner, ttr) for _ in queue.messages[:count]]
        return found

    def _find(self, name: str, number: int) -> Job | None:
        return self.queue(name).jobs.get(number)

    def _owned(self, name: str, number: int, owner: str) -> Job | None:
        job = self._find(name, number)
        return job if job and job.state == RESERVED and job.owner == owner else None

    def reserve_job(self, name: str, number: int, owner: str) -> Job | None:
        """beanstalkd's reserve-job: a job that nobody has reserved. Decided: also in a paused queue."""
        job = self._find(name, number)
        if not job or job.state == RESERVED:
            return None
        self.queues[name].reserve(job, owner)
        return job

    def acknowledge(self, name: str, numbers: Iterable[int], owner: str) -> int:
        """Delete jobs that the owner has reserved, or that nobody has. Return how many."""
        count = 0
        for number in numbers:
            job = self._find(name, number)
            if job and (job.state != RESERVED or job.owner == owner):
                del self.queues[name].jobs[number]
                count += 1
        return count

    def touch(self, name: str, numbers: Iterable[int], owner: str) -> int:
        """Begin the time to run again. Return for how many jobs."""
        return sum(self._owned(name, number, owner) is not None for number in numbers)

    def release(self, name: str, number: int, owner: str, priority: int | None = None, delay: int = 0) -> int:
        """Give a reserved job back. A delay, or a priority other than the base, needs a queue of jobs."""
        queue = self.queue(name)
        job = self._owned(name, number, owner)
        if not job:
            return 0
        if priority not in (None, BASE_PRIORITY) or delay:
            queue.convert()
        job.priority = job.priority if priority is None else priority
        job.delay = delay
        if queue.is_spent(job):
            queue.give_back([job], "releases")
        elif delay:
            queue.leave(job, DELAYED, "releases")
        else:
            queue.give_back([job], "releases")
        return 1

    def bury(self, name: str, number: int, owner: str, priority: int | None = None) -> int:
        """Set a reserved job aside."""
        job = self._owned(name, number, owner)
        if not job:
            return 0
        job.priority = job.priority if priority is None else priority
        self.queues[name].leave(job, BURIED, "buries")
        return 1

    def kick(self, name: str, count: int) -> int:
        """Make buried jobs ready; if there are none, delayed ones, the next to be ready first."""
        queue = self._existing(name)
        some = (queue.in_state(BURIED) or queue.in_state(DELAYED))[:count]
        queue.give_back(some, "kicks")
        return len(some)

    def kick_job(self, name: str, number: int) -> int:
        """Make one buried or delayed job ready."""
        job = self._find(name, number)
        if not job or job.state not in (BURIED, DELAYED):
            return 0
        self.queues[name].give_back([job], "kicks")
        return 1

    def pause(self, name: str, *, is_paused: bool) -> bytes:
        """Let nobody take jobs, or end that. Makes the queue one of jobs."""
        queue = self._existing(name)
        queue.convert()
        queue.is_paused = is_paused
        return b"OK"

    def give_up(self, owner: str, names: Iterable[str]) -> None:
        """A connection has ended: what it has reserved is ready again."""
        for name in names:
            queue = self.queue(name)
            queue.give_back([job for job in queue.in_state(RESERVED) if job.owner == owner])

    # Questions

    def peek(self, name: str, which: int | str) -> tuple[int, bytes] | None:
        """PEEK a job by its id, or the next one in a state.

        Decided: messages of a fifo are not jobs, and are not peeked at. A pause does not hide jobs.
        """
        if isinstance(which, int):
            job = self._find(name, which)
            return (job.id, job.message) if job else None
        some = self.queue(name).in_state(which)
        return (some[0].id, some[0].message) if some else None

    def count(self, name: str) -> int:
        """SCARD."""
        queue = self.queue(name)
        return queue.length if queue.exists else 0

    def members(self, name: str) -> list[bytes]:
        """SMEMBERS, and LRANGE of all messages."""
        queue = self.queue(name)
        return list(queue.visible) if queue.exists else []

    def describe(self, name: str, number: int) -> dict[bytes, Any] | None:
        """PRESSURE.JOB, without times that depend on the clock."""
        job = self._find(name, number)
        if not job:
            return None
        return {
            b"state": job.state.encode(),
            b"priority": job.priority,
            b"delay_ms": job.delay * 1000,
            b"ttr_ms": job.time_to_run * 1000,
            **{counter.encode(): count for counter, count in job.counts.items()},
        }

    def info(self, name: str) -> dict[bytes, Any]:
        """PRESSURE.INFO, without what native clients' roles say. All messages of a fifo are ready."""
        queue = self._existing(name)
        counts = {state.encode(): len(queue.in_state(state)) for state in STATES}
        if not queue.has_jobs:
            counts[b"ready"] = len(queue.messages)
        return {
            b"bound": queue.bound,
            b"length": queue.length,
            b"closed": int(queue.is_closed),
            b"type": b"jobs" if queue.has_jobs else b"fifo",
            b"unique": queue.unique.encode(),
            b"max_deliveries": queue.max_deliveries,
            b"dead_letter": queue.dead_letter.encode(),
            **counts,
        }
