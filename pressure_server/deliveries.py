"""Deliveries: replies that have been written, until the socket has taken them.

A transport takes what is written at once, and hands it on later: soon, or when the client has read what came
before. Until then the backend keeps messages in them for us, and the account of memory has their bytes.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

# Seconds between looks at those whose clients are slow to read: so many, and for each of them so many.
_PAUSE = 0.05
_PAUSE_FOR_EACH = 20e-6


class Sender(Protocol):
    """A connection with such replies."""

    def look_what_was_sent(self) -> bool:
        """Acknowledge and count what the socket has taken; whether that is all."""


class Deliveries:
    """Looks at connections until all that they have written is sent."""

    def __init__(self) -> None:
        self._senders: dict[Sender, None] = {}
        self._loop = asyncio.get_running_loop()
        self._is_looking = False

    def watch(self, sender: Sender) -> None:
        """Look at it, for the first time when the loop has written."""
        if sender in self._senders:
            return
        self._senders[sender] = None
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._senders = {sender: None for sender in self._senders if not sender.look_what_was_sent()}
        self._is_looking = bool(self._senders)
        if self._is_looking:
            self._loop.call_later(_PAUSE + _PAUSE_FOR_EACH * len(self._senders), self._look)
