"""The plan: which faults come, in which order, at what and for how long; all of it from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Target(Enum):
    """What a fault is done to. A line is the relay before or behind one proxy."""

    PROXY = "proxy"
    BACKEND = "backend"
    BACKEND_LINE = "backend line of proxy"
    CLIENT_LINE = "client line of proxy"


class Timeouts(NamedTuple):
    """Of the server, in seconds: a fault is longer or shorter than one of them."""

    proxy: float
    backend: float
    grace: float
    none: float = 1.0


class Kind(NamedTuple):
    """A kind of fault. It lasts from `shortest` to `longest` times the timeout that it is measured by."""

    name: str
    target: Target
    shortest: float
    longest: float
    measure: str = "none"
    breaks_a_process: bool = False


PROXY_KILLED = Kind("proxy killed", Target.PROXY, 0.0, 1.0, breaks_a_process=True)
PROXY_DEAD = Kind("proxy killed for long", Target.PROXY, 1.5, 2.0, "proxy", breaks_a_process=True)
PROXY_ENDED = Kind("proxy terminated", Target.PROXY, 0.0, 0.5, breaks_a_process=True)
PROXY_STOPPED = Kind("proxy stopped", Target.PROXY, 0.1, 0.6, "proxy", breaks_a_process=True)
PROXY_ZOMBIE = Kind("proxy stopped for long", Target.PROXY, 1.5, 2.0, "proxy", breaks_a_process=True)
BACKEND_KILLED = Kind("backend killed", Target.BACKEND, 0.0, 0.4, "grace", breaks_a_process=True)
BACKEND_AWAY = Kind("backend killed for long", Target.BACKEND, 1.2, 1.6, "grace", breaks_a_process=True)
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
GARBAGE = Kind("garbage sent", Target.PROXY, 0.0, 0.0)
BURST = Kind("burst of connections", Target.PROXY, 0.0, 0.0)

KINDS = (
    PROXY_KILLED, PROXY_DEAD, PROXY_ENDED, PROXY_STOPPED, PROXY_ZOMBIE,
    BACKEND_KILLED, BACKEND_AWAY, BACKEND_STOPPED, BACKEND_HANGS, CLIENTS_HANG_UP, CLIENTS_KILLED,
    SCRIPTS_FLUSHED,
    BACKEND_CUT, BACKEND_HALF_CUT, BACKEND_STALLED, BACKEND_SILENT, BACKEND_SLOW, BACKEND_REFUSED,
    BACKEND_GONE,
    CLIENTS_CUT, CLIENTS_HALF_CUT, CLIENTS_STALLED, CLIENTS_SLOW, CLIENTS_REFUSED,
    GARBAGE, BURST,
)  # fmt: skip

# What no server can do anything about: it must be found out.
STOLEN = Kind("message stolen", Target.BACKEND, 0.0, 0.0)
COPIED = Kind("message copied", Target.BACKEND, 0.0, 0.0)
FORGED = Kind("message forged", Target.BACKEND, 0.0, 0.0)
SABOTAGE = (STOLEN, COPIED, FORGED)

# Seconds between two faults.
_PAUSES = (0.2, 1.5)
# How many of them are still there when the next comes.
_OVERLAPPING = 0.25


@dataclass(frozen=True)
class Fault:
    """One fault: `pause` seconds after the one before it has ended, or, where that `overlaps`, begun.

    `place` is the proxy's number; `seed` decides what else is random.
    """

    kind: Kind
    place: int
    pause: float
    seconds: float
    overlaps: bool
    seed: int


def kinds(*, only_connections: bool) -> Sequence[Kind]:
    """All, or those that break connections and no process."""
    return [kind for kind in KINDS if not (only_connections and kind.breaks_a_process)]


def make(among: Sequence[Kind], count: int, proxies: int, timeouts: Timeouts, seed: int) -> list[Fault]:
    """`count` faults; every kind once before any comes again."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    while len(faults) < count:
        for kind in chance.sample(among, min(len(among), count - len(faults))):
            seconds = chance.uniform(kind.shortest, kind.longest) * getattr(timeouts, kind.measure)
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


def seconds(faults: Sequence[Fault]) -> float:
    """About how long they take."""
    return sum(fault.pause + (0.0 if fault.overlaps else fault.seconds) for fault in faults)
