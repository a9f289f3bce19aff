"""The backend of a shard as the broker sees it: one node at a time, found by a route.

Each database has a link of its own; all databases share one watch, one durability and one set of turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from pressure_server.backend.address import BackendAddress
from pressure_server.backend.durability import Durability, Level
from pressure_server.backend.eviction import EvictionCheck
from pressure_server.backend.link import Link, Timeouts
from pressure_server.backend.replica_waits import ReplicaWaits
from pressure_server.backend.route import route_to
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.errors import BackendError, BackendRefusedError
from pressure_server.lua.scripts import library


def has_tag(prefix: bytes) -> bool:
    """Return whether keys with this prefix are all in the same slot of a cluster: by a name in braces."""
    _, brace, rest = prefix.partition(b"{")
    return bool(brace) and rest.find(b"}") > 0


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
