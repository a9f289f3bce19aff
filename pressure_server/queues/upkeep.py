"""Upkeep: work on the backend that goes on in the background, whatever clients do.

Garbage of deleted queues is freed in steps that are short for the backend, libraries of functions that no
server has used for a day are deleted, and puts are refused while the backend uses too much memory.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic

from pressure_server.errors import BackendError, BackendReplyError
from pressure_server.lua.scripts import library, script_named
from pressure_server.queues.broker import Broker
from pressure_server.queues.names import garbage_key
from pressure_server.queues.shard import Shard

logger = logging.getLogger(__name__)

# Seconds between two looks for garbage, and between two steps: a step keeps the backend busy for 2
# milliseconds.
_SWEEP_EVERY = 1.0
_PAUSE = 0.003
# Each version of the server has a library of its own, and loads it when the backend does not have it.
_LIBRARIES = b"pressure_*"
_LOOK_FOR_LIBRARIES_EVERY = 3600.0
_UNUSED_FOR = 86_400.0
# Seconds between two looks at the backend's memory.
_MEASURE_EVERY = 1.0


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
    key = garbage_key(shard.prefix)
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
        """Delete the libraries that have not been used for long enough. Raises BackendError.

        Servers with another prefix may use them: these load them again.
        """
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
    """Return the fields of the backend's INFO memory: of a cluster, its fullest node's.

    Raises BackendError if no node can be reached.
    """
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
