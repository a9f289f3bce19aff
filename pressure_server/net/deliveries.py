"""Deliveries: replies that have been written, until the socket has taken them.

A transport takes what is written at once, and hands it on later: soon, or when the client has read what came
before. Until then the backend keeps messages in them for us, and the account of memory has their bytes.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

# Seconds between looks at those whose clients are slow to read; and so many for each, where they are many.
_PAUSE = 0.01
_PAUSE_FOR_EACH = 20e-6


class Sender(Protocol):
    """A connection with such replies."""

    def acknowledge_sent(self) -> bool:
        """Acknowledge and count what the socket has taken; whether that is all."""


class Deliveries:
    """Looks at connections until all that they have written is sent."""

    def __init__(self) -> None:
        self._fresh: dict[Sender, None] = {}
        self._slow: dict[Sender, None] = {}
        self._loop = asyncio.get_running_loop()
        self._is_looking = False

    def watch(self, sender: Sender) -> None:
        """Look at it when the loop has written; and again, while its client is slow to read."""
        if not self._fresh:
            self._loop.call_soon(self._look_at_fresh)
        self._fresh[sender] = None

    def _look_at_fresh(self) -> None:
        fresh, self._fresh = self._fresh, {}
        self._slow |= {sender: None for sender in fresh if not sender.acknowledge_sent()}
        if self._slow and not self._is_looking:
            self._is_looking = True
            self._look_later()

    def _look_later(self) -> None:
        self._loop.call_later(max(_PAUSE, _PAUSE_FOR_EACH * len(self._slow)), self._look_at_slow)

    def _look_at_slow(self) -> None:
        self._slow = {sender: None for sender in self._slow if not sender.acknowledge_sent()}
        self._is_looking = bool(self._slow)
        if self._is_looking:
            self._look_later()
