"""Expiry: queues that a put has created, and that stay empty and unused, are deleted after a while.

Since when that is so is noted with the queue, so it does not matter which server looks, or how long it has
been running. A put, a get, or a client that waits uses a queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from pressure_server.errors import BackendError
from pressure_server.queues.broker import Broker
from pressure_server.queues.database import Database
from pressure_server.queues.housekeeping import in_portions
from pressure_server.queues.names import printable
from pressure_server.queues.repair.warn_once import WarnOnce

logger = logging.getLogger(__name__)

# Looks in a time to live. A queue is first found unused within one of them, and deleted within another: so it
# goes after 1 to 1.25 times its time to live, and the time that two looks take.
_LOOKS = 8
# Seconds between the beginnings of two looks, at least.
_MOST_OFTEN = 0.25
# Keys that one step of the scan looks at: those of about as many queues as go in one call.
_SCANNED = 1500
# Seconds between two calls, at most. It is a quarter of what the call took, so that others are served.
_PAUSE = 0.01


class Expiry:
    """Deletes implicit queues that are empty and have not been used for `ttl` seconds."""

    def __init__(self, broker: Broker, ttl: float) -> None:
        self._broker = broker
        self._ttl = ttl
        self._complaints = WarnOnce(logger, "will not be deleted where it is unused")
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
        loop = asyncio.get_running_loop()
        interval = max(_MOST_OFTEN, self._ttl / _LOOKS)
        while True:
            began = loop.time()
            for database in self._broker.databases:
                database.try_all()
                try:
                    await self._expire_in(database)
                except BackendError as error:
                    logger.debug("unused queues cannot be looked for now: %s", error)
            await asyncio.sleep(began + interval - loop.time())

    async def _expire_in(self, database: Database) -> None:
        cursor, names = await database.scan(b"0", _SCANNED)
        while cursor != b"0":
            # The backend scans on while it is told of the last ones.
            scanning = asyncio.create_task(database.scan(cursor, _SCANNED))
            try:
                await self._expire(database, names)
            finally:
                cursor, names = await scanning
        await self._expire(database, names)

    async def _expire(self, database: Database, names: Sequence[bytes]) -> None:
        loop = asyncio.get_running_loop()
        for some in in_portions(names):
            began = loop.time()
            results = await database.housekeeping.expire(some, self._ttl)
            for name, result in zip(some, results, strict=True):
                if isinstance(result, BackendError):
                    await self._complaints.hear(database, name, result)
                elif result:
                    logger.debug("queue '%s' was empty and unused: deleted", printable(name))
            await asyncio.sleep(min(_PAUSE, (loop.time() - began) / 4))
