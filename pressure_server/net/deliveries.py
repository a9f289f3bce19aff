"""Deliveries: track written replies until the socket has accepted them.

A transport buffers replies if the client reads slowly. While a reply is buffered, the backend keeps its
messages for this server, and its bytes count in the memory account.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

# Seconds between checks of connections with slow clients: the minimum, and the time per connection.
_PAUSE = 0.01
_PAUSE_FOR_EACH = 20e-6


class Sender(Protocol):
    """A connection with written replies."""

    def acknowledge_sent(self) -> bool:
        """Acknowledge and count what the socket has accepted. Return whether that is everything."""


class Deliveries:
    """The connections with written replies that the socket may not have accepted yet."""

    def __init__(self) -> None:
        self._fresh: dict[Sender, None] = {}
        self._slow: dict[Sender, None] = {}
        self._loop = asyncio.get_running_loop()
        self._is_looking = False

    def watch(self, sender: Sender) -> None:
        """Check the connection in the loop's next iteration, and regularly until everything is sent."""
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
