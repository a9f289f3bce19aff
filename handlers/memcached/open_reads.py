"""Open reads: messages reserved with `get q/open`, until `/close`, `/abort` or the end of the connection."""

from __future__ import annotations

from collections.abc import Iterator

from pressure_server.queues.operations.jobs import ReservedJob

# The memory for an open read besides its message, in bytes.
_COST = 1024


class OpenReads:
    """A client's open reads, at most one for each queue. `size` is their memory in bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._jobs: dict[bytes, ReservedJob] = {}

    def __contains__(self, queue: bytes) -> bool:
        """Return whether a message of the queue is open."""
        return queue in self._jobs

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the queues with an open read."""
        return iter(self._jobs)

    def __len__(self) -> int:
        """Return the number of open reads."""
        return len(self._jobs)

    def add(self, queue: bytes, job: ReservedJob) -> None:
        """Add the open message of a queue."""
        self._jobs[queue] = job
        self.size += _size_of(job)

    def find(self, queue: bytes) -> ReservedJob | None:
        """Return the open message of the queue, if any."""
        return self._jobs.get(queue)

    def pop(self, queue: bytes) -> ReservedJob | None:
        """Remove and return the open message of the queue, if any."""
        job = self._jobs.pop(queue, None)
        if job is not None:
            self.size -= _size_of(job)
        return job


def _size_of(job: ReservedJob) -> int:
    return _COST + len(job.message)
