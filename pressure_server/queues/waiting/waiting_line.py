"""A waiting line: the operations that wait for the same role of a queue, first come, first served.

Pure: it knows the order of the operations and what they lack. `WaitingOperations` decides when to try them.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence

from pressure_server.queues.operations.batch import MAX_BYTES, MAX_MESSAGES
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.wait import Wait, WaitCondition

# A line's first allowance: how many of its operations are tried at once. It doubles, up to MAX_MESSAGES,
# while all of them go on.
_FIRST_ALLOWANCE = 8
# What all operations need that do not wait at a destination (`_need_of`).
_ORDINARY: tuple[bytes, ...] = ()


class WaitingLine:
    """One of the two lines of a queue. The `wait` of each operation in it says what the operation lacks.

    Conditions are counted: with 5000 in line, looking at each for every message took two thirds of the time.
    """

    __slots__ = (
        "_allowance", "_name", "_operations", "at_destinations", "conditions", "for_existence",
    )  # fmt: skip

    def __init__(self, name: bytes) -> None:
        """Make an empty line for the queue `name`."""
        self._name = name
        self._operations: list[Operation] = []
        self._allowance = _FIRST_ALLOWANCE
        # The conditions for which operations wait, with the queue that does not meet them, and how many do.
        self.conditions: dict[tuple[bytes, WaitCondition], int] = {}
        self.for_existence = 0  # operations that have found no queue, and wait for one
        self.at_destinations = 0  # moves that have found a message, and wait at their destination

    def __len__(self) -> int:
        """Return how many operations wait."""
        return len(self._operations)

    def __iter__(self) -> Iterator[Operation]:
        """Return an iterator over the operations, in their order."""
        return iter(self._operations)

    @property
    def next(self) -> Operation | None:
        """The operation that is tried first; None if none waits."""
        return self._operations[0] if self._operations else None

    def add(self, operation: Operation) -> None:
        """Add an operation, in the order in which commands have come."""
        insort(self._operations, operation, key=_arrival_of)
        self._count(operation, 1)

    def note_missing(self, operation: Operation) -> None:
        """Note that an operation for which a queue was assumed to exist waits for the queue's creation."""
        wait = _wait_of(operation)
        if wait.condition is not None and wait.found_queue and not operation.options.must_exist:
            wait.found_queue = False
            self.for_existence += 1

    def remove(self, operation: Operation) -> bool:
        """Remove an operation; return False if it is not in the line."""
        try:
            self._operations.remove(operation)
        except ValueError:
            return False
        self._count(operation, -1)
        return True

    def clear(self) -> list[Operation]:
        """Remove and return all operations."""
        gone, self._operations = self._operations, []
        self.conditions.clear()
        self.for_existence = self.at_destinations = 0
        return gone

    def take_first(self, served: int, on_admitted: Callable[[], None]) -> list[Operation]:
        """Remove and return the next operations to try: the line's allowance, and `served` more.

        Puts count in commands, other operations one each. Moves that wait at a destination have an allowance
        of their own there, because what helps one of them need not help those before it. An operation whose
        ticket is in use at another queue stays; `on_admitted` is called when it can be tried.
        """
        left_for = {_ORDINARY: min(self._allowance + served, MAX_MESSAGES)}
        size = 0
        first: list[Operation] = []
        passed_over: list[Operation] = []
        looked_at = 0
        for operation in self._operations:
            if (left_for[_ORDINARY] <= 0 and not self.at_destinations) or size > MAX_BYTES:
                break
            looked_at += 1
            wait, need = _wait_of(operation), _need_of(operation)
            left = left_for.setdefault(need, self._allowance)
            if (
                left <= 0
                or len(first) >= MAX_MESSAGES
                or (wait.ticket is not None and not wait.ticket.try_acquire(wait, on_admitted))
            ):
                passed_over.append(operation)
                continue
            self._count(operation, -1)
            wait.condition, wait.has_unsent = None, False
            first.append(operation)
            if operation.verb.puts:
                # A connection's puts are one operation: send only as many of its commands as may find room.
                operation.commands_in_call = min(left, operation.verb.units_left(operation))
                size += operation.bytes_in_call()
                left -= operation.commands_in_call
            else:
                left -= 1
            left_for[need] = left
        self._operations[:looked_at] = passed_over
        return first

    def requeue(self, again: Sequence[Operation], new: Sequence[Operation], ended_count: int) -> bool:
        """Return operations tried in vain to the head of the line, and add the new ones.

        `ended_count` operations have gone on. Return whether to try more at once.
        """
        in_vain = {_need_of(operation) for operation in again}
        rest = bool(self._operations) and (
            not in_vain
            or (self.at_destinations > 0 and any(_need_of(one) not in in_vain for one in self._operations))
        )
        self._operations[:0] = again
        for operation in again:
            self._count(operation, 1)
        for operation in new:
            self.add(operation)
        was_cut = any(_wait_of(operation).has_unsent for operation in again)
        if was_cut or (ended_count and rest):
            self._allowance = min(MAX_MESSAGES, 2 * self._allowance)
            return True
        if again:
            self._allowance = max(_FIRST_ALLOWANCE, ended_count)
        return False

    def _count(self, operation: Operation, change: int) -> None:
        wait = _wait_of(operation)
        if wait.condition is not None:
            condition = (wait.destination if wait.at_destination else self._name, wait.condition)
            self.at_destinations += change if wait.at_destination else 0
            count = self.conditions.get(condition, 0) + change
            if count:
                self.conditions[condition] = count
            else:
                del self.conditions[condition]
        if not (operation.options.must_exist or wait.found_queue):
            self.for_existence += change


def _need_of(operation: Operation) -> tuple[bytes, ...]:
    """Return what a move shares with others that wait at its destination; nothing for other operations."""
    return tuple(operation.messages) if _wait_of(operation).at_destination else _ORDINARY


def _arrival_of(operation: Operation) -> int:
    return _wait_of(operation).arrival


def _wait_of(operation: Operation) -> Wait:
    if operation.wait is None:
        raise ValueError(f"{operation.verb!r} cannot wait")
    return operation.wait
