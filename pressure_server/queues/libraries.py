"""Libraries: deletes libraries of functions that no server has used for a day.

Each version of the server has a library of its own, and loads it when the backend does not have it.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from pressure_server.errors import BackendError
from pressure_server.lua.scripts import library
from pressure_server.queues.broker import Broker

logger = logging.getLogger(__name__)

_DAY = 86_400.0
# Seconds between two looks.
_LOOK_EVERY = 3600.0
_NAMES = b"pressure_*"


class Libraries:
    """A background task that deletes libraries of other versions."""

    def __init__(self, broker: Broker, unused_for: float = _DAY) -> None:
        """`unused_for` is for how many seconds no server must have used a library."""
        self._broker = broker
        self._unused_for = unused_for
        # Libraries that no server uses, and since when this server knows.
        self._unused: dict[bytes, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look at regular intervals, until `stop`."""
        self._task = asyncio.create_task(self._work())

    def stop(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                await self.look()
            except BackendError as error:
                logger.debug("unused libraries of functions are not deleted: %s", error)

    async def look(self) -> None:
        """Delete the libraries that have not been used for long enough. Raises BackendError.

        Servers with another prefix may use them: these load them again.
        """
        database = self._broker.default_database
        found = await database.command(b"FUNCTION", b"LIST", b"LIBRARYNAME", _NAMES)
        names = {about[about.index(b"library_name") + 1] for about in found}
        now = monotonic()
        unused = names - {library().name} - self._broker.libraries_of_peers
        self._unused = {name: self._unused.get(name, now) for name in unused}
        for name, since in self._unused.items():
            if now - since >= self._unused_for:
                await database.command(b"FUNCTION", b"DELETE", name)
                logger.info("deleted the library of functions %s, which no server uses", name.decode())
