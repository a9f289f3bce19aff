"""The broker: this server's identity on the backend, and the databases in use."""

import asyncio
import os
import re
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil

from pressure_server.backend.address import BackendAddress, ClusterAddress
from pressure_server.backend.backend import Backend, has_tag
from pressure_server.backend.durability import Level
from pressure_server.backend.link import Timeouts
from pressure_server.backend.replica_waits import Deadline
from pressure_server.errors import (
    BackendError,
    BackendRefusedError,
    NoSuchDatabaseError,
    PressureError,
    StartError,
)
from pressure_server.queues.calls.courier import MOST_IN_FLIGHT
from pressure_server.queues.database import Database
from pressure_server.queues.lanes.revived import JobsOfClients
from pressure_server.queues.operations.owners import Answers
from pressure_server.queues.operations.wait import WaiterCount
from pressure_server.queues.peers import Peer, PeerDetection, Peers
from pressure_server.queues.placement import Placement
from pressure_server.queues.policy import Policy
from pressure_server.queues.shard import Shard
from pressure_server.queues.templates import packed_templates

# Redis's default is 16 databases. Larger numbers than this are refused without asking the backend.
_MAX_DATABASE = 9999


class DatabaseNumberError(PressureError):
    """The backend has no database with this number."""


class Broker:
    """The databases of one backend. `identity` is what the server writes to :producer and :consumer."""

    def __init__(
        self,
        address: BackendAddress,
        *,
        prefix: str,
        policy: Policy,
        shards: int = 1,
        timeouts: Timeouts | None = None,
        peer_detection: PeerDetection | None = None,
        durability: Level | None = None,
        allow_eviction: bool = False,
    ) -> None:
        """`peer_detection` says how to recognise dead peers; if it is None, peers are ignored.

        `shards` is their number on a cluster; if the prefix has a tag of its own, all keys are in one slot.
        """
        host = re.sub(r"[^\w.-]", "-", socket.gethostname())
        self.identity = f"pressure-server:{host}:{os.getpid()}:{secrets.token_hex(4)}"
        self.address = address
        self.waiters = WaiterCount(policy.max_waiting)
        # Returns the jobs that clients have reserved until their connections end (see Revived).
        self.jobs_of_clients: JobsOfClients = tuple
        self._neighbours = peer_detection
        self._is_settled = True
        self._databases: dict[int, Database] = {}
        self.shards: list[Shard] = []  # of the databases in use
        self._peers: dict[Shard, Peers] = {}  # empty if peers are ignored
        self._nonexistent: set[int] = set()
        name = prefix.encode()
        self._is_sharded = isinstance(address, ClusterAddress) and not has_tag(name)
        self._placement = Placement(name, shards if self._is_sharded else None)
        self.policy = self._checked(policy)
        self._answers = Answers(several_shards=self._is_sharded)
        outages = Counter[str]()
        self._backends = [
            Backend(
                address,
                identity=self.identity,
                prefix=one,
                layout=b"%d %d" % (shards, number) if self._is_sharded else b"",
                outages=outages,
                timeouts=timeouts or Timeouts(),
                durability=durability or Level(),
                allow_eviction=allow_eviction,
                changed=partial(self._changed, number),
                watch_lost=partial(self._watch_lost, number),
            )
            for number, one in enumerate(self._placement.prefixes)
        ]

    @property
    def default_database(self) -> Database:
        """The database of a new client: the one that the backend's address names."""
        return self._databases[self.address.database]

    @property
    def databases(self) -> list[Database]:
        """The databases in use."""
        return list(self._databases.values())

    def change_policy(self, policy: Policy) -> None:
        """Use other settings for all queues from now on. Raises StartError if they cannot be used here."""
        self.policy = self._checked(policy)
        for shard, peers in self._peers.items():
            peers.change_templates(packed_templates(policy, shard.prefix))
        for shard in self.shards:
            shard.change_policy(self._policy_of_shard())

    def _policy_of_shard(self) -> Policy:
        return replace(self.policy, max_queues=ceil(self.policy.max_queues / len(self._backends)))

    def _checked(self, policy: Policy) -> Policy:
        """Return the policy. Raise StartError if dead letters would have to go to another shard."""
        for template in policy.templates:
            to = template.creation.dead_letter
            if to is not None and not self._placement.are_together(template.pattern.encode(), to):
                raise StartError(
                    f'[queues."{template.pattern}"]: on a cluster, the pattern and its dead-letter must have '
                    "the same tag in braces, such as {a}:* and {a}failed"
                )
        return policy

    def note_end(self, identity: str) -> None:
        """Recover at once what the server of this name had taken: its process has ended."""
        for peers in self._peers.values():
            peers.note_end(identity.encode())

    @property
    def libraries_of_peers(self) -> set[bytes]:
        """The names of the libraries of functions that other servers use."""
        return {name for peers in self._peers.values() for name in peers.libraries}

    @property
    def peers(self) -> list[Peer]:
        """The other servers on the backend: each as on the shard on which it has been silent the longest."""
        found = sorted(peer for peers in self._peers.values() for peer in peers.seen())
        return list({peer.name: peer for peer in found}.values())

    @property
    def is_up(self) -> bool:
        """Whether the backend of a shard can be reached."""
        return self.default_database.is_up

    def check_readiness(self) -> None:
        """Raise BackendError, with the reasons, if no shard is ready for new clients."""
        reasons = self.why_not_ready()
        if all(reasons):
            raise BackendError("; ".join(dict.fromkeys(map(str, reasons))))

    def why_not_ready(self) -> list[BackendError | None]:
        """Return, for each shard, why it is not ready for new clients; None if it is."""
        return [self._why_not_ready(number, backend) for number, backend in enumerate(self._backends)]

    def _why_not_ready(self, number: int, backend: Backend) -> BackendError | None:
        try:
            for database in self._databases.values():
                shard = database.shards[number]
                if database is self.default_database and not shard.is_up:
                    raise BackendError(f"the backend is away: {shard.link.why_down}")
                if shard in self._peers:
                    self._peers[shard].check_readiness()
            backend.eviction.check_readiness()
        except BackendError as reason:
            return reason
        return None

    @property
    def grace(self) -> float:
        """For how many seconds operations wait for a backend that is away."""
        return self.shards[0].link.grace

    @property
    def version(self) -> str:
        """The backend's name and version; empty until the backend has been reached."""
        return next(filter(None, (shard.link.version for shard in self.shards)), "")

    def when_back(self, follows: Callable[[], None]) -> None:
        """Call `follows` once, when the backend of the first shard can be reached."""
        self.shards[0].when_back(follows)

    async def start(self, *, to_look: bool = False) -> None:
        """Open the default database. With `to_look`, change nothing there.

        Raises BackendRefusedError if the backend can never be used, or not as asked for. If all shards are
        only down, raises BackendError with `to_look`; otherwise operations wait for the backend.
        """
        shards = self._add([self._shard(backend, self.address.database) for backend in self._backends]).shards
        started = (
            backend.start(shard.link, to_look=to_look)
            for backend, shard in zip(self._backends, shards, strict=True)
        )
        failed = [one for one in await asyncio.gather(*started, return_exceptions=True) if one is not None]
        for error in sorted(failed, key=lambda one: not isinstance(one, BackendRefusedError)):
            is_only_away = isinstance(error, BackendError) and not isinstance(error, BackendRefusedError)
            if not (is_only_away and self.is_up):
                raise error
        for shard in shards:
            if not shard.is_up:
                shard.link.keep_open()
        for shard in self.shards:
            if shard.is_up and not to_look:
                await shard.role_turns.end_noted_turns()

    async def database(self, number: int) -> Database:
        """Return the database with this number, opened. Raises DatabaseNumberError, or BackendError."""
        if number in self._databases:
            return self._databases[number]
        if self._is_sharded or not 0 <= number <= _MAX_DATABASE or number in self._nonexistent:
            raise DatabaseNumberError("DB index is out of range")
        opened = self._shard(self._backends[0], number)
        try:
            await opened.link.open()
        except NoSuchDatabaseError as error:
            self._nonexistent.add(number)
            raise DatabaseNumberError("DB index is out of range") from error
        # Another client may have opened the database in the meantime.
        if number in self._databases:
            await opened.link.close()
            return self._databases[number]
        database = self._add([opened])
        await database.shards[0].role_turns.end_noted_turns()
        return database

    def _shard(self, backend: Backend, number: int) -> Shard:
        link, identity = backend.link(number), self.identity.encode()
        if self._neighbours is not None:
            templates = packed_templates(self.policy, backend.prefix)
            link.heartbeats = Peers(link, backend.prefix, identity, self._neighbours, templates)
        return Shard(
            link,
            backend.watch,
            backend.turns,
            backend.durability,
            prefix=backend.prefix,
            identity=identity,
            policy=self._policy_of_shard(),
            waiters=self.waiters,
            answers=self._answers,
            jobs_of_clients=lambda: self.jobs_of_clients(),
            most_in_flight=ceil(MOST_IN_FLIGHT / len(self._backends)),
        )

    def _add(self, shards: Sequence[Shard]) -> Database:
        database = self._databases[shards[0].database_number] = Database(shards, self._placement)
        self.shards += shards
        for shard in shards:
            peers = shard.link.heartbeats
            if isinstance(peers, Peers):
                self._peers[shard] = peers
                peers.start(shard)
        return database

    def _changed(self, number: int, key: bytes) -> None:
        # The backend does not say in which database the key has changed.
        for database in self._databases.values():
            database.shards[number].changed(key)

    def _watch_lost(self, number: int) -> None:
        for database in self._databases.values():
            database.shards[number].watch_lost()

    async def wait_for_replicas(self, replicas: int, deadline: Deadline) -> int:
        """Return how many replicas each shard has, at least, that have all that was answered before.

        Returns when there are `replicas`, or at the deadline. Raises BackendError if a shard cannot be
        asked, and StoppingError if the server stops first.
        """
        return min([await one.replica_waits.wait(replicas, deadline) for one in self._backends])

    def end_waits(self) -> None:
        """End all waiting operations with StoppingError, as the server stops."""
        for shard in self.shards:
            shard.end_waits()
        for backend in self._backends:
            backend.replica_waits.end()

    async def settle(self, timeout: float) -> bool:
        """Acknowledge what has arrived, and put back the rest. Return whether all is done in time."""
        for peers in self._peers.values():
            await peers.stop()
        for shard in self.shards:
            shard.flush_put_backs()
        settled = await asyncio.gather(*[self._settle(shard, timeout) for shard in self.shards])
        self._is_settled = all(settled)
        return self._is_settled

    async def _settle(self, shard: Shard, timeout: float) -> bool:
        if not await shard.settle(timeout if shard.is_up else 0):
            return False
        if shard in self._peers and shard.is_up:
            with suppress(BackendError, TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._peers[shard].unregister()
        return True

    async def close(self) -> None:
        """Close every connection to the backend."""
        for backend in self._backends:
            await backend.stop_asking()
        for peers in self._peers.values():
            await peers.stop()
        for database in self._databases.values():
            for shard, backend in zip(database.shards, self._backends, strict=True):
                if backend.turns.are_used and shard.is_up and self._is_settled:
                    await shard.role_turns.end_noted_turns()
        for backend in self._backends:
            await backend.close()
        for shard in self.shards:
            await shard.link.close()
