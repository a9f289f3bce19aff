"""Sweeping: what a flush_all has killed is removed in the background, and after a restart what was left."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from handlers.memcached.values import Values
from pressure_server.errors import BackendError

logger = logging.getLogger(__name__)

_AGAIN_AFTER = 1.0


class Sweeper:
    """Of one listener; at its beginning it looks what was left when servers ended."""

    def __init__(self, values: Values) -> None:
        self._values = values

    async def sweep(self) -> None:
        """Do so for ever."""
        while True:
            try:
                self._values.flushed.clear()
                due = await self._values.due()
                if due == 0:
                    await self._values.sweep()
                    continue
            except BackendError as error:
                logger.debug("dead values cannot be removed now: %s", error)
                due = _AGAIN_AFTER
            with suppress(TimeoutError):
                async with asyncio.timeout(due):
                    await self._values.flushed.wait()
