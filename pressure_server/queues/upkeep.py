"""Upkeep: work on the backend that goes on in the background, whatever clients do.

Garbage of deleted queues is freed in steps that are short for the backend, libraries of functions that no
server has used for a day are deleted, puts are refused while the backend uses too much memory, and queues
that a put has created are deleted after they have been empty and unused for some time (expiry).
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from pressure_server.errors import BackendError, BackendReplyError
from pressure_server.log_limits import WarnOnce
from pressure_server.lua.scripts import library, script_named
from pressure_server.queues.broker import Broker
from pressure_server.queues.names import GARBAGE, portions
from pressure_server.queues.shard import Shard
from pressure_server.text import printable

logger = logging.getLogger(__name__)

# Seconds between two looks for garbage, and between two steps, each of which takes 2 milliseconds.
_SWEEP_EVERY = 1.0
_PAUSE = 0.003
# Each version of the server has a library of its own, and loads it when the backend does not have it.
_LIBRARIES = b"pressure_*"
_LOOK_FOR_LIBRARIES_EVERY = 3600.0
_UNUSED_FOR = 86_400.0
# Seconds between two looks at the backend's memory.
_MEASURE_EVERY = 1.0
# Scans in a time to live. The first finds a queue unused, a later one deletes it: so a queue is deleted after
# 1 to 1.25 times its time to live, plus the time that two scans take.
_LOOKS = 8
# Seconds. Replaces a time to live of 0: queues may have their own.
_OTHER_TTL = 3600.0
# The least number of seconds between the beginnings of two scans.
_LEAST_INTERVAL = 0.25
# Keys in one step of a scan: one call can take about as many queues as have them.
_SCANNED = 1500
# The longest pause between two calls, in seconds. The pause is a quarter of the call's time, so that the
# backend can serve others.
_PAUSE_OF_EXPIRY = 0.01


async def sweep(broker: Broker) -> None:
    """Free large collections of deleted queues, until cancelled. This or another server goes on later."""
    while True:
        for shard in broker.shards:
            try:
                await _sweep(shard)
            except BackendError as error:
                logger.debug("database %d cannot be swept: %s", shard.database_number, error)
        await asyncio.sleep(_SWEEP_EVERY)


async def _sweep(shard: Shard) -> None:
    """Free what there is. Raise a BackendError."""
    key = shard.prefix + GARBAGE
    while True:
        if not await shard.keys.call_script(script_named("upkeep/sweep"), [key], [], once=False):
            return
        await asyncio.sleep(_PAUSE)


class Libraries:
    """The libraries of other versions."""

    def __init__(self, broker: Broker, unused_for: float = _UNUSED_FOR) -> None:
        """`unused_for` is for how many seconds no server must have used a library."""
        self._broker = broker
        self._unused_for = unused_for
        # Libraries that no server uses, by the shard on whose node they are, and since when this is known.
        self._unused: dict[tuple[Shard, bytes], float] = {}

    async def run(self) -> None:
        """Look at regular intervals, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_FOR_LIBRARIES_EVERY)
            try:
                await self.look()
            except BackendError as error:
                logger.debug("unused libraries of functions are not deleted: %s", error)

    async def look(self) -> None:
        """Delete unused libraries, which servers with another prefix may load again. Raises BackendError."""
        used, now = {library().name} | self._broker.libraries_of_peers, monotonic()
        unused: dict[tuple[Shard, bytes], float] = {}
        for shard in self._broker.default_database.shards:
            found = await shard.keys.command(b"FUNCTION", b"LIST", b"LIBRARYNAME", _LIBRARIES)
            for about in found:
                name = about[about.index(b"library_name") + 1]
                if name not in used:
                    unused[shard, name] = self._unused.get((shard, name), now)
        self._unused = unused
        for (shard, name), since in unused.items():
            if now - since >= self._unused_for:
                with suppress(BackendReplyError):  # another shard's node may be the same
                    await shard.keys.command(b"FUNCTION", b"DELETE", name)
                    logger.info("deleted the library of functions %s, which no server uses", name.decode())


async def limit_storage(broker: Broker) -> None:
    """Refuse puts while the backend uses more memory than the policy permits, until cancelled."""
    limit = broker.policy.max_stored_bytes
    stored, is_reached = 0, False
    while limit:
        try:
            stored = await stored_bytes(broker)
        except BackendError as error:
            logger.debug("the backend's memory is not known: %s", error)
        if (stored > limit) != is_reached:
            is_reached = not is_reached
            logger.warning(
                "the backend uses %d bytes: puts are %s (--max-stored-bytes %d)",
                stored,
                "refused" if is_reached else "accepted again",
                limit,
            )
        for shard in broker.shards:
            shard.limit_storage(is_reached=is_reached)
        await asyncio.sleep(_MEASURE_EVERY)


async def stored_bytes(broker: Broker) -> int:
    """Return how many bytes of memory the backend uses; a cluster's fullest node. Raises BackendError."""
    return _used(await memory_fields(broker))


async def memory_fields(broker: Broker) -> dict[str, str]:
    """Return the backend's INFO memory; a cluster's fullest node's. Raises BackendError if none is up."""
    found: list[dict[str, str]] = []
    for shard in broker.default_database.reachable_shards:
        try:
            text: bytes = await shard.keys.command(b"INFO", b"memory")
        except BackendError as error:
            reason = error
            continue
        found.append(dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line))
    if not found:
        raise reason
    return max(found, key=_used)


def _used(fields: dict[str, str]) -> int:
    return int(fields.get("used_memory", 0))


class Expiry:
    """Expiry: deletes queues that are empty and unused.

    The backend stores with each queue since when it is unused, so it does not matter which server looks, or
    when it was started. Puts, gets and waiting clients count as use.

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
            await asyncio.sleep(min(_PAUSE_OF_EXPIRY, (loop.time() - began) / 4))
