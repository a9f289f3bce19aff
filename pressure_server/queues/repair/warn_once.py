"""Warnings about queues that a background task cannot handle, each logged once."""

from __future__ import annotations

import logging

from pressure_server.errors import PressureError
from pressure_server.queues.database import Database
from pressure_server.queues.names import printable

_MOST_KEPT = 1000


class WarnOnce:
    """Warnings by one `logger` about up to 1000 queues; `left` says what is not done for such a queue."""

    def __init__(self, logger: logging.Logger, left: str) -> None:
        self._logger = logger
        self._left = left
        self._made: set[tuple[int, bytes]] = set()

    async def hear(self, database: Database, name: bytes, error: PressureError) -> None:
        """Log the queue's error, once. Raises BackendError if the backend is unavailable instead."""
        await database.command(b"PING")
        about = (database.number, name)
        if about not in self._made and len(self._made) < _MOST_KEPT:
            self._made.add(about)
            self._logger.warning("queue '%s' %s: %s", printable(name), self._left, error)
