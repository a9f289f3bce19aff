"""Backoff: how long to wait before a connection that cannot be opened is tried again."""

from __future__ import annotations

import asyncio
import random

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0


class Backoff:
    """Pauses, in seconds: each twice as long as the last, up to the longest."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE

    async def pause(self) -> None:
        """Wait. Spread out, so that many servers do not come back in step."""
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def reset(self) -> None:
        """Begin with the shortest again: a connection has been opened."""
        self._pause = FIRST_PAUSE
