"""The plan: the kinds of faults, and a seed's faults with their order, targets and lengths."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Target(Enum):
    """The target of a fault. A line is one of a proxy's relays."""

    PROXY = "proxy"
    BACKEND = "backend"
    BACKEND_LINE = "backend line of proxy"
    CLIENT_LINE = "client line of proxy"


class Timeouts(NamedTuple):
    """The server's timeouts in seconds. The length of a fault is given in one of them, or in seconds."""

    proxy: float
    backend: float
    grace: float
    second: float = 1.0


class Kind(NamedTuple):
    """A kind of fault. It lasts from `shortest` to `longest` times `unit`, a field of `Timeouts`."""

    name: str
    target: Target
    shortest: float
    longest: float
    unit: str = "second"
    breaks_a_process: bool = False


PROXY_KILLED = Kind("proxy killed", Target.PROXY, 0.0, 1.0, breaks_a_process=True)
PROXY_DEAD = Kind("proxy killed for long", Target.PROXY, 1.5, 2.0, "proxy", breaks_a_process=True)
PROXY_ENDED = Kind("proxy terminated", Target.PROXY, 0.0, 0.5, breaks_a_process=True)
PROXY_STOPPED = Kind("proxy stopped", Target.PROXY, 0.1, 0.6, "proxy", breaks_a_process=True)
PROXY_ZOMBIE = Kind("proxy stopped for long", Target.PROXY, 1.5, 2.0, "proxy", breaks_a_process=True)
# One process of a server that has several. The supervisor kills one that hangs after ten seconds.
WORKER_KILLED = Kind("worker killed", Target.PROXY, 0.0, 0.0, breaks_a_process=True)
WORKER_STOPPED = Kind("worker stopped", Target.PROXY, 0.1, 0.6, "proxy", breaks_a_process=True)
WORKER_HANGS = Kind("worker stopped for long", Target.PROXY, 11.0, 14.0, breaks_a_process=True)
POWER_CUT = Kind("backend's power cut", Target.BACKEND, 0.0, 0.4, "grace", breaks_a_process=True)
LONG_POWER_CUT = Kind(
    "backend's power cut for long", Target.BACKEND, 1.2, 1.6, "grace", breaks_a_process=True
)
BACKEND_STOPPED = Kind("backend stopped", Target.BACKEND, 0.1, 0.7, "backend", breaks_a_process=True)
BACKEND_HANGS = Kind("backend stopped for long", Target.BACKEND, 1.2, 1.8, "backend", breaks_a_process=True)
CLIENTS_HANG_UP = Kind("clients hang up in a stall", Target.BACKEND, 0.2, 0.35, "backend")
CLIENTS_KILLED = Kind("backend's clients killed", Target.BACKEND, 0.0, 0.0)
SCRIPTS_FLUSHED = Kind("scripts flushed", Target.BACKEND, 0.0, 0.0)
BACKEND_CUT = Kind("backend line cut", Target.BACKEND_LINE, 0.0, 0.0)
BACKEND_HALF_CUT = Kind("backend line cut in a reply", Target.BACKEND_LINE, 0.2, 0.6)
BACKEND_STALLED = Kind("backend line stalled", Target.BACKEND_LINE, 0.1, 0.7, "backend")
BACKEND_SILENT = Kind("backend line stalled for long", Target.BACKEND_LINE, 1.2, 1.8, "backend")
BACKEND_SLOW = Kind("backend line slow", Target.BACKEND_LINE, 0.5, 2.0)
BACKEND_REFUSED = Kind("backend line refused", Target.BACKEND_LINE, 0.2, 0.7, "grace")
BACKEND_GONE = Kind("backend line refused for long", Target.BACKEND_LINE, 1.2, 1.6, "grace")
CLIENTS_CUT = Kind("client line cut", Target.CLIENT_LINE, 0.0, 0.0)
CLIENTS_HALF_CUT = Kind("client line cut in a reply", Target.CLIENT_LINE, 0.2, 0.6)
CLIENTS_STALLED = Kind("client line stalled", Target.CLIENT_LINE, 0.2, 2.0)
CLIENTS_SLOW = Kind("client line slow", Target.CLIENT_LINE, 0.5, 2.0)
CLIENTS_REFUSED = Kind("client line refused", Target.CLIENT_LINE, 0.2, 1.0)
SLOT_MOVED = Kind("slot moved", Target.BACKEND, 0.0, 0.5)
FAILED_OVER = Kind("failover asked for", Target.BACKEND, 0.0, 0.0)
MASTER_CUT = Kind("master's power cut", Target.BACKEND, 0.0, 1.0, breaks_a_process=True)
REPLICA_CUT = Kind("replica's power cut", Target.BACKEND, 0.0, 1.0, breaks_a_process=True)
SHARDS_LOST = Kind("master and replica killed", Target.BACKEND, 0.0, 0.0, breaks_a_process=True)
PARTITION = Kind("network partition", Target.BACKEND, 0.5, 5.0, breaks_a_process=True)
LOSSY = Kind("network lossy", Target.BACKEND, 1.0, 5.0, breaks_a_process=True)
GARBAGE = Kind("garbage sent", Target.PROXY, 0.0, 0.0)
BURST = Kind("burst of connections", Target.PROXY, 0.0, 0.0)

