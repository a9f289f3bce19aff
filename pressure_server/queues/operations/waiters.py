"""WaiterCount: how many operations wait for messages, room or roles on all queues, and how many may."""

from __future__ import annotations

from pressure_server.queues.operations.wait import Wait


class WaiterCount:
    """The count of waiting operations, at most `limit`. Endless waits are the server's own, and unlimited."""

    def __init__(self, most: int) -> None:
        self.limit = most
        self._count = 0

    def __len__(self) -> int:
        """Return how many operations wait."""
        return self._count

    def try_add(self, wait: Wait) -> bool:
        """Count an operation that is about to wait. Return False if it may not wait, as too many do."""
        is_own = wait.waits_forever_for_role and wait.ticket is None
        if self._count >= self.limit and not is_own:
            return False
        wait.is_counted = True
        self._count += 1
        return True

    def remove(self, wait: Wait) -> None:
        """Stop counting an operation, if it was counted."""
        if wait.is_counted:
            wait.is_counted = False
            self._count -= 1
