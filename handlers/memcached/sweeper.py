"""The sweeper: deletes dead values in the background. A flush_all only marks values as dead."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from handlers.memcached.values import Values
from pressure_server.errors import BackendError

logger = logging.getLogger(__name__)

# Seconds until the next try after an error.
_AGAIN_AFTER = 1.0


class Sweeper:
    """A listener's sweeper. It also finishes what stopped servers have left."""

    def __init__(self, values: Values) -> None:
        self._values = values

    async def sweep(self) -> None:
        """Sweep whenever a flush takes effect, until cancelled."""
        while True:
            try:
                self._values.flushed.clear()
                due = await self._values.due()
                if due == 0:
                    await self._values.sweep()
                    continue
            except BackendError as error:
                logger.debug("cannot delete flushed values now, trying again: %s", error)
                due = _AGAIN_AFTER
            with suppress(TimeoutError):
                async with asyncio.timeout(due):
                    await self._values.flushed.wait()
