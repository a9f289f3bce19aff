"""Backoff: pauses between attempts to connect."""

from __future__ import annotations

import asyncio
import random

FIRST_PAUSE = 0.05
MAX_PAUSE = 2.0


class Backoff:
    """Growing pauses, in seconds: each is twice as long as the last, up to MAX_PAUSE."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE

    async def pause(self) -> None:
        """Wait. The pause is random within limits, so that servers do not reconnect in step."""
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(2 * self._pause, MAX_PAUSE)

    def reset(self) -> None:
        """Begin with the shortest pause again, after a connection has been opened."""
        self._pause = FIRST_PAUSE
