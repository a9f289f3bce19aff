"""Peers: who else works on this backend; what one that has died had taken, and not delivered, goes back.

Each counts up under its name in one hash. Whose count has been seen to stand still for long has died; it is
our own clock that says how long, so none that jumps can kill anybody. A server that was only stopped
meanwhile may deliver what has gone back, too: that is doubled, and never lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from pressure_server.backend.link import Link
from pressure_server.errors import BackendError, BackendReplyError
from pressure_server.lua.script import Script
from pressure_server.lua.scripts import servers_script
from pressure_server.queues.names import printable, records_key

if TYPE_CHECKING:
    from pressure_server.queues.database import Database

logger = logging.getLogger(__name__)

# So many signs, and looks, in that time. Who has stood still for this part of it is dead, so that all is back
# within it.
_LOOKS = 10
_DEAD_AFTER = 0.7
# After so much of it without a sign we sign before anything else.
_LATE_AFTER = 0.5
# What the backend may refuse.
_SIGNING = "noting that this server lives"
_LOOKING = "looking for servers that have died"


@dataclass(frozen=True)
class Neighbours:
    """Other servers on the same backend: after how many seconds without a sign one is dead.

    Where none `are_possible`, whoever is noted there has died.
    """

    timeout: float = 15.0
    are_possible: bool = True


class Peers:
    """Of one database."""

    # Where those of our version sign.
    _registry = b"!peers"

    def __init__(self, link: Link, prefix: bytes, identity: bytes, neighbours: Neighbours) -> None:
        self._link = link
        self._prefix = prefix
        self._identity = identity
        self._timeout = neighbours.timeout
        self._is_alone = not neighbours.are_possible
        self._key = prefix + self._registry
        self._script = Script(servers_script())
        # What the backend refuses, and why: signing, or looking after others.
        self._refused: dict[str, BackendReplyError] = {}
        self._count = 0
        self._signed = 0.0
        # By name: what it has signed with, and since when.
        self._seen: dict[bytes, tuple[bytes, float]] = {}
        self._looked = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        # Dead servers of which the log says that not all can be put back.
        self._complained: set[bytes] = set()

    def sign(self, epoch: int | None = None) -> tuple[Script, Sequence[bytes], Sequence[bytes]]:
        """The call by which we say that we live; before anything else that we do there.

        `epoch` is that of a new connection: calls on those before are refused from then on.

        It needs what calls on queues need, EVALSHA for one: where it is refused, these may be, too.
        """
        self._count += 1
        self._signed = monotonic()
        new_epoch = b"" if epoch is None else b"%d" % epoch
        return self._call(b"sign", self._identity, b"%d %g" % (self._count, self._timeout), new_epoch)

    def is_late(self) -> bool:
        """Whether we were stopped, and may be taken for dead: what we take unsigned nobody puts back."""
        return monotonic() - self._signed > _LATE_AFTER * self._timeout

    def heard(self, refusal: BackendReplyError | None) -> None:
        """The backend has answered when we signed; or refused it."""
        self._note(_SIGNING, refusal)

    def check_readiness(self) -> None:
        """Raise BackendError where what we take would not come back if we died, or what others had taken."""
        for what, refusal in self._refused.items():
            raise BackendError(f"{what} is refused: {refusal}")

    def _note(self, what: str, refusal: BackendReplyError | None) -> None:
        """Say so in the log when it is refused, and when it is no longer."""
        if refusal is None:
            if self._refused.pop(what, None) is not None:
                logger.info("backend database %d permits it again: %s", self._link.number, what)
            return
        if what not in self._refused:
            logger.warning(
                "backend database %d refuses %s, so PRESSURE.READY fails: what a dead server had taken does "
                "not come back (%s)",
                self._link.number, what, refusal,
            )  # fmt: skip
        self._refused[what] = refusal

    def _call(
        self, verb: bytes, name: bytes, signed: bytes = b"", epoch: bytes = b""
    ) -> tuple[Script, Sequence[bytes], Sequence[bytes]]:
        keys = (self._key, self._key + b":dead:" + name, records_key(self._prefix, name))
        return self._script, keys, (verb, name, signed, epoch)

    def start(self, database: Database) -> None:
        """Sign, and look at the others, until `stop`."""
        # Each for itself: burying may take longer than we may be silent.
        self._tasks = [asyncio.create_task(self._live()), asyncio.create_task(self._look_after(database))]

    async def stop(self) -> None:
        """Look no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def sign_off(self) -> None:
        """We have left nothing behind. Raises BackendError."""
        await self._link.call(*self._call(b"leave", self._identity), once=False)

    async def _live(self) -> None:
        while True:
            if self.is_late():
                self._link.begin_epoch()
            try:
                await self._link.call(*self.sign(), once=False)
            except BackendError as error:
                # Nobody could sign meanwhile.
                self._seen.clear()
                if isinstance(error, BackendReplyError):
                    self.heard(error)
                logger.debug("we cannot sign now: %s", error)
            else:
                self.heard(None)
            await asyncio.sleep(self._timeout / _LOOKS)

    async def _look_after(self, database: Database) -> None:
        while True:
            try:
                dead = await self._dead()
                self._count_neighbours(database)
                for name, signed in dead:
                    await self._bury(database, name, signed)
                self._note(_LOOKING, None)
            except BackendError as error:
                self._seen.clear()
                if isinstance(error, BackendReplyError):
                    self._note(_LOOKING, error)
                logger.debug("other servers cannot be looked after now: %s", error)
            await asyncio.sleep(self._timeout / _LOOKS)

    def _count_neighbours(self, database: Database) -> None:
        database.neighbours = len(self._seen)

    def _complain(self, name: bytes, failed: int, why: bytes) -> None:
        if name not in self._complained:
            self._complained.add(name)
            logger.warning(
                "server '%s' has died: %d records of what it had taken cannot be put back yet: %s",
                printable(name), failed, printable(why),
            )  # fmt: skip

    async def _dead(self) -> list[tuple[bytes, bytes]]:
        found: list[bytes] = await self._link.command(b"HGETALL", self._key)
        signs = dict(zip(found[::2], found[1::2], strict=True))
        signs.pop(self._identity, None)
        if self._is_alone:
            return list(signs.items())
        now = monotonic()
        if now - self._looked > 2 * self._timeout / _LOOKS:
            # We have been stopped, or were burying, and the others may have been stopped, too.
            self._seen.clear()
        self._looked = now
        self._seen = {
            name: self._seen[name] if self._seen.get(name, (b"", 0.0))[0] == signed else (signed, now)
            for name, signed in signs.items()
        }
        return [
            (name, signed)
            for name, (signed, since) in self._seen.items()
            if now - since >= _DEAD_AFTER * max(self._timeout, _timeout_of(signed))
        ]

    async def _bury(self, database: Database, name: bytes, signed: bytes) -> None:
        """Put back what the server had taken, and forget it; unless it has signed. Raises BackendError."""
        if not await self._link.call(*self._call(b"bury", name, signed), once=False):
            return
        failed, why, counts = await self._recover(database, name)
        self._seen.pop(name, None)
        if failed:
            # It is found dead again, a while later.
            self._complain(name, failed, why)
            return
        if not await self._link.call(*self._call(b"forget", name, signed), once=False):
            return
        if counts.total():
            logger.warning(
                "server '%s' has died: %d messages that it had not delivered are back in %d queues",
                printable(name),
                counts.total(),
                sum(count > 0 for count in counts.values()),
            )
        else:
            logger.info("server '%s' has died: it had no undelivered messages", printable(name))

    async def _recover(self, database: Database, name: bytes) -> tuple[int, bytes, Counter[bytes]]:
        """Put back what a dead server had taken.

        Returns how many records could not be put back, and why; and how many messages are back, by queue.
        """
        counts: Counter[bytes] = Counter()
        more = True
        while more:
            more, failed, why, back = await database.recover(records_key(self._prefix, name))
            counts.update(back)
        return failed, why, counts


def _timeout_of(signed: bytes) -> float:
    """What the server has said of itself: after so many seconds without a sign it is dead."""
    try:
        return float(signed.partition(b" ")[2])
    except ValueError:
        return 0.0
