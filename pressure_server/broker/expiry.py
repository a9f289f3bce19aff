"""Expiry: queues that a put has created, and that stay empty and unused, are deleted after a while.

Since when that is so is noted with the queue, so it does not matter which server looks, or how long it has
been running. A queue is used by who puts, takes, or waits.
"""

from __future__ import annotations

import asyncio
import logging

from pressure_server.broker import kinds
from pressure_server.broker.broker import Broker
from pressure_server.broker.complaints import Complaints
from pressure_server.broker.database import Database
from pressure_server.broker.names import printable
from pressure_server.errors import BackendError

logger = logging.getLogger(__name__)

# So many looks in a time to live, at most this often, and between steps of the scan a pause, in seconds.
_LOOKS = 4
_MOST_OFTEN = 0.25
_PAUSE = 0.01


class Expiry:
    """Deletes implicit queues that are empty and have not been used for `ttl` seconds."""

    def __init__(self, broker: Broker, ttl: float) -> None:
        self._broker = broker
        self._ttl = ttl
        self._complaints = Complaints(logger, "will not be deleted where it is unused")
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look every now and then, until `stop`."""
        if self._ttl:
            self._looking = asyncio.create_task(self._look())

    def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(max(_MOST_OFTEN, self._ttl / _LOOKS))
            for database in self._broker.databases:
                database.try_all()
                try:
                    await self._expire_in(database)
                except BackendError as error:
                    logger.debug("unused queues cannot be looked for now: %s", error)

    async def _expire_in(self, database: Database) -> None:
        cursor = b"0"
        while True:
            cursor, names = await database.scan(cursor)
            for name in names:
                try:
                    expired = await database.run(kinds.EXPIRE, name, [b"%g" % self._ttl])
                except BackendError as error:
                    await self._complaints.hear(database, name, error)
                    continue
                if expired[0]:
                    logger.debug("queue '%s' was empty and unused: deleted", printable(name))
            if cursor == b"0":
                return
            await asyncio.sleep(_PAUSE)
