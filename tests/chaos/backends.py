"""The backends of a stand: one Valkey or Redis whose files are the evidence, or a cluster with replicas."""

from __future__ import annotations

import asyncio
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import redis

from tests.support.cluster import Cluster
from tests.support.nodes import LOCAL, Engine
from tests.support.power import PoweredValkey
from tests.support.programs import Client
from tests.support.sharded import PLACEMENT, PREFIX, url_of

MASTERS = 3
# Seconds after which a master that does not answer is replaced.
NODE_TIMEOUT = 1.0


class Backend(ABC):
    """What the servers keep their queues in. `prefixes` are the beginnings of the keys of queues."""

    prefixes: Sequence[str]

    @abstractmethod
    async def start(self, stack: AsyncExitStack) -> None:
        """Start it. `stack` ends it."""

    @abstractmethod
    def server_options(self, relay_port: int) -> list[str]:
        """Return a server's options; a relay for its connections to the backend has this port."""

    @abstractmethod
    def clients(self) -> list[Client]:
        """Return a client for each node that has queues."""


class SingleBackend(Backend):
    """One process. Its append-only file is evidence of every message."""

    prefixes = (f"{PREFIX.decode()}:",)

    def __init__(self, folder: Path) -> None:
        self.valkey: PoweredValkey
        self._folder = folder

    async def start(self, stack: AsyncExitStack) -> None:
        """See Backend."""
        self._folder.mkdir(parents=True)
        self.valkey = await asyncio.to_thread(
            PoweredValkey, self._folder, "--appendonly", "yes", "--appendfsync", "always",
            "--auto-aof-rewrite-percentage", "0",
            binary=shutil.which("redis-server"),
        )  # fmt: skip
        stack.callback(self.valkey.stop)

    def server_options(self, relay_port: int) -> list[str]:
        """See Backend."""
        return ["--backend", f"redis://{LOCAL}:{relay_port}"]

    def clients(self) -> list[Client]:
        """See Backend."""
        return [self.valkey.client(decode_responses=True)]


class ClusterBackend(Backend):
    """Masters with a replica each. Puts are acknowledged when a replica has them."""

    prefixes = tuple(f"{prefix.decode()}:" for prefix in PLACEMENT.prefixes)

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.cluster = Cluster(
            folder, masters=MASTERS, replicas=1, engine=engine, node_timeout=NODE_TIMEOUT, full_coverage=False
        )
        self.engine = engine

    async def start(self, stack: AsyncExitStack) -> None:
        """See Backend."""
        await stack.enter_async_context(self.cluster)

    def server_options(self, relay_port: int) -> list[str]:
        """See Backend. A relay would be left at the first redirection."""
        return ["--backend", url_of(self.cluster), "--durability", "replica:1"]

    def clients(self) -> list[Client]:
        """See Backend."""
        every = [redis.Redis(LOCAL, node.port, decode_responses=True) for node in self.cluster.nodes]
        return [one for one in every if one.info("replication")["role"] == "master"]
