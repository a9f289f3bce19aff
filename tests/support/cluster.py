"""A cluster of Redis or Valkey, whose slots and masters a test changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import redis
from redis.crc import key_slot

from tests.support.network import Network
from tests.support.nodes import Engine, Node, NodeSet, addresses_of, start_all, wait_until
from tests.support.ports import free_ports

SLOTS = 16_384
# Milliseconds that MIGRATE may take.
_MIGRATE_TIMEOUT = 10_000


class View(NamedTuple):
    """A line of CLUSTER NODES: what one node knows of another, or of itself."""

    identity: str
    port: int
    flags: frozenset[str]
    master: str  # the identity of its master; '-' for none
    is_connected: bool
    slots: frozenset[int]

    @property
    def is_master(self) -> bool:
        """Whether the node serves its slots, as far as is known."""
        return "master" in self.flags and "fail" not in self.flags


class ClusterNode(Node):
    """A node of a cluster."""

    number: int  # its place in Cluster.nodes
    identity: str  # as CLUSTER MYID

    async def views(self) -> list[View]:
        """Return what the node knows of all nodes."""
        text = (await self.command("CLUSTER", "NODES")).decode()
        return [_view(line) for line in text.splitlines()]

    async def serves(self) -> bool:
        """Return whether the cluster is up, as far as the node knows."""
        return b"cluster_state:ok" in await self.command("CLUSTER", "INFO")

    async def announce_port(self, port: int) -> None:
        """Announce this port to clients, to which MOVED then leads; see Cluster.announce_own_port."""
        await self.command("CONFIG", "SET", "cluster-announce-port", port)


class Cluster(NodeSet[ClusterNode]):
    """A cluster with the same number of replicas for each master."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        masters: int = 3,
        replicas: int = 0,
        engine: Engine = Engine.REDIS,
        node_timeout: float = 1.0,
        full_coverage: bool = True,
        network: Network | None = None,
        loses_power: bool = False,
    ) -> None:
        """Prepare, but start nothing. `options` are for all nodes.

        `full_coverage` is cluster-require-full-coverage. With a network, nodes can be cut off; with
        `loses_power`, their power can be cut.
        """
        super().__init__(network)
        self.engine = engine
        self._masters = masters
        self._replicas = replicas
        count = masters * (1 + replicas)
        ports = free_ports(2 * count)
        clients, self._bus = ports[:count], ports[count:]
        common = [
            "--cluster-enabled", "yes",
            "--cluster-node-timeout", str(round(node_timeout * 1000)),
            "--cluster-require-full-coverage", "yes" if full_coverage else "no",
            # A master without slots stays one, so that slots can move back to it.
            "--cluster-allow-replica-migration", "no",
            "--repl-diskless-sync-delay", "0",
            "--save", "",
        ]  # fmt: skip
        for number in range(count):
            own = ["--cluster-port", str(self._bus[number])]
            node = ClusterNode(
                folder / f"node-{number}",
                clients[number],
                [*common, *own, *options],
                engine=engine,
                machine=self._machine(),
                loses_power=loses_power,
            )
            node.number = number
            self.nodes.append(node)

    @property
    def addresses(self) -> str:
        """The addresses of all nodes, separated by commas, for an URL."""
        return addresses_of(self.nodes)

    async def _start(self, stack: ExitStack) -> None:
        """Start all nodes. Return when they are a cluster, and all replicas are connected."""
        await start_all(self.nodes, stack)
        await self._create()

    def node_of(self, identity: str) -> ClusterNode:
        """Return the node with this identity."""
        return next(node for node in self.nodes if node.identity == identity)

    async def master_of(self, slot: int | bytes | str) -> ClusterNode:
        """Return the master of a slot, or of a key. All running nodes must agree on it."""
        return (await self._agreed_masters())[_slot(slot)]

    async def masters(self) -> list[ClusterNode]:
        """Return the masters that have slots. All running nodes must agree on them."""
        return list(dict.fromkeys(await self._agreed_masters()))

    async def _agreed_masters(self) -> list[ClusterNode]:
        found: list[ClusterNode] = await wait_until(
            lambda: self._masters_told_by(self.nodes), "the nodes to agree"
        )
        return found

    async def replicas(self) -> list[ClusterNode]:
        """Return the replicas of all masters."""
        return [one for master in await self.masters() for one in await self.replicas_of(master)]

    async def replicas_of(self, master: ClusterNode) -> list[ClusterNode]:
        """Return the replicas of a master, as it knows them."""
        return [
            self.node_of(view.identity) for view in await master.views() if view.master == master.identity
        ]

    async def slots_of(self, master: ClusterNode) -> list[int]:
        """Return the slots that a master has, by its own account."""
        return sorted(next(view.slots for view in await master.views() if view.identity == master.identity))

    async def wait_until_agreed(self) -> None:
        """Return when all running nodes have the same map, and serve."""
        await wait_until(self._agrees, "the nodes to agree")

    async def wait_until_replicated(self) -> None:
        """Return when all nodes agree, and all replicas have the data of their masters.

        Meanwhile a replica may become a master: a busy machine is enough for that.
        """

        async def is_replicated() -> bool:
            masters = await self._masters_told_by(self.nodes) if await self._agrees() else None
            replicas = [one for master in set(masters or ()) for one in await self.replicas_of(master)]
            about = [await replica.info("replication") for replica in replicas]
            return bool(about) and all(one.get("master_link_status") == "up" for one in about)

        await wait_until(is_replicated, "the replicas to be connected")

    async def announce_own_port(self, node: ClusterNode) -> None:
        """Let a node announce its own port again. Return when all nodes know it: they connect to it."""
        await node.announce_port(0)

        async def is_known() -> bool:
            views = [view for one in self.nodes for view in await one.views()]
            return all(view.port == node.port for view in views if view.identity == node.identity)

        await wait_until(is_known, f"the nodes to know the port of {node}")

    async def wait_until_connected(self, replica: ClusterNode) -> None:
        """Return when a node is a replica that has the data of its master."""

        async def is_connected() -> bool:
            about = await replica.info("replication")
            return about["role"] == "slave" and about["master_link_status"] == "up"

        await wait_until(is_connected, f"{replica} to be connected")

    async def legacy_move(self, slot: int | bytes | str, target: ClusterNode) -> LegacyMove:
        """Prepare to move a slot, or the slot of a key, in steps."""
        return LegacyMove(self, _slot(slot), await self.master_of(slot), target)

    async def move(self, slot: int | bytes | str, target: ClusterNode) -> None:
        """Move a slot in the legacy way: with its keys, which are moved by MIGRATE."""
        move = await self.legacy_move(slot, target)
        await move.begin()
        await move.migrate()
        await move.finish()

    async def move_atomically(self, slot: int | bytes | str, target: ClusterNode) -> None:
        """Move a slot, or the slot of a key, by CLUSTER MIGRATESLOTS (Valkey 9)."""
        slot = _slot(slot)
        source = await self.master_of(slot)
        await source.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.identity)

        async def has_moved() -> bool:
            newest = (await source.command("CLUSTER", "GETSLOTMIGRATIONS"))[0]
            assert b"failed" not in newest, newest
            masters = await self._masters_told_by(self.nodes)
            return masters is not None and masters[slot] is target

        await wait_until(has_moved, f"slot {slot} to be at {target}")

    @asynccontextmanager
    async def without_failovers(self) -> AsyncIterator[None]:
        """Let no replica take over by itself, as MIGRATE of many messages may take longer than the timeout.

        A replica does not know which of its master's slots are on the move.
        """
        await self._configure("cluster-replica-no-failover", "yes")
        yield
        await self._configure("cluster-replica-no-failover", "no")

    async def _configure(self, name: str, value: str) -> None:
        for node in self.nodes:
            await node.command("CONFIG", "SET", name, value)

    async def fail_over(self, replica: ClusterNode) -> None:
        """Make a replica the master by CLUSTER FAILOVER. Wait until it is."""
        # A master ignores the request of a node that it does not know as its replica.
        await self.wait_until_agreed()
        await self.wait_until_connected(replica)
        await replica.command("CLUSTER", "FAILOVER")

        async def is_master() -> bool:
            own = next(view for view in await replica.views() if view.identity == replica.identity)
            return bool(own.is_master and own.slots)

        await wait_until(is_master, f"{replica} to be a master")
        await self.wait_until_agreed()

    async def wait_for_new_master(self, slot: int | bytes | str, old: ClusterNode) -> ClusterNode:
        """Return the node that serves the slot instead of `old`, when the other nodes agree on it."""
        number = _slot(slot)
        others = [node for node in self.nodes if node is not old]

        async def has_taken_over() -> ClusterNode | None:
            masters = await self._masters_told_by(others)
            master = masters[number] if masters else old
            return master if master.is_running and master is not old else None

        found: ClusterNode = await wait_until(has_taken_over, f"a new master instead of {old}")

        await wait_until(found.serves, f"{found} to serve")
        return found

    async def meet(self, node: ClusterNode, other: ClusterNode) -> None:
        """Let a node learn of another one."""
        await node.command("CLUSTER", "MEET", other.host, other.port, self._bus[other.number])

    async def _create(self) -> None:
        masters = self.nodes[: self._masters]
        bounds = [SLOTS * number // self._masters for number in range(self._masters + 1)]
        for node in self.nodes:
            # Different epochs from the start: nodes settle equal ones in seconds.
            await node.command("CLUSTER", "SET-CONFIG-EPOCH", node.number + 1)
            node.identity = (await node.command("CLUSTER", "MYID")).decode()
            if node in masters:
                first, last = bounds[node.number], bounds[node.number + 1] - 1
                await node.command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in self.nodes:
            # Each meets all later ones, which is faster than to wait for gossip.
            for other in self.nodes[node.number + 1 :]:
                await self.meet(node, other)
        await asyncio.gather(*[self._replicate(node) for node in self.nodes[self._masters :]])
        await self.wait_until_agreed()

    async def _replicate(self, replica: ClusterNode) -> None:
        master = self.nodes[replica.number % self._masters]

        await wait_until(
            lambda: replica.command("CLUSTER", "REPLICATE", master.identity), f"{replica} to know {master}"
        )
        await self.wait_until_connected(replica)

    async def _agrees(self) -> bool:
        nodes = [node for node in self.nodes if node.is_running]
        maps = []
        for node in nodes:
            views = {view.identity: view for view in await node.views()}
            known = [views[other.identity] for other in nodes if other.identity in views]
            if len(views) != len(self.nodes) or len(known) < len(nodes) or not await node.serves():
                return False
            if any(not view.is_connected or view.flags & {"fail", "fail?", "handshake"} for view in known):
                return False
            maps.append([(view.master, view.slots) for view in known])
        return all(other == maps[0] for other in maps) and bool(await self._masters_told_by(nodes))

    async def _masters_told_by(self, nodes: Sequence[ClusterNode]) -> list[ClusterNode] | None:
        """Return the master of each slot, or None if these nodes, as far as they run, do not agree."""
        maps = []
        for node in nodes:
            if node.is_running:
                views = await node.views()
                maps.append({view.identity: view.slots for view in views if view.is_master and view.slots})
        if not maps or any(other != maps[0] for other in maps) or sum(map(len, maps[0].values())) != SLOTS:
            return None
        owners = {slot: self.node_of(identity) for identity, slots in maps[0].items() for slot in slots}
        return [owners[slot] for slot in range(SLOTS)]


@dataclass(frozen=True)
class LegacyMove:
    """The move of a slot from one master to another: `begin`, `migrate` as often as needed, `finish`."""

    cluster: Cluster
    slot: int
    source: ClusterNode
    target: ClusterNode

    async def begin(self) -> None:
        """Mark the slot as IMPORTING and MIGRATING."""
        await self.target.command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.identity)
        await self.source.command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target.identity)

    async def keys_left(self, at_most: int = 1000) -> list[bytes]:
        """Return keys of the slot that are still at the source."""
        keys: list[bytes] = await self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, at_most)
        return keys

    async def migrate(self, *keys: bytes | str) -> None:
        """Migrate these keys, or all that are left."""
        wanted: Sequence[Any] = keys or await self.keys_left()
        while wanted:
            node = self.target.host, self.target.port
            await self.source.command("MIGRATE", *node, "", 0, _MIGRATE_TIMEOUT, "KEYS", *wanted)
            wanted = () if keys else await self.keys_left()

    async def finish(self) -> None:
        """Give the slot to the target. Raise AssertionError if the source still has keys."""
        assert not await self.keys_left(1), f"keys of slot {self.slot} are left at {self.source}"
        await self.announce(self.target)

    async def announce(self, owner: ClusterNode) -> None:
        """Tell both nodes who owns the slot, and wait until all agree."""
        for node in (self.target, self.source):
            try:
                await node.command("CLUSTER", "SETSLOT", self.slot, "NODE", owner.identity)
            except redis.ResponseError as refusal:
                # A failover has made the other node a replica: the cluster tells its master.
                if node is owner or "only with masters" not in str(refusal):
                    raise
        await self.cluster.wait_until_agreed()


def _slot(place: int | bytes | str) -> int:
    """Return a slot, or the slot of a key."""
    if isinstance(place, int):
        return place
    return key_slot(place.encode() if isinstance(place, str) else place)


def _view(line: str) -> View:
    identity, address, flags, master, _sent, _received, _epoch, link, *ranges = line.split()
    slots: set[int] = set()
    for piece in ranges:
        if not piece.startswith("["):  # else a slot that is being moved
            first, _, last = piece.partition("-")
            slots.update(range(int(first), int(last or first) + 1))
    port = int(address.partition("@")[0].rpartition(":")[2])
    return View(identity, port, frozenset(flags.split(",")), master, link == "connected", frozenset(slots))
