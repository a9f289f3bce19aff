"""Slow deliveries: the record of a call is cut down to what has not arrived yet.

Otherwise all that a call has brought would come back if the server died, for one client that does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from pressure_server.queues.operations.operation import Delivery
from pressure_server.queues.operations.restoring import brought

# Seconds between looks.
_PAUSE = 1.0


class SlowDeliveries:
    """Those of one database."""

    def __init__(self, prefix: bytes, cut: Callable[[int, list[bytes]], None]) -> None:
        """`cut` cuts the record of a call down to messages: base keys, each with a count and the words."""
        self._prefix = prefix
        self._cut = cut
        # Of how many operations the record has messages, and how many of these were missing at the last look.
        self._slow: dict[Delivery, tuple[int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, delivery: Delivery) -> None:
        """The delivery has begun."""
        missing = len(delivery.undelivered)
        self._slow[delivery] = missing, missing
        if self._timer is None:
            self._timer = self._loop.call_later(_PAUSE, self._look)

    def _look(self) -> None:
        before, self._slow = self._slow, {}
        for delivery, (recorded, seen) in before.items():
            missing = len(delivery.undelivered)
            if delivery.is_complete:
                continue
            if delivery.is_held or missing > recorded:
                recorded = seen = missing
            # While many arrive, each cut halves the record: all cuts cost no more than the first.
            if missing < recorded and (2 * missing <= recorded or seen == missing):
                self._cut(delivery.number, list(self._left_of(delivery)))
                recorded = missing
            self._slow[delivery] = recorded, missing
        self._timer = self._loop.call_later(_PAUSE, self._look) if self._slow else None

    def _left_of(self, delivery: Delivery) -> Iterator[bytes]:
        for operation, returning in delivery.undelivered.items():
            words = dict(brought(operation)).get(delivery, []) if returning is None else returning
            yield self._prefix + b":" + operation.name
            yield b"%d" % len(words)
            yield from words
