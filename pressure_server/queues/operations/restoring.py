"""Restoring: what was taken for a client that has gone goes back to the head of its queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pressure_server.queues.names import printable
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.flagged import word_of
from pressure_server.queues.operations.operation import Delivery, Operation, Owner

logger = logging.getLogger(__name__)


def brought(taken: Operation) -> Iterator[tuple[Delivery, list[bytes]]]:
    """What an operation has taken, by the calls that have brought it, as recovery.lua knows messages."""
    first = 0
    for delivery, end in taken.deliveries or ():
        messages = taken.results[max(first, taken.handed) : end]
        yield delivery, [word_of(message) for message in messages] if taken.options.flags else messages
        first = end


def restoring(taken: Operation) -> Iterator[tuple[int, Operation]]:
    """The operations that put back what another one has taken.

    One for each call that has brought some, with that call's number: what came later is to go back before.
    """
    for delivery, words in brought(taken):
        delivery.returns(taken, words)
        number, owner = delivery.number, _Restored(delivery, taken, len(words))
        yield number, Operation(verbs.PUT_BACK, taken.name, [b"%d" % number, *words], 1, owner)
    taken.deliveries = None


class _Restored(Owner):
    """Its owner: nobody waits for it."""

    def __init__(self, delivery: Delivery, taken: Operation, count: int) -> None:
        self._delivery = delivery
        self._taken = taken
        self._count = count

    def completed(self, operation: Operation) -> None:
        """The backend needs to keep them no longer. Where it refuses them, they come back after a restart."""
        if operation.error is None:
            self._delivery.has_arrived(self._taken)
        else:
            logger.error(
                "%d messages of queue '%s', taken for a client that has gone, cannot be put back yet: %s",
                self._count,
                printable(operation.name),
                operation.error,
            )
