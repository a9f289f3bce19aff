"""Restoring: what was taken for a client that has gone goes back to the head of its queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pressure_server.broker import kinds
from pressure_server.broker.delivery import Delivery
from pressure_server.broker.marked import word_of
from pressure_server.broker.names import printable
from pressure_server.broker.operation import Operation

logger = logging.getLogger(__name__)


def restoring(taken: Operation) -> Iterator[tuple[int, Operation]]:
    """The operations that put back what another one has taken.

    One for each call that has brought some, with that call's number: what came later is to go back before.
    """
    deliveries, taken.deliveries = taken.deliveries, None
    first = 0
    for delivery, end in deliveries or ():
        number, messages = delivery.number, taken.results[max(first, taken.handed) : end]
        words = map(word_of, messages) if taken.kind.marked else messages
        arguments = [b"%d" % number, *words]
        yield (
            number,
            Operation(kinds.RESTORE, taken.name, arguments, 1, _Restored(delivery, len(messages))),
        )
        first = end


class _Restored:
    """Its owner: nobody waits for it."""

    def __init__(self, delivery: Delivery, count: int) -> None:
        self._delivery = delivery
        self._count = count

    def waits(self, _operation: Operation) -> None:
        pass  # it needs no role and no room

    def completed(self, operation: Operation) -> None:
        """The backend needs to keep them no longer. Where it refuses them, they come back after a restart."""
        if operation.error is None:
            self._delivery.has_arrived()
        else:
            logger.error(
                "%d messages of queue '%s', taken for a client that has gone, cannot be put back yet: %s",
                self._count,
                printable(operation.name),
                operation.error,
            )
