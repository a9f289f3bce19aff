"""Servers: who else works on this backend; what one that has died had taken, and not delivered, goes back.

Each counts up under its name in one hash. Whose count has been seen to stand still for long has died; it is
our own clock that says how long, so none that jumps can kill anybody. A server that was only stopped
meanwhile delivers what has gone back, too: that is doubled, and never lost.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from pressure_server.backend.link import Link
from pressure_server.broker import kinds
from pressure_server.broker.complaints import Complaints
from pressure_server.broker.names import CALLS, keys_pattern, printable
from pressure_server.errors import BackendError

if TYPE_CHECKING:
    from pressure_server.broker.database import Database

logger = logging.getLogger(__name__)

# So many looks in that time. Who has stood still for this part of it is dead, so that all is back within it.
_LOOKS = 10
_DEAD_AFTER = 0.8
# A backend out of memory refuses HSET, but not in a script that has begun to write, if only with HDEL.
_SIGN = b"redis.call('HDEL', KEYS[1], ''); return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])"


@dataclass(frozen=True)
class Neighbours:
    """Other servers on the same backend: after how many seconds without a sign one is dead.

    Where none `are_possible`, whoever is noted there has died.
    """

    timeout: float = 15.0
    are_possible: bool = True


class Servers:
    """Of one database."""

    def __init__(self, link: Link, prefix: bytes, identity: bytes, neighbours: Neighbours) -> None:
        self._link = link
        self._prefix = prefix
        self._identity = identity
        self._timeout = neighbours.timeout
        self._is_alone = not neighbours.are_possible
        self._complaints = Complaints(logger, "keeps what a server that died had taken")
        self._key = prefix + b"!servers"
        self._count = 0
        # By name: the count, and since when it stands.
        self._seen: dict[bytes, tuple[bytes, float]] = {}
        self._looked = 0.0
        self._living: asyncio.Task[None] | None = None

    def sign(self) -> tuple[bytes, ...]:
        """The command by which we say that we live; before anything else that we do there."""
        self._count += 1
        return (b"EVAL", _SIGN, b"1", self._key, self._identity, b"%d" % self._count)

    def start(self, database: Database) -> None:
        """Sign, and look at the others, until `stop`."""
        self._living = asyncio.create_task(self._live(database))

    async def stop(self) -> None:
        """Look no more."""
        if self._living is not None:
            self._living.cancel()
            await asyncio.gather(self._living, return_exceptions=True)

    async def sign_off(self) -> None:
        """We have left nothing behind. Raises BackendError."""
        await self._link.command(b"HDEL", self._key, self._identity)

    async def _live(self, database: Database) -> None:
        while True:
            try:
                await self._link.command(*self.sign())
                for name in await self._dead():
                    await self._bury(database, name)
            except BackendError as error:
                # Nobody could sign meanwhile.
                self._seen.clear()
                logger.debug("other servers cannot be looked after now: %s", error)
            await asyncio.sleep(self._timeout / _LOOKS)

    async def _dead(self) -> list[bytes]:
        found: list[bytes] = await self._link.command(b"HGETALL", self._key)
        counts = dict(zip(found[::2], found[1::2], strict=True))
        counts.pop(self._identity, None)
        if self._is_alone:
            return list(counts)
        now = monotonic()
        if now - self._looked > 2 * self._timeout / _LOOKS:
            # We have been stopped, and so may have been the others.
            self._seen.clear()
        self._looked = now
        self._seen = {
            name: self._seen[name] if self._seen.get(name, (b"", 0.0))[0] == count else (count, now)
            for name, count in counts.items()
        }
        return [name for name, (_, since) in self._seen.items() if now - since >= _DEAD_AFTER * self._timeout]

    async def _bury(self, database: Database, name: bytes) -> None:
        """Put back what the server had taken, and forget it. Raises BackendError."""
        back = queues = left = 0
        cursor = b"0"
        while True:
            cursor, keys = await self._link.command(
                b"SCAN", cursor, b"MATCH", keys_pattern(self._prefix, CALLS), b"COUNT", b"1000"
            )
            for key in keys:
                queue = key[len(self._prefix) + 1 : -len(CALLS)]
                try:
                    count = (await database.run(kinds.RECOVER, queue, [name]))[0]
                except BackendError as error:
                    await self._complaints.hear(database, queue, error)
                    left += 1
                    continue
                back += count
                queues += count > 0
            if cursor == b"0":
                break
        if left:
            return  # it is tried again
        await self._link.command(b"HDEL", self._key, name)
        self._seen.pop(name, None)
        logger.warning(
            "server '%s' has died: %d messages that it had not delivered are back in %d queues",
            printable(name),
            back,
            queues,
        )
