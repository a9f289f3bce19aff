"""The sweeper: frees large collections of deleted queues in steps that are short for the backend."""

from __future__ import annotations

import asyncio
import logging

from pressure_server.errors import BackendError
from pressure_server.lua.scripts import sweep_script
from pressure_server.queues.broker import Broker
from pressure_server.queues.database import Database
from pressure_server.queues.names import garbage_key

logger = logging.getLogger(__name__)

# Seconds between two looks for garbage, and between two steps: a step keeps the backend busy for 2
# milliseconds.
_LOOK_EVERY = 1.0
_PAUSE = 0.003


class Sweeper:
    """A background task that sweeps all databases in use."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sweep at regular intervals, until `stop`."""
        self._task = asyncio.create_task(self._work())

    def stop(self) -> None:
        """Stop sweeping: this or another server goes on later."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        while True:
            for database in self._broker.databases:
                try:
                    await _sweep(database)
                except BackendError as error:
                    logger.debug("database %d cannot be swept: %s", database.database_number, error)
            await asyncio.sleep(_LOOK_EVERY)


async def _sweep(database: Database) -> None:
    """Free what there is. Raise a BackendError."""
    key = garbage_key(database.prefix)
    while True:
        if not await database.call_script(sweep_script(), [key], [], once=False):
            return
        await asyncio.sleep(_PAUSE)
