"""The broker: this server's identity on the backend, and the databases in use."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from contextlib import suppress

from pressure_server.backend.address import Address
from pressure_server.backend.backend import Backend
from pressure_server.backend.greeting import NoSuchDatabaseError
from pressure_server.backend.levels import Level
from pressure_server.backend.link import Link, Timeouts
from pressure_server.backend.sentinel import SentinelAddress
from pressure_server.errors import BackendError, PressureError
from pressure_server.lua.scripts import library
from pressure_server.queues.database import Database
from pressure_server.queues.operations.wait import WaiterCount
from pressure_server.queues.peers import OldPeers, PeerDetection, Peers
from pressure_server.queues.policy import Policy

# Redis's default is 16 databases. Larger numbers than this are refused without asking the backend.
_MAX_DATABASE = 9999


class DatabaseNumberError(PressureError):
    """The backend has no database with this number."""


class Broker:
    """The databases of one backend. `identity` is what the server writes to :producer and :consumer."""

    def __init__(
        self,
        address: Address | SentinelAddress,
        *,
        prefix: str,
        policy: Policy,
        timeouts: Timeouts | None = None,
        peer_detection: PeerDetection | None = None,
        durability: Level | None = None,
        allow_eviction: bool = False,
    ) -> None:
        """`peer_detection` says how to recognise dead peers; if it is None, peers are ignored."""
        host = re.sub(r"[^\w.-]", "-", socket.gethostname())
        self.identity = f"pressure-server:{host}:{os.getpid()}:{secrets.token_hex(4)}"
        self.address = address
        self._prefix = prefix.encode()
        self.policy = policy
        self.waiters = WaiterCount(policy.max_waiting)
        self._neighbours = peer_detection
        self._is_settled = True
        self._databases: dict[int, Database] = {}
        self._links: dict[int, Link] = {}
        self._peers: dict[Link, Peers] = {}
        self._old_peers: dict[Link, OldPeers] = {}
        self._nonexistent: set[int] = set()
        self._backend = Backend(
            address,
            identity=self.identity,
            prefix=self._prefix,
            library=library(),
            timeouts=timeouts or Timeouts(),
            durability=durability or Level(),
            allow_eviction=allow_eviction,
            changed=self._changed,
            watch_lost=self._watch_lost,
        )

    @property
    def default_database(self) -> Database:
        """The database of a new client: the one that the backend's address names."""
        return self._databases[self._backend.default_database]

    @property
    def databases(self) -> list[Database]:
        """The databases in use."""
        return list(self._databases.values())

    @property
    def libraries_of_peers(self) -> set[bytes]:
        """The names of the libraries of functions that other servers use."""
        return {name for peers in self._peers.values() for name in peers.libraries}

    @property
    def is_up(self) -> bool:
        """Whether the backend can be reached."""
        return self._links[self._backend.default_database].is_up

    def check_readiness(self) -> None:
        """Raise BackendError, with the reason, if new clients should use another server."""
        link = self._links[self._backend.default_database]
        if not link.is_up:
            raise BackendError(f"the backend is away: {link.why_down}")
        for servers in self._peers.values():
            servers.check_readiness()
        self._backend.check_readiness()

    @property
    def grace(self) -> float:
        """For how many seconds operations wait for a backend that is away."""
        return self._backend.grace

    @property
    def version(self) -> str:
        """The backend's name and version; empty until the backend has been reached."""
        return self._links[self._backend.default_database].version

    async def start(self, *, to_look: bool = False) -> None:
        """Open the default database. With `to_look`, change nothing there.

        Raises BackendRefusedError if the backend can never be used, or cannot give the durability asked for.
        If the backend is only down, raises BackendError with `to_look`; otherwise returns, and operations
        wait for the backend.
        """
        link = self._link(self._backend.default_database)
        self._add(link)
        await self._backend.start(link, to_look=to_look)
        if link.is_up and not to_look:
            await self.default_database.role_turns.end_noted_turns()

    async def database(self, number: int) -> Database:
        """Return the database with this number, and open it if needed.

        Raises DatabaseNumberError, or BackendError.
        """
        if number in self._databases:
            return self._databases[number]
        if not 0 <= number <= _MAX_DATABASE or number in self._nonexistent:
            raise DatabaseNumberError("DB index is out of range")
        link = self._link(number)
        try:
            await link.open()
        except NoSuchDatabaseError as error:
            self._nonexistent.add(number)
            raise DatabaseNumberError("DB index is out of range") from error
        # Another client may have opened the database in the meantime.
        if number in self._databases:
            self._peers.pop(link, None)
            self._old_peers.pop(link, None)
            await link.close()
            return self._databases[number]
        database = self._add(link)
        await database.role_turns.end_noted_turns()
        return database

    def _link(self, number: int) -> Link:
        link = self._backend.link(number)
        if self._neighbours is not None:
            ours = (link, self._prefix, self.identity.encode(), self._neighbours)
            self._peers[link] = Peers(*ours)
            self._old_peers[link] = OldPeers(*ours)
            link.heartbeats = self._peers[link]
        return link

    def _add(self, link: Link) -> Database:
        self._links[link.number] = link
        database = Database(
            link,
            self._backend.watch,
            self._backend.turns,
            self._backend.durability,
            prefix=self._prefix,
            identity=self.identity.encode(),
            policy=self.policy,
            waiters=self.waiters,
        )
        self._databases[link.number] = database
        if link in self._peers:
            self._peers[link].start(database)
            self._old_peers[link].start(database)
        return database

    def _changed(self, key: bytes) -> None:
        # The backend does not say in which database the key has changed.
        for database in self._databases.values():
            database.changed(key)

    def _watch_lost(self) -> None:
        for database in self._databases.values():
            database.watch_lost()

    def end_waits(self) -> None:
        """End all waiting operations with StoppingError, as the server stops."""
        for database in self._databases.values():
            database.end_waits()

    async def settle(self, timeout: float) -> bool:
        """Acknowledge what has arrived, and put back what has not, so that nothing is left behind.

        Returns whether this was done within `timeout` seconds. Peers put back what is left, after they have
        found this server dead.
        """
        for servers in (*self._peers.values(), *self._old_peers.values()):
            await servers.stop()
        for database in self._databases.values():
            database.send_put_backs()
        settled = await asyncio.gather(*[self._settle(number, timeout) for number in self._databases])
        self._is_settled = all(settled)
        return self._is_settled

    async def _settle(self, number: int, timeout: float) -> bool:
        database = self._databases[number]
        if not await database.settle(timeout if database.is_up else 0):
            return False
        servers = self._peers.get(self._links[number])
        if servers is not None and database.is_up:
            with suppress(BackendError, TimeoutError):
                async with asyncio.timeout(timeout):
                    await servers.unregister()
        return True

    async def close(self) -> None:
        """Close every connection to the backend."""
        await self._backend.stop_asking()
        for servers in (*self._peers.values(), *self._old_peers.values()):
            await servers.stop()
        if self._backend.turns.are_used and self.is_up and self._is_settled:
            for database in self._databases.values():
                await database.role_turns.end_noted_turns()
        await self._backend.close()
        for link in self._links.values():
            await link.close()
