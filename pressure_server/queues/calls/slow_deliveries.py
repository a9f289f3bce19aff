"""Slow deliveries: cut the records of calls down to the messages that have not been delivered yet.

Otherwise one client that does not read would keep the whole record, and all messages of the call would be
delivered again if the server died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from pressure_server.queues.operations.operation import Delivery
from pressure_server.queues.operations.put_back import messages_by_delivery

# Seconds between checks.
_CHECK_EVERY = 1.0


class SlowDeliveries:
    """The deliveries of one database that are not complete; checked once a second."""

    def __init__(self, prefix: bytes, cut: Callable[[int, list[bytes]], None]) -> None:
        """Make an empty collection. `cut(number, left)` cuts the record of call `number` down to `left`.

        `left` has for each queue its base key, the number of its messages, and the messages as recovery.lua
        knows them.
        """
        self._prefix = prefix
        self._cut = cut
        # For each delivery, how many operations have messages in the record, and how many of them had not
        # received theirs at the last check.
        self._slow: dict[Delivery, tuple[int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, delivery: Delivery) -> None:
        """Check the delivery from now on, until it is complete."""
        missing = len(delivery.undelivered)
        self._slow[delivery] = missing, missing
        if self._timer is None:
            self._timer = self._loop.call_later(_CHECK_EVERY, self._check)

    def _check(self) -> None:
        before, self._slow = self._slow, {}
        for delivery, (recorded, seen) in before.items():
            missing = len(delivery.undelivered)
            if delivery.is_complete:
                continue
            if missing > recorded:
                recorded = seen = missing
            # While deliveries go on, each cut at least halves the record, so all cuts together stay cheap.
            if missing < recorded and (2 * missing <= recorded or seen == missing):
                self._cut(delivery.number, list(self._left_of(delivery)))
                recorded = missing
            self._slow[delivery] = recorded, missing
        self._timer = self._loop.call_later(_CHECK_EVERY, self._check) if self._slow else None

    def _left_of(self, delivery: Delivery) -> Iterator[bytes]:
        for operation, returning in delivery.undelivered.items():
            words = (
                dict(messages_by_delivery(operation)).get(delivery, []) if returning is None else returning
            )
            yield self._prefix + b":" + operation.name
            yield b"%d" % len(words)
            yield from words
