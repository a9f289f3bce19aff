"""Warnings about queues that a background task cannot handle, each logged once."""

from __future__ import annotations

import logging

from pressure_server.errors import PressureError
from pressure_server.queues.database import Database
from pressure_server.queues.names import printable

_MAX_KEPT = 1000


class WarnOnce:
    """Warnings by one `logger` about up to 1000 queues; `consequence` says what is not done for the queue."""

    def __init__(self, logger: logging.Logger, consequence: str) -> None:
        self._logger = logger
        self._left = consequence
        self._warned: set[tuple[int, bytes]] = set()

    async def warn(self, database: Database, name: bytes, error: PressureError) -> None:
        """Log the queue's error, once. Raises BackendError if the backend is unavailable instead."""
        await database.command(b"PING")
        about = (database.database_number, name)
        if about not in self._warned and len(self._warned) < _MAX_KEPT:
            self._warned.add(about)
            shown = printable(name)
            fields = {"queue": shown, "error": error.code}
            self._logger.warning("queue '%s' %s: %s", shown, self._left, error, extra=fields)
