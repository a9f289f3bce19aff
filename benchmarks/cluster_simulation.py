"""Simulate a cluster: servers, shards on nodes, and clients with skewed queues.

    python -m benchmarks.cluster_simulation [--seed 1] [--seconds 0.1]

Each server and each node has a processor, which does one thing after the other, in the times that
`benchmarks.capacity` measures. No network and no kernel is simulated, and no other program uses the
processors.
"""

import argparse
import heapq
import random
import statistics
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count
from typing import NamedTuple

# Queues; a client uses a few of them. The skew: the share of the n-th queue is proportional to 1 / n ** SKEW.
_QUEUES = 100_000
_QUEUES_OF_CLIENT = 3
_SHARDS_OF_NODE = 4
_CLIENTS_OF_SERVER = 50
# Most blocks of a call.
_MOST_BLOCKS = 200
# Seconds that are simulated before the measurement.
_RUN_IN = 0.05
_LATE = 0.99
# For how long a node is lost, in seconds (longer than the simulation), and a shard's slot is moved.
_LOST = 15.0
_MOVED = 0.1


class Costs(NamedTuple):
    """Microseconds of a processor: of the server for a request and for a call, of a node for both."""

    request: float = 10.0
    call: float = 23.0
    block: float = 18.0
    node_call: float = 32.0


@dataclass
class Processor:
    """A processor: it does one thing after the other. `free_at` is when it has done all, in seconds."""

    free_at: float = 0.0
    used: float = 0.0

    def do(self, now: float, microseconds: float) -> float:
        """Do some work. Return when it is done."""
        self.free_at = max(now, self.free_at) + microseconds / 1e6
        self.used += microseconds / 1e6
        return self.free_at


class Request(NamedTuple):
    """A request of a client for a queue of a shard, and when it was sent."""

    server: int
    shard: int
    sent: float
    again: Callable[[float], None]


@dataclass
class Shard:
    """A server's side of a shard: what waits for a call, and whether one is in flight."""

    waiting: list[Request] = field(default_factory=list)
    is_called: bool = False


class Result(NamedTuple):
    """What was measured after the simulation had run in."""

    rate: float
    median: float
    late: float
    requests_per_call: float
    busiest_node: float
    mean_node: float
    mean_server: float


