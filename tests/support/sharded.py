"""Queues in the shards of a cluster: their names, the keys of all nodes, and what scripts do there."""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import redis

from pressure_server.queues.placement import Placement
from tests.support.cluster import Cluster, ClusterNode
from tests.support.programs import TIMEOUT, Server
from tests.support.waiters import Waiter

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
    with redis.Redis(host=node.host, port=node.port, socket_timeout=TIMEOUT) as client:
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


_LINE = re.compile(rb"[\d.]+ \[\d+ (\S+)\] (.*)", re.DOTALL)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
# The words that are keys of a server with the usual prefix, and of a server with any other one.
_KEY = re.compile(rb"__pressure__.*", re.DOTALL)
_TAG = re.compile(rb"__pressure__:\{(\d+)\}")
_CALLS = (b"FCALL", b"EVAL", b"EVALSHA")
# Commands of scripts that have no key.
_KEYLESS = {b"TIME", b"PING", b"INFO", b"PUBLISH"}


class Call(NamedTuple):
    """A call of a script, and the commands that it has done."""

    words: list[bytes]
    commands: list[list[bytes]]

    @property
    def keys(self) -> list[bytes]:
        """The keys that the call declares."""
        return self.words[3 : 3 + int(self.words[2])]

    def faults(self) -> list[str]:
        """Return what is wrong with the call: it declares no slot or several, or leaves its slot."""
        slots = {_slot(key) for key in self.keys}
        if len(slots) != 1:
            return [f"{self.words[:8]} declares keys of {len(slots)} slots"]
        faults = []
        for command in self.commands:
            # Any word that is a key: also one that is stored as a value would be used later.
            keys = {word for word in command[1:] if _KEY.match(word)}
            if not keys and command[0].upper() not in _KEYLESS:
                faults.append(f"{command[:4]} has no key of this server")
            if {_slot(key) for key in keys} - slots:
                faults.append(f"{command[:6]} leaves the slot of {self.keys[:3]}")
        return faults


def _slot(key: bytes) -> bytes | None:
    found = _TAG.match(key)
    return found[1] if found else None


def calls_in(lines: Iterable[bytes]) -> list[Call]:
    """Return the calls of scripts in the lines of MONITOR of one node."""
    calls: list[Call] = []
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        words = _WORD.findall(found[2])
        if found[1] == b"lua":
            calls[-1].commands.append(words)
        elif words[0].upper() in _CALLS:
            calls.append(Call(words, []))
    return calls


def faults_in(calls: Sequence[Call]) -> list[str]:
    """Return all faults, each once."""
    return list(dict.fromkeys(fault for call in calls for fault in call.faults()))


@contextmanager
def watched(cluster: Cluster) -> Iterator[list[Call]]:
    """Collect the calls of all nodes; the list is complete after the block."""
    calls: list[Call] = []
    with ExitStack() as stack:
        watches = [stack.enter_context(_NodeWatch(node.port)) for node in cluster.nodes]
        yield calls
        for watch in watches:
            calls += calls_in(watch.lines())


class _NodeWatch(Waiter):
    """A connection to a node that sends it the commands of all clients."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._port = port
        assert self("MONITOR") == b"OK"

    def lines(self) -> list[bytes]:
        """Return all lines until now."""
        end = secrets.token_hex(8).encode()
        with Waiter(self._port) as last:
            assert last("ECHO", end) == end
        found = [self.reply()]
        while end not in found[-1]:
            found.append(self.reply())
        return found[:-1]
