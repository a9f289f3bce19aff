"""Queues in the shards of a cluster: names for each shard, and the keys of all nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import redis

from pressure_server.queues.placement import Placement
from tests.support.cluster import Cluster, ClusterNode
from tests.support.nodes import LOCAL
from tests.support.programs import TIMEOUT, Server

PREFIX = b"__pressure__"
SHARDS = 16
PLACEMENT = Placement(PREFIX, SHARDS)
LISTENERS = (
    "--listen", "beanstalk://127.0.0.1:0", "--listen", "memcached://127.0.0.1:0",
    "--http", "http://127.0.0.1:0",
)  # fmt: skip


def queue_in(shard: int, word: str = "q") -> str:
    """Return the name of a queue in that shard; another one for each `word`."""
    return next(
        name
        for name in (f"{word}-{number}" for number in count())
        if PLACEMENT.shard_of(name.encode()) == shard
    )


def queue_in_each(word: str = "q") -> list[str]:
    """Return the name of a queue for each shard, in the order of shards."""
    return [queue_in(shard, word) for shard in range(SHARDS)]


def base_of(queue: str) -> str:
    """Return the base key of a queue."""
    return f"{PLACEMENT.prefixes[PLACEMENT.shard_of(queue.encode())].decode()}:{queue}"


def url_of(cluster: Cluster) -> str:
    """Return the URL of a cluster."""
    return f"redis+cluster://{cluster.addresses}"


@contextmanager
def direct_to(node: ClusterNode) -> Iterator[Any]:
    """Yield redis-py, connected to a node."""
    with redis.Redis(host=LOCAL, port=node.port, socket_timeout=TIMEOUT) as client:
        yield client


def on_each(cluster: Cluster, ask: Callable[[Any], Any]) -> list[Any]:
    """Return what `ask` returns for each running node."""
    replies = []
    for node in cluster.nodes:
        if node.is_running:
            with direct_to(node) as direct:
                replies.append(ask(direct))
    return replies


def keys_of_queues(cluster: Cluster) -> list[bytes]:
    """Return the keys of queues, on all nodes."""
    return [key for keys in on_each(cluster, lambda direct: direct.keys("*}:*")) for key in keys]


def node_with(cluster: Cluster, queue: str) -> ClusterNode:
    """Return the node that has a queue."""
    return asyncio.run(cluster.master_of(base_of(queue)))


def server_on(cluster: Cluster, log: Path, *options: str) -> Server:
    """Start a server on a cluster, with listeners of all protocols."""
    return Server(log, "--backend", url_of(cluster), *LISTENERS, *options)
