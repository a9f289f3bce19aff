"""Expiry: deletes queues that a put has created, after they have been empty and unused for some time.

The backend stores with each queue since when it is unused, so it does not matter which server looks, or when
it was started. Puts, gets and waiting clients count as use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from pressure_server.errors import BackendError
from pressure_server.log_limits import WarnOnce
from pressure_server.queues.broker import Broker
from pressure_server.queues.housekeeping import portions
from pressure_server.queues.shard import Shard
from pressure_server.text import printable

logger = logging.getLogger(__name__)

# Scans in a time to live. The first finds a queue unused, a later one deletes it: so a queue is deleted after
# 1 to 1.25 times its time to live, plus the time that two scans take.
_LOOKS = 8
# Seconds. Replaces a time to live of 0: queues may have their own.
_OTHER_TTL = 3600.0
# The least number of seconds between the beginnings of two scans.
_LEAST_INTERVAL = 0.25
# Keys in one step of a scan: those of about as many queues as one call takes.
_SCANNED = 1500
# The longest pause between two calls, in seconds. The pause is a quarter of the call's time, so that the
# backend can serve others.
_PAUSE = 0.01


class Expiry:
    """Deletes queues that are empty and unused.

    Those that a put has created after `ttl` seconds, 0 for never; others after their own time to live, if
    any.
    """

    def __init__(self, broker: Broker, ttl: float) -> None:
        self._broker = broker
        self._ttl = ttl
        self._warnings = WarnOnce(logger, "will not be deleted when it is unused")

    async def run(self) -> None:
        """Scan the queues at regular intervals, until cancelled."""
        loop = asyncio.get_running_loop()
        interval = max(_LEAST_INTERVAL, (self._ttl or _OTHER_TTL) / _LOOKS)
        while True:
            began = loop.time()
            for shard in self._broker.shards:
                shard.retry_all_waiting()
                try:
                    await self._expire_in(shard)
                except BackendError as error:
                    logger.debug("cannot look for unused queues at present: %s", error)
            await asyncio.sleep(began + interval - loop.time())

    async def _expire_in(self, shard: Shard) -> None:
        cursor, names = await shard.keys.scan(b"0", _SCANNED)
        while cursor != b"0":
            # The backend does the next step of the scan while this one's queues are expired.
            scanning = asyncio.create_task(shard.keys.scan(cursor, _SCANNED))
            try:
                await self._expire(shard, names)
            finally:
                cursor, names = await scanning
        await self._expire(shard, names)

    async def _expire(self, shard: Shard, names: Sequence[bytes]) -> None:
        loop = asyncio.get_running_loop()
        for some in portions(names):
            began = loop.time()
            results = await shard.housekeeping.expire(some, self._ttl)
            for name, result in zip(some, results, strict=True):
                if isinstance(result, BackendError):
                    # Raises BackendError if the backend is unavailable, instead of only this queue.
                    await shard.keys.command(b"PING")
                    self._warnings.warn(shard.database_number, name, result)
                elif result:
                    shown = printable(name)
                    logger.debug(
                        "queue '%s' was empty and unused, and has been deleted", shown, extra={"queue": shown}
                    )
            await asyncio.sleep(min(_PAUSE, (loop.time() - began) / 4))