KINDS = (
    PROXY_KILLED, PROXY_DEAD, PROXY_ENDED, PROXY_STOPPED, PROXY_ZOMBIE,
    POWER_CUT, LONG_POWER_CUT, BACKEND_STOPPED, BACKEND_HANGS, CLIENTS_HANG_UP, CLIENTS_KILLED,
    SCRIPTS_FLUSHED,
    BACKEND_CUT, BACKEND_HALF_CUT, BACKEND_STALLED, BACKEND_SILENT, BACKEND_SLOW, BACKEND_REFUSED,
    BACKEND_GONE,
    CLIENTS_CUT, CLIENTS_HALF_CUT, CLIENTS_STALLED, CLIENTS_SLOW, CLIENTS_REFUSED,
    GARBAGE, BURST,
)  # fmt: skip
KINDS_OF_WORKERS = (WORKER_KILLED, WORKER_KILLED, WORKER_STOPPED, WORKER_HANGS)
# The kinds for a cluster. Each stands here as often as it comes before all kinds come again.
KINDS_OF_CLUSTER = (
    *[SLOT_MOVED] * 6, *[FAILED_OVER] * 2, *[PARTITION] * 4, *[LOSSY] * 2, MASTER_CUT, REPLICA_CUT,
    PROXY_KILLED, PROXY_DEAD, CLIENTS_CUT,
)  # fmt: skip
# The same with Sentinel.
KINDS_OF_SENTINEL = (
    *[PARTITION] * 3, LOSSY, MASTER_CUT, REPLICA_CUT, PROXY_KILLED, PROXY_DEAD, CLIENTS_CUT,
)  # fmt: skip

# What a run may be confined to.
ONLY: Mapping[str, Callable[[Kind], bool]] = {
    "connections": lambda kind: not kind.breaks_a_process,
    "hang-ups": lambda kind: kind is CLIENTS_HANG_UP,
    "power-cuts": lambda kind: kind in {POWER_CUT, LONG_POWER_CUT, MASTER_CUT, REPLICA_CUT},
    "partitions": lambda kind: kind in {PARTITION, LOSSY},
}

# Faults that no server can prevent. The run must report them.
STOLEN = Kind("message stolen", Target.BACKEND, 0.0, 0.0)
COPIED = Kind("message copied", Target.BACKEND, 0.0, 0.0)
FORGED = Kind("message forged", Target.BACKEND, 0.0, 0.0)
# The same for a queue into which all puts have a transaction id, for a log, and for a group.
COPIED_ONCE = Kind("message with an id copied", Target.BACKEND, 0.0, 0.0)
COPIED_IN_LOG = Kind("message copied in a log", Target.BACKEND, 0.0, 0.0)
STOLEN_FROM_GROUP = Kind("message stolen from a group", Target.BACKEND, 0.0, 0.0)
# What may last while all messages are put.
STAYING = {kind.name: kind for kind in (PROXY_KILLED, CLIENTS_STALLED, PARTITION, SHARDS_LOST)}
SABOTAGE = (STOLEN, COPIED, FORGED)
SABOTAGE_OF_LOGS = (COPIED_ONCE, COPIED_IN_LOG, STOLEN_FROM_GROUP)

# Seconds between two faults, from and to.
_PAUSES = (0.2, 1.5)
# The share of faults that last while the next one begins.
_OVERLAPPING = 0.25


@dataclass(frozen=True)
class Fault:
    """One fault. It begins `pause` seconds after the previous one ends, or begins if that one `overlaps`.

    `place` is the proxy's number. `seed` decides everything else that is random.
    """

    kind: Kind
    place: int
    pause: float
    seconds: float
    overlaps: bool
    seed: int


def make(among: Sequence[Kind], count: int, proxies: int, timeouts: Timeouts, seed: int) -> list[Fault]:
    """Return `count` faults. Each of `among` comes once before any comes again."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    while len(faults) < count:
        for kind in chance.sample(among, min(len(among), count - len(faults))):
            seconds = chance.uniform(kind.shortest, kind.longest) * getattr(timeouts, kind.unit)
            faults.append(
                Fault(
                    kind,
                    place=chance.randrange(proxies),
                    pause=chance.uniform(*_PAUSES),
                    seconds=seconds,
                    overlaps=chance.random() < _OVERLAPPING,
                    seed=chance.randrange(1 << 32),
                )
            )
    return faults
