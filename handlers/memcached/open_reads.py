"""Open reads: what a client has taken by `get q/open`, until it says `/close`, or `/abort`, or leaves.

The backend keeps each of them for us, so that it comes back when the server dies, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from pressure_server.queues.operations.operation import Operation

# What an open read takes beside its message, in bytes.
_COST = 1024


class OpenReads:
    """Those of one client, one of each queue. `size` is what they take in memory, in bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._operations: dict[bytes, Operation] = {}

    def __contains__(self, queue: bytes) -> bool:
        """Whether a message of the queue is open."""
        return queue in self._operations

    def __iter__(self) -> Iterator[bytes]:
        """The queues of which one is open."""
        return iter(self._operations)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._operations)

    def add(self, operation: Operation) -> None:
        """Its message has been read, and is open."""
        self._operations[operation.name] = operation
        self.size += _size_of(operation)

    def close(self, queue: bytes) -> None:
        """The client is done with the message of that queue, if any."""
        operation = self._pop(queue)
        if operation is not None:
            operation.acknowledge()

    def abort(self, queue: bytes) -> None:
        """The message of that queue, if any, goes back to its head."""
        operation = self._pop(queue)
        if operation is not None:
            operation.put_back()

    def abort_all(self) -> None:
        """All go back; what was read last goes first, to be behind what was read before."""
        for queue in reversed(list(self._operations)):
            self.abort(queue)

    def _pop(self, queue: bytes) -> Operation | None:
        operation = self._operations.pop(queue, None)
        if operation is not None:
            self.size -= _size_of(operation)
        return operation


def _size_of(operation: Operation) -> int:
    return _COST + sum(map(len, operation.results))
