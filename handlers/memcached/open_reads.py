"""Open reads: messages taken with `get q/open`, until `/close`, `/abort` or the end of the connection.

The backend keeps a record of each, so that the message is put back even if the server dies.
"""

from __future__ import annotations

from collections.abc import Iterator

from pressure_server.queues.operations.operation import Operation

# The memory for an open read besides its message, in bytes.
_COST = 1024


class OpenReads:
    """A client's open reads, at most one for each queue. `size` is their memory in bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._operations: dict[bytes, Operation] = {}

    def __contains__(self, queue: bytes) -> bool:
        """Return whether a message of the queue is open."""
        return queue in self._operations

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the queues with an open read."""
        return iter(self._operations)

    def __len__(self) -> int:
        """Return the number of open reads."""
        return len(self._operations)

    def add(self, operation: Operation) -> None:
        """Add the open read of an operation that has taken a message."""
        self._operations[operation.name] = operation
        self.size += _size_of(operation)

    def close(self, queue: bytes) -> None:
        """Acknowledge the queue's open message, if any."""
        operation = self._pop(queue)
        if operation is not None:
            operation.acknowledge()

    def abort(self, queue: bytes) -> None:
        """Put back the queue's open message, if any, to the head of the queue."""
        operation = self._pop(queue)
        if operation is not None:
            operation.put_back()

    def abort_all(self) -> None:
        """Put back all open messages, the latest first."""
        for queue in reversed(list(self._operations)):
            self.abort(queue)

    def _pop(self, queue: bytes) -> Operation | None:
        operation = self._operations.pop(queue, None)
        if operation is not None:
            self.size -= _size_of(operation)
        return operation


def _size_of(operation: Operation) -> int:
    return _COST + sum(map(len, operation.results))
