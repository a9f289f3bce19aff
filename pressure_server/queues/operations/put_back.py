"""Put-backs as operations: messages taken for a client that has gone return to the head of their queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.flagged import recovery_form
from pressure_server.queues.operations.operation import Delivery, Operation, Owner
from pressure_server.text import counted, printable

logger = logging.getLogger(__name__)


def messages_by_delivery(taken: Operation) -> Iterator[tuple[Delivery, list[bytes]]]:
    """Yield the messages that an operation has taken, by delivery, as recovery.lua identifies them.

    Messages that have been handed over are left out.
    """
    first = 0
    for delivery, end in taken.deliveries or ():
        messages = taken.results[max(first, taken.messages_handed_over) : end]
        yield (
            delivery,
            [recovery_form(message) for message in messages] if taken.options.has_flags else messages,
        )
        first = end


def put_back_operations(taken: Operation) -> Iterator[tuple[int, Operation]]:
    """Yield the operations that put back what `taken` has taken, each with the number of its call.

    There is one for each call that brought messages. Send those of later calls first, so that the messages
    taken first are at the head of the queue again.
    """
    for delivery, words in messages_by_delivery(taken):
        delivery.begin_put_back(taken, words)
        number, owner = delivery.number, _PutBackOwner(delivery, taken, len(words))
        yield number, Operation(verbs.PUT_BACK, taken.name, [b"%d" % number, *words], 1, owner)
    taken.deliveries = None


class _PutBackOwner(Owner):
    """The owner of a put-back, for which no client waits."""

    def __init__(self, delivery: Delivery, taken: Operation, count: int) -> None:
        self._delivery = delivery
        self._taken = taken
        self._count = count

    def completed(self, operation: Operation) -> None:
        """Note that the messages are back; if the put-back failed, they go back after a restart."""
        if operation.error is None:
            self._delivery.complete_part(self._taken)
        else:
            logger.error(
                "could not put back %s that a disconnected client had taken from queue '%s': %s; "
                "any that are missing go back after this server restarts",
                counted(self._count, "message"),
                printable(operation.name),
                operation.error,
                extra={"queue": printable(operation.name), "error": operation.error.code},
            )
