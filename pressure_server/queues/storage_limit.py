"""The storage limit: the server refuses puts while the backend uses more memory than it may."""

from __future__ import annotations

import asyncio
import logging
import re

from pressure_server.errors import BackendError
from pressure_server.queues.broker import Broker

logger = logging.getLogger(__name__)

# Seconds between two looks at the backend's memory.
_INTERVAL = 1.0


class StorageLimit:
    """Looks at the backend's memory once a second, if the policy limits it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._limit = broker.policy.max_stored_bytes
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look at regular intervals, until `stop`."""
        if self._limit:
            self._task = asyncio.create_task(self._work())

    def stop(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        stored, is_reached = 0, False
        while True:
            try:
                stored = await stored_bytes(self._broker)
            except BackendError as error:
                logger.debug("the backend's memory is not known: %s", error)
            if (stored > self._limit) != is_reached:
                is_reached = not is_reached
                logger.warning(
                    "the backend uses %d bytes: puts are %s (--max-stored-bytes %d)",
                    stored,
                    "refused" if is_reached else "accepted again",
                    self._limit,
                )
            for database in self._broker.databases:
                database.limit_storage(is_reached=is_reached)
            await asyncio.sleep(_INTERVAL)


async def stored_bytes(broker: Broker) -> int:
    """Return how many bytes of memory the backend uses. Raises BackendError."""
    text: bytes = await broker.default_database.command(b"INFO", b"memory")
    found = re.search(rb"used_memory:(\d+)", text)
    return int(found[1]) if found else 0
