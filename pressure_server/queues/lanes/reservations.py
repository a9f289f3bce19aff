"""Reservations: jobs that clients have reserved, and give up when they leave.

The backend knows the owner of each, so a job that is given up twice, or too late, stays as it is. If this
server dies, another one gives up its reservations (recovery.lua).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pressure_server.errors import BackendError
from pressure_server.queues.names import portions
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import ReservedJob, reserved_as
from pressure_server.queues.operations.operation import Delivery, Operation, Verb
from pressure_server.queues.operations.owners import WithoutClient

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

# Iterations of the event loop to wait, so that messages of clients that leave together go back together.
GATHER_ITERATIONS = 8
# Jobs of one operation: a call of the script has as many operations as it can do in a few milliseconds.
_AT_ONCE = 500


class Reservations:
    """The reservations of one shard that are being given up."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        # By queue: ids of jobs, how often each was reserved, and its owner. A later command on the queue must
        # find them given up.
        self.given_up: dict[bytes, list[tuple[int, int, bytes]]] = {}
        self._unconfirmed = 0
        # One for all operations: nothing depends on when their replies arrive.
        self._delivery = Delivery(0, lambda: None, self._put_back)

    def __len__(self) -> int:
        """Return how many queues have jobs that are being given up."""
        return len(self.given_up) + self._unconfirmed

    def deliver(self, operations: Iterable[Operation]) -> None:
        """Note that these operations have reserved jobs: to put these back gives them up."""
        self._delivery.add([operation for operation in operations if operation.deliveries is None])

    def undelivered(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield the jobs on their way to clients: the queue, the id, and how often it has been reserved."""
        for operation in self._delivery.undelivered:
            for job in map(ReservedJob.of, operation.results):
                yield operation.name, job.id, job.reserves

    def _put_back(self, taken: Operation) -> None:
        del self._delivery.undelivered[taken]
        # Those that the client has read stay reserved, if that does not end with its connection.
        jobs = map(ReservedJob.of, taken.results[taken.messages_handed_over :])
        self.give_up(taken.name, [(job.id, job.reserves) for job in jobs], owner_of(taken))

    def give_up(self, name: bytes, jobs: Iterable[tuple[int, int]], owner: bytes) -> None:
        """Give up jobs of a queue, together with others, but before any later command on the queue.

        Each is an id, and how often it was reserved: a later reservation does not end.
        """
        self._shard.seal(name)
        begins = not self.given_up
        self.given_up.setdefault(name, []).extend([(*job, owner) for job in jobs])
        if begins:
            self._shard.after_iterations(GATHER_ITERATIONS, self.restore)

    def restore(self) -> None:
        """Give up the jobs that have gathered."""
        for name in list(self.given_up):
            self.restore_to(name)

    def restore_to(self, name: bytes) -> None:
        """Give up the jobs of one queue that have gathered."""
        jobs = sorted(self.given_up.pop(name), reverse=True)  # by id, the latest first
        for some in portions(jobs, _AT_ONCE):
            self._shard.submit(self._lasting(verbs.GIVE_UP, name, [reserved_as(*job) for job in some]))

    def ending(self, name: bytes, jobs: list[bytes]) -> Operation:
        """Return the operation that deletes finished jobs (see DELETE_JOB), and is tried until it is done."""
        return self._lasting(verbs.DELETE_JOB, name, jobs)

    def _lasting(self, verb: Verb, name: bytes, jobs: list[bytes]) -> Operation:
        self._unconfirmed += 1
        return Operation(verb, name, jobs, len(jobs), WithoutClient(self._ended))

    def _ended(self, one: Operation) -> None:
        """Try again if the backend was away: nothing is given up or deleted twice."""
        self._unconfirmed -= 1
        if any(isinstance(error, BackendError) for error in (one.error, *one.results)):
            self._shard.when_back(lambda: self._shard.submit(self._lasting(one.verb, one.name, one.messages)))


def owner_of(operation: Operation) -> bytes:
    """Return the owner of the jobs that an operation has reserved."""
    claim = operation.messages[1 if operation.verb is verbs.RESERVE_JOB else 0]
    return claim.split(b" ", 1)[0]
