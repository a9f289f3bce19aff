"""Restoring: what was taken for a client that has gone goes back to the head of its queue."""

from __future__ import annotations

import logging

from pressure_server.broker import kinds
from pressure_server.broker.names import printable
from pressure_server.broker.operation import Operation

logger = logging.getLogger(__name__)


def restoring(taken: Operation) -> Operation:
    """The operation that puts back what another one has taken."""
    return Operation(kinds.RESTORE, taken.name, taken.results, 1, _Restored())


class _Restored:
    """Its owner: nobody waits for it."""

    def waits(self, _operation: Operation) -> None:
        pass  # it needs no role and no room

    def completed(self, operation: Operation) -> bool:
        """Messages that could not be put back are lost: say so."""
        if operation.error is not None:
            logger.error(
                "%d messages of queue '%s', taken for a client that has gone, could not be put back: %s",
                len(operation.messages),
                printable(operation.name),
                operation.error,
            )
        return True
