"""Waiters: how many operations wait, for messages, room or roles, on all queues; and how many may."""

from __future__ import annotations

from pressure_server.queues.operations.wait import Wait


class Waiters:
    """`most`: how many may wait; there is no bound to what we wait for ourselves."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._count = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def enter(self, wait: Wait) -> bool:
        """An operation is to wait; whether it may."""
        if self._count >= self.most and not wait.endless:
            return False
        wait.is_counted = True
        self._count += 1
        return True

    def leave(self, wait: Wait) -> None:
        """It waits no longer, if it did."""
        if wait.is_counted:
            wait.is_counted = False
            self._count -= 1
