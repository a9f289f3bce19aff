"""The backends of a stand: one Valkey or Redis whose files are the evidence, or nodes that fail over."""

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import redis

from tests.support.cluster import Cluster
from tests.support.network import Machine, Network
from tests.support.nodes import LOCAL, Engine, Node
from tests.support.programs import Client, Valkey
from tests.support.sentinel import NAME, SentinelSet
from tests.support.sharded import PLACEMENT, PREFIX, url_of

MASTERS = 3
# Seconds after which a master that does not answer is replaced.
NODE_TIMEOUT = 1.0


class Backend(ABC):
    """What the servers keep their queues in. `prefixes` are the beginnings of the keys of queues.

    On a `network`, parts of it can be cut from each other.
    """

    prefixes: Sequence[str] = (f"{PREFIX.decode()}:",)
    network: Network | None = None

    @abstractmethod
    async def start(self, stack: AsyncExitStack) -> None:
        """Start it. `stack` ends it."""

    @abstractmethod
    def server_options(self, relay_port: int) -> list[str]:
        """Return a server's options; a relay for its connections to the backend has this port."""

    @abstractmethod
    def clients(self) -> list[Client]:
        """Return a client for each node that has queues."""

    @property
    @abstractmethod
    def cuts(self) -> list[float]:
        """The times at which a power cut may have lost acknowledged changes."""


class SingleBackend(Backend):
    """One process. Its append-only file is evidence of every message."""

    def __init__(
        self,
        folder: Path,
        _stack: AsyncExitStack,
        engine: Engine = Engine.REDIS,
        durability: str = "none",
        appendfsync: str = "always",
    ) -> None:
        self.valkey: Valkey
        self._engine = engine
        self._durability = durability
        self._appendfsync = appendfsync
        self._folder = folder

    async def start(self, stack: AsyncExitStack) -> None:
        """See Backend."""
        self._folder.mkdir(parents=True)
        self.valkey = await asyncio.to_thread(
            Valkey, self._folder, "--appendonly", "yes", "--appendfsync", self._appendfsync,
            "--auto-aof-rewrite-percentage", "0",
            binary=self._engine.program(), loses_power=True,
        )  # fmt: skip
        stack.callback(self.valkey.stop)
        self._set_sync("always")

    @property
    def cuts(self) -> list[float]:
        """See Backend."""
        return self.valkey.disk.cuts if self.valkey.disk is not None else []

    def begin_to_lose(self) -> None:
        """Let power cuts lose what `appendfsync` allows. Until now they lose nothing."""
        self._set_sync(self._appendfsync)

    def _set_sync(self, appendfsync: str) -> None:
        with self.valkey.client() as client:
            client.config_set("appendfsync", appendfsync)

    def server_options(self, relay_port: int) -> list[str]:
        """See Backend."""
        return ["--backend", f"redis://{LOCAL}:{relay_port}", "--durability", self._durability]

    def clients(self) -> list[Client]:
        """See Backend."""
        return [self.valkey.client(decode_responses=True)]


# Returns a backend whose files are in a folder; the stack ends what it begins.
MakeBackend = Callable[[Path, AsyncExitStack], Backend]


class FailoverBackend(Backend):
    """Nodes on a network, whose replicas take over.

    By default, puts are acknowledged when a replica has them.
    """

    network: Network

    def __init__(self, stack: AsyncExitStack, durability: str) -> None:
        self.network = stack.enter_context(Network())
        self._durability = durability
        self._cuts: list[float] = []

    @property
    @abstractmethod
    def node_set(self) -> Cluster | SentinelSet:
        """The nodes."""

    async def start(self, stack: AsyncExitStack) -> None:
        """See Backend."""
        await stack.enter_async_context(self.node_set)

    def clients(self) -> list[Client]:
        """See Backend."""
        return masters_among(self.node_set.nodes)

    @property
    def cuts(self) -> list[float]:
        """See Backend. A replica acknowledges nothing, so its power cuts are not among these."""
        return self._cuts

    @property
    def machines(self) -> list[Machine]:
        """The machines of all nodes that have queues."""
        return [node.machine for node in self.node_set.nodes if node.machine is not None]

    @abstractmethod
    async def wait_until_healed(self) -> None:
        """Return when all nodes agree, and all replicas are connected."""

    @abstractmethod
    async def replica(self, chance: random.Random) -> Node:
        """Return some replica."""

    @abstractmethod
    async def cut_a_master(self, chance: random.Random) -> Node:
        """Cut the power of a master. Return it when another node has taken its place."""


class ClusterBackend(FailoverBackend):
    """A cluster of masters with a replica each."""

    prefixes = tuple(f"{prefix.decode()}:" for prefix in PLACEMENT.prefixes)

    def __init__(
        self,
        folder: Path,
        stack: AsyncExitStack,
        engine: Engine = Engine.REDIS,
        durability: str = "replica:1",
    ) -> None:
        super().__init__(stack, durability)
        self.cluster = Cluster(
            folder,
            *("--appendonly", "yes"),
            masters=MASTERS,
            replicas=1,
            engine=engine,
            node_timeout=NODE_TIMEOUT,
            full_coverage=False,
            network=self.network,
            loses_power=True,
        )

    @property
    def node_set(self) -> Cluster:
        """See FailoverBackend."""
        return self.cluster

    def server_options(self, relay_port: int) -> list[str]:
        """See Backend. A relay would be left at the first redirection."""
        return ["--backend", url_of(self.cluster), "--durability", self._durability]

    async def wait_until_healed(self) -> None:
        """See FailoverBackend."""
        await self.cluster.wait_until_replicated()

    async def replica(self, chance: random.Random) -> Node:
        """See FailoverBackend."""
        return chance.choice(await self.cluster.replicas())

    async def cut_a_master(self, chance: random.Random) -> Node:
        """See FailoverBackend."""
        master = chance.choice(await self.cluster.masters())
        slots = await self.cluster.slots_of(master)
        master.cut_power(chance)
        self._cuts.append(time.monotonic())
        await self.cluster.wait_for_new_master(slots[0], master)
        return master


class SentinelBackend(FailoverBackend):
    """A master with a replica, and Sentinels."""

    def __init__(
        self,
        folder: Path,
        stack: AsyncExitStack,
        engine: Engine = Engine.REDIS,
        durability: str = "replica:1",
    ) -> None:
        super().__init__(stack, durability)
        self.nodes = SentinelSet(
            folder, "--appendonly", "yes", engine=engine, network=self.network, loses_power=True
        )

    @property
    def node_set(self) -> SentinelSet:
        """See FailoverBackend."""
        return self.nodes

    def server_options(self, relay_port: int) -> list[str]:
        """See Backend."""
        url = f"redis+sentinel://{self.nodes.addresses}/{NAME}/0"
        return ["--backend", url, "--durability", self._durability]

    async def wait_until_healed(self) -> None:
        """See FailoverBackend."""
        await self.nodes.wait_until_settled()

    async def replica(self, chance: random.Random) -> Node:
        """See FailoverBackend."""
        master = await self.nodes.master()
        return chance.choice([node for node in self.nodes.nodes if node is not master])

    async def cut_a_master(self, chance: random.Random) -> Node:
        """See FailoverBackend."""
        master = await self.nodes.master()
        master.cut_power(chance)
        self._cuts.append(time.monotonic())
        await self.nodes.wait_for_new_master(master)
        return master


def masters_among(nodes: Sequence[Node]) -> list[Client]:
    """Return clients of the nodes that are masters."""
    every = [redis.Redis(node.host, node.port, decode_responses=True) for node in nodes]
    return [one for one in every if one.info("replication")["role"] == "master"]
