"""Restoring: what was taken for a client that has gone goes back to the head of its queue."""

from __future__ import annotations

import logging

from pressure_server.broker import kinds
from pressure_server.broker.names import printable
from pressure_server.broker.operation import Operation

logger = logging.getLogger(__name__)


def restoring(taken: Operation) -> Operation:
    """The operation that puts back what another one has taken."""
    return Operation(kinds.RESTORE, taken.name, taken.results, 1, _Restored(taken))


class _Restored:
    """Its owner: nobody waits for it."""

    def __init__(self, taken: Operation) -> None:
        self._taken = taken

    def waits(self, _operation: Operation) -> None:
        pass  # it needs no role and no room

    def completed(self, operation: Operation) -> bool:
        """The backend needs to keep them no longer. Where it refuses them, they come back after a restart."""
        if operation.error is None:
            self._taken.delivered()
        else:
            logger.error(
                "%d messages of queue '%s', taken for a client that has gone, cannot be put back yet: %s",
                len(operation.messages),
                printable(operation.name),
                operation.error,
            )
        return True
