"""The queues of a backend by name: how they come and go, and what concerns several of them."""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Self

from tests.support.reference.jobs import BASE_PRIORITY, READY, Job, JobQueue
from tests.support.reference.queue import SOMEBODY, RefusedError, Tokens, require

IDS_OF_BLOCK = 64


class Queues:
    """The queues. Ids of jobs are given in blocks of 64, so that they find their queue."""

    made_of: type[JobQueue] = JobQueue

    def __init__(self, last_block: int = 0) -> None:
        self.by_name: dict[str, JobQueue] = {}
        self._blocks = last_block
        self._places = 0
        # By client, what it has popped from queues that keep it until its next pop: queues and ids.
        self.popped: dict[str, list[tuple[str, int]]] = {}
        # Who does the next operations.
        self.actor = SOMEBODY

    def copy(self) -> Self:
        """Return a copy that shares no state."""
        clone = copy(self)
        clone.by_name = {name: queue.copy() for name, queue in self.by_name.items()}
        for queue in clone.by_name.values():
            queue.home = clone
        clone.popped = {client: list(popped) for client, popped in self.popped.items()}
        return clone

    def __getitem__(self, name: str) -> JobQueue:
        """Return the queue of that name, which need not exist, after what is due."""
        queue = self.as_it_is(name)
        queue.begin()
        return queue

    def as_it_is(self, name: str) -> JobQueue:
        """Return the queue of that name, before what is due."""
        if name not in self.by_name:
            self.by_name[name] = self._absent()
        self.by_name[name].actor = self.actor
        return self.by_name[name]

    def _absent(self) -> JobQueue:
        nobody: dict[str, Any] = {"producer": b"", "consumer": b"", "tokens": Tokens(0, 0, 0, 0)}
        return self.made_of(home=self, exists=False, has_keys=False, **nobody)

    def new_id(self, queue: JobQueue) -> int:
        """Return the id of a new job."""
        if queue.last_id % IDS_OF_BLOCK == 0:
            queue.last_id = self._blocks * IDS_OF_BLOCK
            self._blocks += 1
        queue.last_id += 1
        return queue.last_id

    def new_place(self) -> int:
        """Return a number above all others that were returned."""
        self._places += 1
        return self._places

    def create(self, name: str, type_: str = "", **settings: Any) -> JobQueue:
        """Create a queue. Unique jobs and limited deliveries make it one of jobs."""
        require(not self[name].exists, "EXISTS")
        require(not self[name].has_keys, "INUSE")
        of_jobs = ("unique", "max_deliveries", "in_flight", "retry_delay", "rate")
        type_ = "jobs" if any(map(settings.get, of_jobs)) else type_
        more: dict[str, Any] = {"producer": b"", "consumer": b"", "actor": self.actor}
        self.by_name[name] = self.made_of(
            home=self, type=type_, has_jobs=type_ in ("jobs", "lifo"), **more, **settings
        )
        return self.by_name[name]

    def name_of(self, queue: JobQueue) -> str:
        """Return the name of a queue."""
        return next(name for name, one in self.by_name.items() if one is queue)

    def opened(self, name: str) -> JobQueue:
        """Return the queue for a put, which creates it."""
        return self[name] if self[name].exists else self.create(name)

    def delete(self, name: str) -> int:
        """Delete a queue with its jobs, whatever their state is. Return 1 if it existed, or 0."""
        queue = self[name]
        existed = queue.exists
        if existed:
            queue.begin_delete()
        if existed or not queue.is_left:
            self.by_name[name] = self._absent()
        return int(existed)

    def move(self, name: str, other: str, message: bytes | None = None) -> bytes | None:
        """Move a message, as `Queue.move`. The other queue is created if there is something to move."""
        queue = self[name]
        if queue.to_move(message) is None:
            return None
        require(queue.may_consume, "INUSE")
        return queue.move(self.opened(other), message)

    def redrive(self, name: str, to: str, most: int) -> int:
        """Put dead letters into the queues from which they came, or all into one. Those that do not fit stay.

        Return how many went; refuse it if none can.
        """
        dead, moved, skipped, refusal = self[name], 0, 0, ""
        dead.require_existing()
        dead.convert()
        while some := dead.in_state(READY)[skipped : skipped + most - moved]:
            jobs_of: dict[str, list[Job]] = {}
            for job in some:
                if to or job.origin:
                    jobs_of.setdefault(to or job.origin, []).append(job)
            refusal = refusal if jobs_of else "TYPE"
            for origin, jobs in jobs_of.items():
                refusals = [self._put_back(job, dead, self[origin]) for job in jobs]
                refusal = refusals[-1] if all(refusals) else refusal
                moved += refusals.count("")
            skipped += sum(job.id in dead.jobs for job in some)
        require(moved or not refusal, refusal)
        return moved

    @staticmethod
    def _put_back(job: Job, dead: JobQueue, origin: JobQueue) -> str:
        """Move a dead letter. Return why not, or nothing."""
        try:
            origin.put_back(job)
        except RefusedError as refused:
            return str(refused)
        dead.acknowledge([job.id], "")
        return ""

    def pop(self, name: str, client: str, count: int = 1) -> list[bytes]:
        """Take messages. If the queue keeps them, end what the client has popped before, and reserve them."""
        queue = self[name]
        if not queue.keeps:
            return queue.take(count)
        self.acknowledge_popped(client)
        jobs = queue.reserve(client, count, 0)
        self.popped[client] = [(name, job.id) for job in jobs]
        return [job.message for job in jobs]

    def acknowledge_popped(self, client: str, name: str | None = None) -> int:
        """End what the client has popped, all or from one queue. Return how many there were."""
        popped = self.popped.pop(client, [])
        ended = [(queue, job) for queue, job in popped if name in (None, queue)]
        self.popped[client] = [one for one in popped if one not in ended]
        return sum(self[queue].acknowledge([job], client) for queue, job in ended if self[queue].exists)

    def is_popped(self, name: str) -> bool:
        """Return whether a client has popped something from the queue, and has not acknowledged it."""
        return any(queue == name for popped in self.popped.values() for queue, _ in popped)

    def heads(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return priority and id of the best job of each queue that has any; without an id it is the oldest.

        Decided: messages of a list, which have no time of their own, are older than all jobs. Only the queue
        that is chosen adopts its messages.
        """
        found = {}
        for name in names:
            if any(job.is_due for job in self.as_it_is(name).jobs.values()):
                self.as_it_is(name).begin()  # a dead letter may make another of these queues
        for name in names:
            queue = self.as_it_is(name)
            head = queue.takeable[0].rank if queue.takeable else None
            is_open = not queue.has_jobs or (queue.tokens.consumer_free and not queue.is_paused)
            if queue.messages and is_open and queue.allowed != 0:
                found[name] = (min(BASE_PRIORITY, head[0]) if head else BASE_PRIORITY, 0)
            elif head:
                found[name] = head
        return found

    def give_up(self, owner: str, names: Iterable[str]) -> None:
        """Make ready what a connection has reserved, which has ended."""
        self.popped.pop(owner, None)
        for name in names:
            self[name].give_up(owner)
