"""The backend, as the broker sees it: the one place that knows its topology.

Today that is one node, which may be embedded: every database has one link, and one watch, one durability and
one set of turns serve them all. Sentinel and Cluster belong here: nothing above asks where a node is.
"""

from __future__ import annotations

from collections.abc import Callable

from pressure_server.backend.address import Address
from pressure_server.backend.durability import Durability
from pressure_server.backend.eviction import Eviction
from pressure_server.backend.greeting import BackendRefusedError
from pressure_server.backend.levels import Level
from pressure_server.backend.link import Link, Patience
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.errors import BackendError


class Backend:
    """Opens links to databases, and what all of them share."""

    def __init__(
        self,
        address: Address,
        *,
        identity: str,
        prefix: bytes,
        script: bytes,
        patience: Patience,
        durability: Level,
        allow_eviction: bool,
        changed: Callable[[bytes], None],
        watch_lost: Callable[[], None],
    ) -> None:
        """`script` is the batch script. `changed` is told of keys that are watched, in any database.

        `watch_lost` is called when all that has been watched is forgotten.
        """
        self.address = address
        self._identity = identity
        self._script = script
        self._patience = patience
        self._allow_eviction = allow_eviction
        self._eviction: Eviction | None = None
        self.watch = Watch(address, identity, changed, watch_lost, patience.answer)
        # Keys of the server as a whole: no queue's name can collide with them.
        self.turns = Turns(address, prefix + b"!turns")
        self.durability = Durability(address, identity, prefix + b"!durability", durability, patience)

    @property
    def default_database(self) -> int:
        """The number of the database that the address names."""
        return self.address.database

    def link(self, number: int) -> Link:
        """Return a link to that database, which is still to be opened."""
        return Link(self.address, number, self._script, self._identity, self._patience)

    async def start(self, link: Link, *, to_look: bool) -> None:
        """Open the link to the default database, and what all share. Only `to_look`, change nothing.

        Raises BackendRefusedError if the backend can never be used, or cannot give the durability asked for.
        If the backend is only away, raises BackendError when `to_look`; else operations wait for its return.
        """
        try:
            await link.open()
        except BackendRefusedError:
            raise
        except BackendError:
            if to_look:
                raise
            link.keep_open()
        if not to_look:
            self._eviction = Eviction(link, self.address, is_allowed=self._allow_eviction)
            await self._eviction.start()
        await self.durability.start()
        self.watch.start()

    def check_readiness(self) -> None:
        """Raise BackendError, with the reason, if the backend's settings may lose messages."""
        if self._eviction is not None:
            self._eviction.check_readiness()

    async def stop_asking(self) -> None:
        """Ask for no more turns, and look no more at the backend's settings."""
        if self._eviction is not None:
            self._eviction.stop()
        await self.turns.close()

    async def close(self) -> None:
        """Close what all databases share."""
        await self.turns.disconnect()
        await self.watch.close()
        await self.durability.close()