class Cluster:
    """A simulated cluster. All clients always have a request in flight."""

    def __init__(self, nodes: int, servers: int, skew: float, costs: Costs, seed: int) -> None:
        chance = random.Random(seed)
        self._costs = costs
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._nodes = [Processor() for _ in range(nodes)]
        self._servers = [Processor() for _ in range(servers)]
        shards = nodes * _SHARDS_OF_NODE
        self._shards = [[Shard() for _ in range(shards)] for _ in range(servers)]
        self._shard_is_free_at = [0.0] * (nodes * _SHARDS_OF_NODE)
        self._now = 0.0
        self._latencies: list[float] = []
        self._called: list[int] = []  # requests of each call
        shares = list(accumulate(1 / rank**skew for rank in range(1, _QUEUES + 1)))
        shard_of = [chance.randrange(shards) for _ in range(_QUEUES)]
        for server in range(servers):
            for _ in range(_CLIENTS_OF_SERVER):
                queues = [bisect(shares, chance.random() * shares[-1]) for _ in range(_QUEUES_OF_CLIENT)]
                client = partial(self._send, server, [shard_of[queue] for queue in queues], chance)
                self._at(chance.random() / 1e3, client)

    def _at(self, time: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), what))

    def _send(self, server: int, shards: list[int], chance: random.Random, now: float) -> None:
        """Let a client send its next request, for one of its queues."""
        read = self._servers[server].do(now, self._costs.request)
        again = partial(self._send, server, shards, chance)
        self._at(read, partial(self._enter, Request(server, chance.choice(shards), now, again)))

    def _enter(self, request: Request, now: float) -> None:
        shard = self._shards[request.server][request.shard]
        shard.waiting.append(request)
        if not shard.is_called:
            shard.is_called = True
            # What comes meanwhile leaves with the same call.
            self._at(max(now, self._servers[request.server].free_at), partial(self._call, request))

    def _call(self, first: Request, now: float) -> None:
        shard = self._shards[first.server][first.shard]
        requests, shard.waiting = shard.waiting[:_MOST_BLOCKS], shard.waiting[_MOST_BLOCKS:]
        sent = self._servers[first.server].do(now, self._costs.call)
        self._called.append(len(requests))
        self._at(sent, partial(self._arrive, requests))

    def _arrive(self, requests: list[Request], now: float) -> None:
        """Let the node of a shard do a call."""
        shard = requests[0].shard
        if now < self._shard_is_free_at[shard]:
            self._at(self._shard_is_free_at[shard], partial(self._arrive, requests))
            return
        node = self._nodes[shard // _SHARDS_OF_NODE]
        done = node.do(now, self._costs.node_call + self._costs.block * len(requests))
        self._at(done, partial(self._answer, requests))

    def _answer(self, requests: list[Request], now: float) -> None:
        first = requests[0]
        shard = self._shards[first.server][first.shard]
        for request in requests:
            self._latencies.append(now - request.sent)
            request.again(now)
        shard.is_called = bool(shard.waiting)
        if shard.is_called:
            self._at(max(now, self._servers[first.server].free_at), partial(self._call, first))

    def lose_node(self) -> None:
        """Let the first node do nothing from now on, until its replica takes over."""
        self._nodes[0].free_at = self._now + _LOST

    def move_slot(self) -> None:
        """Let the first shard refuse calls from now on, until its slot has moved."""
        self._shard_is_free_at[0] = self._now + _MOVED

    def run(self, seconds: float, trouble: Callable[[], None] | None = None) -> Result:
        """Simulate some seconds. The trouble, if any, comes before the measurement begins."""
        self._until(_RUN_IN)
        if trouble is not None:
            trouble()
            self._until(2 * _RUN_IN)
        begin = self._now
        self._latencies.clear()
        self._called.clear()
        for processor in (*self._nodes, *self._servers):
            processor.used = 0.0
        self._until(begin + seconds)
        latencies = sorted(self._latencies) or [0.0]
        nodes = [processor.used / seconds for processor in self._nodes]
        return Result(
            len(latencies) / seconds,
            statistics.median(latencies) * 1e3,
            latencies[int(_LATE * len(latencies))] * 1e3,
            statistics.mean(self._called or [0]),
            max(nodes),
            statistics.mean(nodes),
            statistics.mean(processor.used / seconds for processor in self._servers),
        )

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] < end:
            now, _, what = heapq.heappop(self._events)
            self._now = now
            what(now)


_HEADING = (
    "nodes", "servers", "skew", "trouble", "requests/s", "p50 ms", "p99 ms", "a call", "busiest node",
    "mean node", "mean server",
)  # fmt: skip


def main() -> None:
    """Print a table of clusters."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the queues and their choice")
    parser.add_argument("--seconds", type=float, default=0.1, help="simulated in each line")
    options = parser.parse_args()
    print("| " + " | ".join(_HEADING) + " |")
    print("|" + "---|" * len(_HEADING))
    for nodes, servers in ((1, 1), (1, 2), (3, 6), (10, 20), (10, 40), (100, 200)):
        for skew, trouble in ((0.0, ""), (1.0, ""), (1.0, "node lost"), (1.0, "slot moved")):
            if trouble and nodes < 10:
                continue
            cluster = Cluster(nodes, servers, skew, Costs(), options.seed)
            troubles = {"": None, "node lost": cluster.lose_node, "slot moved": cluster.move_slot}
            found = cluster.run(options.seconds, troubles[trouble])
            print(
                f"| {nodes} | {servers} | {skew:g} | {trouble} | {found.rate:,.0f} | {found.median:.1f} | "
                f"{found.late:.1f} | {found.requests_per_call:.1f} | {found.busiest_node:.0%} | "
                f"{found.mean_node:.0%} | {found.mean_server:.0%} |"
            )


if __name__ == "__main__":
    main()
