"""Acknowledgements: when queues tell the backend that what it keeps of their calls has arrived."""

from __future__ import annotations

import asyncio
from typing import Protocol

# Seconds. What has not been acknowledged comes back when the server dies, though it may have arrived. The
# next call on the queue does it, too, and at no cost: so it waits a little for that.
_AFTER = 0.02


class Acknowledging(Protocol):
    """A queue with something to acknowledge."""

    def acknowledge(self) -> None:
        """Do it, if there is still something."""


class Acknowledgements:
    """Those of all queues of a database, with one timer. Each is due after 1 to 2 times `_AFTER`."""

    def __init__(self) -> None:
        self._due: list[Acknowledging] = []
        self._later: list[Acknowledging] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, queue: Acknowledging) -> None:
        """Have it acknowledge in a moment."""
        self._later.append(queue)
        if self._timer is None:
            self._timer = self._loop.call_later(_AFTER, self._tick)

    def settle(self) -> None:
        """Have all acknowledge at once."""
        due, self._due, self._later = self._due + self._later, [], []
        for queue in due:
            queue.acknowledge()

    def _tick(self) -> None:
        due, self._due, self._later = self._due, self._later, []
        self._timer = self._loop.call_later(_AFTER, self._tick) if self._due else None
        for queue in due:
            queue.acknowledge()
