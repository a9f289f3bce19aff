"""Peers: the other servers on this backend, and recovery of messages that a dead one had taken.

A server whose counter, which its heartbeats increment, has stood still for too long is dead. Observers
measure the time with their own monotonic clock, so a clock that jumps does no harm. A server that was only
suspended may deliver messages that have been put back: these come twice, but none is lost.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from pressure_server.backend.link import Link
from pressure_server.backend.requests import AwaitedRequest, Channel
from pressure_server.backend.resp import Received
from pressure_server.errors import BackendError, BackendReplyError
from pressure_server.lua.scripts import Script, library, script_named
from pressure_server.queues.calls.direct import recover
from pressure_server.queues.names import records_key
from pressure_server.queues.shard import Shard
from pressure_server.text import counted, printable

logger = logging.getLogger(__name__)

# Heartbeats, and searches for dead peers, per timeout. A peer is dead after this part of the timeout without
# a heartbeat, so that its messages are back when the timeout ends.
_ROUNDS_PER_TIMEOUT = 10
_DEAD_AFTER = 0.7
# After this part of the timeout without a heartbeat, one is sent before anything else.
_OVERDUE_AFTER = 0.5
# What the backend may refuse, as the log names it.
_HEARTBEAT = "this server's heartbeat"
_SEARCH = "the search for dead servers"


@dataclass(frozen=True)
class PeerDetection:
    """How to recognise dead peers: one is dead after 0.7 of `timeout` seconds without a heartbeat.

    If not `peers_possible` (an embedded backend), every other server in the hash is dead.
    """

    timeout: float = 15.0
    peers_possible: bool = True


class Peer(NamedTuple):
    """A peer: for how many seconds its heartbeat has not changed, and its --proxy-timeout in seconds."""

    name: str
    silent: float
    timeout: float
    has_same_library: bool


class Peers:
    """The peers on one shard of a database."""

    def __init__(
        self,
        link: Link,
        prefix: bytes,
        identity: bytes,
        peer_detection: PeerDetection,
        templates: bytes = b"",
    ) -> None:
        """Prepare. The heartbeats have the `templates` of queues (lua/core/life.lua)."""
        self._templates = templates
        self._link = link
        self._prefix = prefix
        self._identity = identity
        self._timeout = peer_detection.timeout
        self._is_alone = not peer_detection.peers_possible
        self._key = _peers_key(prefix)
        self._script = script_named("upkeep/servers")
        # What the backend refuses at present, and its error.
        self._refused: dict[str, BackendReplyError] = {}
        self._count = 0
        # After this time peers may take this server for dead. Nobody would put back messages that it takes
        # then, before its next heartbeat.
        self.overdue_at = 0.0
        # By server: the value of its heartbeat, and when this server saw that value first.
        self._seen: dict[bytes, tuple[bytes, float]] = {}
        # Servers whose processes have ended, as their supervisor knows.
        self._ended: set[bytes] = set()
        self._is_to_search = asyncio.Event()
        self._last_search = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        # Dead servers with records that cannot be put back; the log says so once for each.
        self._warned: set[bytes] = set()

    def heartbeat(self, epoch: int | None = None) -> tuple[Script, Sequence[bytes], Sequence[bytes]]:
        """Return the call that is the heartbeat: the first on each new connection, whose number is `epoch`.

        The backend then refuses calls of earlier ones. It needs the rights of scripts, as calls on queues
        do.
        """
        self._count += 1
        self.overdue_at = monotonic() + _OVERDUE_AFTER * self._timeout
        new_epoch = b"" if epoch is None else b"%d" % epoch
        signed = b"%d %g %b %b" % (self._count, self._timeout, library().name, self._templates)
        return self._call(b"sign", self._identity, signed, new_epoch)

    def change_templates(self, templates: bytes) -> None:
        """Send a heartbeat with other templates: the calls that are sent after this use them."""
        self._templates = templates
        script, keys, arguments = self.heartbeat()

        def write(channel: Channel, answered: Received) -> None:
            channel.call(script, keys, arguments, answered)

        # If it fails, the next heartbeat has them, too.
        self._link.send(AwaitedRequest(write, lambda _: None, changes=True))

    def heartbeat_answered(self, refusal: BackendReplyError | None) -> None:
        """Note that the backend has answered a heartbeat, or refused it."""
        self._log_refusal(_HEARTBEAT, refusal)

    @property
    def libraries(self) -> set[bytes]:
        """The names of the libraries that the peers use, as of the last search for dead ones."""
        return {name for signed, _ in self._seen.values() for name in signed.split(b" ")[2:3]}

    def seen(self) -> list[Peer]:
        """Return the peers, as of the last search for dead ones."""
        now, own = monotonic(), library().name
        return [
            Peer(printable(name), now - since, _timeout_of(signed), own in signed.split(b" ")[2:3])
            for name, (signed, since) in self._seen.items()
        ]

    def check_readiness(self) -> None:
        """Raise BackendError if messages taken by this server, or by a dead peer, would not be put back."""
        for what, refusal in self._refused.items():
            raise BackendError(f"{what} is refused: {refusal}")

    def _log_refusal(self, what: str, refusal: BackendReplyError | None) -> None:
        """Log when the backend begins to refuse something, and when it no longer does."""
        if refusal is None:
            if self._refused.pop(what, None) is not None:
                logger.info("%s no longer refuses %s", self._link.name, what)
            return
        if what not in self._refused:
            logger.warning(
                "%s refuses %s, so it is not ready (PRESSURE.READY): messages taken by a server that "
                "dies are not put back (%s)",
                self._link.name, what, refusal,
            )  # fmt: skip
        self._refused[what] = refusal

    def _call(
        self, verb: bytes, name: bytes, signed: bytes = b"", epoch: bytes = b""
    ) -> tuple[Script, Sequence[bytes], Sequence[bytes]]:
        keys = (self._key, self._key + b":dead:" + name, records_key(self._prefix, name))
        return self._script, keys, (verb, name, signed, epoch)

    def start(self, shard: Shard) -> None:
        """Send heartbeats, and look for dead peers, until `stop`."""
        # Two tasks: putting back may take longer than the time allowed between heartbeats.
        self._tasks = [
            asyncio.create_task(self._send_heartbeats()),
            asyncio.create_task(self._search_dead(shard)),
        ]

    def note_end(self, name: bytes) -> None:
        """Note that a server's process has ended: it need not be watched for missing heartbeats."""
        self._ended.add(name)
        self._is_to_search.set()

    async def stop(self) -> None:
        """Stop sending heartbeats and looking for dead peers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def unregister(self) -> None:
        """Remove this server from the hash, as it leaves nothing behind. Raises BackendError."""
        await self._link.call(*self._call(b"leave", self._identity), once=False)

    async def _send_heartbeats(self) -> None:
        while True:
            if self.overdue_at < monotonic():
                self._link.begin_epoch()
            try:
                await self._link.call(*self.heartbeat(), once=False)
            except BackendError as error:
                # Peers could not send heartbeats in the meantime either.
                self._seen.clear()
                if isinstance(error, BackendReplyError):
                    self.heartbeat_answered(error)
                logger.debug("the heartbeat failed: %s", error)
            else:
                self.heartbeat_answered(None)
            await asyncio.sleep(self._timeout / _ROUNDS_PER_TIMEOUT)

    async def _search_dead(self, shard: Shard) -> None:
        while True:
            try:
                dead = await self._dead()
                shard.peer_count = len(self._seen)
                for name, signed in dead:
                    await self._recover_peer(shard, name, signed)
                self._log_refusal(_SEARCH, None)
            except BackendError as error:
                self._seen.clear()
                if isinstance(error, BackendReplyError):
                    self._log_refusal(_SEARCH, error)
                logger.debug("the search for dead servers failed: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout / _ROUNDS_PER_TIMEOUT):
                    await self._is_to_search.wait()
            self._is_to_search.clear()

    async def _dead(self) -> list[tuple[bytes, bytes]]:
        found: list[bytes] = await self._link.command(b"HGETALL", self._key)
        signs = dict(zip(found[::2], found[1::2], strict=True))
        signs.pop(self._identity, None)
        if self._is_alone:
            return list(signs.items())
        now = monotonic()
        if now - self._last_search > 2 * self._timeout / _ROUNDS_PER_TIMEOUT:
            # This server was suspended, or was putting back; its peers may have been suspended, too.
            self._seen.clear()
        self._last_search = now
        self._seen = {
            name: self._seen[name] if self._seen.get(name, (b"", 0.0))[0] == signed else (signed, now)
            for name, signed in signs.items()
        }
        self._ended &= signs.keys()
        return [
            (name, signed)
            for name, (signed, since) in self._seen.items()
            if name in self._ended or now - since >= _DEAD_AFTER * max(self._timeout, _timeout_of(signed))
        ]

    async def _recover_peer(self, shard: Shard, name: bytes, signed: bytes) -> None:
        """Put back what a dead server had taken, and remove it, unless it has sent a heartbeat since."""
        if not await self._link.call(*self._call(b"bury", name, signed), once=False):
            return
        counts: Counter[bytes] = Counter()
        more = True
        while more:
            more, failed, why, back = await recover(shard, records_key(self._prefix, name))
            counts.update(back)
        self._seen.pop(name, None)
        if failed:
            # The server will be found dead again, and this is tried again.
            if name not in self._warned:
                self._warned.add(name)
                logger.warning(
                    "server '%s' has died: %s of its messages cannot be put back yet; trying again (%s)",
                    printable(name), counted(failed, "record"), printable(why),
                )  # fmt: skip
            return
        if not await self._link.call(*self._call(b"forget", name, signed), once=False):
            return
        if counts.total():
            logger.warning(
                "server '%s' has died: %s, not delivered or not acknowledged, went back to %s",
                printable(name),
                counted(counts.total(), "message"),
                counted(sum(count > 0 for count in counts.values()), "queue"),
            )
        else:
            logger.info("server '%s' has died: it had no undelivered messages", printable(name))


def _peers_key(prefix: bytes) -> bytes:
    return prefix + b"!peers"


async def have_equal_templates(shard: Shard) -> bool:
    """Return whether all servers of a shard have the same settings of queues by name. Raises BackendError."""
    found: list[bytes] = await shard.keys.command(b"HGETALL", _peers_key(shard.prefix))
    return len({b"".join(signed.split(b" ", 3)[3:]) for signed in found[1::2]}) < 2


def _timeout_of(signed: bytes) -> float:
    """Return the timeout in seconds that the server has written with its heartbeat; 0 if it is unreadable."""
    try:
        return float(signed.split(b" ")[1])
    except (ValueError, IndexError):
        return 0.0
