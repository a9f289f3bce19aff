"""The backend of a shard as the broker sees it: one node at a time, found by a route.

Each database has a link of its own; all databases share one watch, one durability and one set of turns.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable
from functools import partial

from pressure_server.backend.address import BackendAddress
from pressure_server.backend.durability import Durability, Level
from pressure_server.backend.link import Link, Timeouts
from pressure_server.backend.replica_waits import ReplicaWaits
from pressure_server.backend.route import Route, route_to
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.errors import BackendError, BackendRefusedError
from pressure_server.lua.scripts import library

logger = logging.getLogger(__name__)

# Seconds between checks of the policy, which may change while the backend runs.
_LOOK_EVERY = 5.0
# Policies that evict any key. Others evict only keys with a TTL, and no key of a queue has one.
_OF_ANY_KEY = re.compile(rb"^maxmemory_policy:(allkeys-\w+)", re.MULTILINE)


def has_tag(prefix: bytes) -> bool:
    """Return whether keys with this prefix are all in the same slot of a cluster: by a name in braces."""
    _, brace, rest = prefix.partition(b"{")
    return bool(brace) and rest.find(b"}") > 0


class EvictionCheck:
    """Periodic checks that the backend does not evict keys of queues when its memory is full.

    Eviction loses messages, and a queue that loses one of its keys is stuck. The server does not start with a
    backend that may evict keys, and is not ready if the policy changes later; --allow-eviction permits it.
    """

    def __init__(self, route: Route, *, is_allowed: bool) -> None:
        self._route = route
        self._is_allowed = is_allowed
        self._policy = ""
        self._looking: asyncio.Task[None] | None = None

    async def start(self, link: Link) -> None:
        """Check now, if the backend can be reached, and then periodically. Raises as check_readiness."""
        if link.is_up:
            await self._look(link)
            self.check_readiness()
        self._looking = asyncio.create_task(self._look_again(link))

    def stop(self) -> None:
        """Stop checking."""
        if self._looking is not None:
            self._looking.cancel()

    def check_readiness(self) -> None:
        """Raise BackendRefusedError if the backend may evict any key, and that is not allowed."""
        if self._policy and not self._is_allowed:
            raise BackendRefusedError(
                f"{self._route} has maxmemory-policy {self._policy}, which evicts messages when its memory "
                "is full: set `maxmemory-policy noeviction` in the backend, or pass --allow-eviction"
            )

    async def _look_again(self, link: Link) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            await self._look(link)

    async def _look(self, link: Link) -> None:
        try:
            info = await link.command(b"INFO", b"memory")
        except BackendError as error:
            logger.debug("cannot read the backend's maxmemory-policy: %s", error)
            return
        found = _OF_ANY_KEY.search(info)
        policy = found[1].decode() if found else ""
        if policy and policy != self._policy:
            logger.warning(
                "the backend has maxmemory-policy %s: when its memory is full, it evicts messages and parts "
                "of queues; auto-repair repairs such queues if it is enabled",
                policy,
            )
        elif self._policy and not policy:
            logger.info("the backend's maxmemory-policy no longer evicts messages")
        self._policy = policy


class Backend:
    """One backend: makes the links to its databases, and holds the objects that all databases share."""

    def __init__(
        self,
        address: BackendAddress,
        *,
        identity: str,
        prefix: bytes,
        layout: bytes,
        outages: Counter[str],
        timeouts: Timeouts,
        durability: Level,
        allow_eviction: bool,
        changed: Callable[[bytes], None],
        watch_lost: Callable[[], None],
    ) -> None:
        """Prepare, but do not connect. `layout` and `outages` are as for Link.

        `changed` is called with each watched key that changes, whatever its database. `watch_lost` is called
        when no key is watched any longer.
        """
        self.prefix = prefix
        self.route = route_to(address)
        if layout:
            self.route.subject = f"shard {layout.split()[1].decode()} is"
        # Makes a link to the database with this number; the caller opens it.
        self.link = partial(
            Link,
            route=self.route,
            library=library(),
            name=identity,
            timeouts=timeouts,
            guard=prefix + b"!guard" if has_tag(prefix) else b"",
            layout=layout,
            outages=outages,
        )
        self.eviction = EvictionCheck(self.route, is_allowed=allow_eviction)
        self.watch = Watch(self.route, identity, changed, watch_lost, timeouts.answer)
        # Server-wide keys: no key of a queue begins with the prefix and `!`.
        self.turns = Turns(self.route, prefix + b"!turns")
        written = prefix + b"!durability"
        self.durability = Durability(self.route, identity, written, durability, timeouts)
        self.replica_waits = ReplicaWaits(self.route, identity, written, timeouts)

    async def start(self, link: Link, *, to_look: bool) -> None:
        """Open the link to the default database, and start the shared objects.

        Raises BackendRefusedError if the backend cannot be used. If it cannot be reached now, the link keeps
        trying in the background. With `to_look`, for callers that only read, raises BackendError instead, and
        does not check the backend's eviction policy.
        """
        try:
            await link.open()
        except BackendError as error:
            if to_look or isinstance(error, BackendRefusedError):
                raise
            link.keep_open()
        if not to_look:
            await self.eviction.start(link)
        await self.route.start()
        await self.durability.start()
        self.watch.start()
        if link.is_up:
            # Otherwise a queue that is used at once and then deleted by a native client would not be noticed.
            await self.watch.attempted.wait()

    async def stop_asking(self) -> None:
        """Stop asking for turns, and stop checking the backend's eviction policy."""
        self.eviction.stop()
        await self.turns.close()

    async def close(self) -> None:
        """Close the connections that all databases share."""
        await self.turns.disconnect()
        await self.watch.close()
        await self.durability.close()
        await self.route.close()
