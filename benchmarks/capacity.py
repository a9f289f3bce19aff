"""A model of the processor time of a request, fitted to five measurements and compared with nine others.

    python -m benchmarks.capacity [--rounds 3]

Microseconds of a request = what each costs + `reads` (one for each pipeline) + `blocks` (one for each queue
of a call) + `calls`. The backend's blocks cost more the more queues there are, as its caches have fewer of
them: `blocks` · log10(queues) fits best.
"""

import argparse
from collections.abc import Sequence
from math import log10
from statistics import median
from typing import NamedTuple

from benchmarks.plan import Case, Load
from benchmarks.subjects import ours
from benchmarks.throughput import Measured, measure

_FITTED = (
    Case(1, Load(50, 1, 60_000)),
    Case(1, Load(50, 16, 400_000)),
    Case(1_000, Load(50, 1, 40_000)),
    Case(1_000, Load(50, 16, 100_000)),
    Case(1_000, Load(5, 1, 20_000)),
)
_COMPARED = (
    Case(10, Load(50, 1, 40_000)),
    Case(10, Load(50, 16, 200_000)),
    Case(30, Load(5, 1, 20_000)),
    Case(30, Load(50, 4, 80_000)),
    Case(100, Load(50, 1, 40_000)),
    Case(100, Load(20, 4, 60_000)),
    Case(300, Load(200, 1, 40_000)),
    Case(5_000, Load(50, 4, 60_000)),
    Case(20_000, Load(50, 1, 40_000)),
)
_COMMANDS = ("SADD", "SPOP")
_STEPS = 20_000


class Shares(NamedTuple):
    """How many of each part a request needs, on average."""

    request: float
    reads: float
    blocks: float
    spread_blocks: float
    calls: float


_SERVER = ("request", "reads", "blocks", "calls")
_BACKEND = ("request", "spread_blocks", "calls")


def shares(case: Case, calls: float) -> Shares:
    """Return the shares of a request, from the load and the measured number of calls for a request."""
    pipeline, queues = case.load.pipeline, case.queues
    requests = 1 / calls
    blocks = queues * (1 - (1 - 1 / queues) ** requests) / requests
    return Shares(1.0, 1 / pipeline, blocks, blocks * log10(queues), calls)


def fitted(parts: Sequence[str], points: Sequence[tuple[Shares, float]]) -> dict[str, float]:
    """Return microseconds of each part, none negative, that give the least sum of squared relative errors."""
    rows = [([getattr(share, part) / time for part in parts]) for share, time in points]
    costs = [1.0] * len(parts)
    for _ in range(_STEPS):
        for number in range(len(parts)):
            column = [row[number] for row in rows]
            left = [
                1
                - sum(cost * value for cost, value in zip(costs, row, strict=True))
                + costs[number] * row[number]
                for row in rows
            ]
            found = sum(a * b for a, b in zip(column, left, strict=True)) / sum(value**2 for value in column)
            costs[number] = max(0.0, found)
    return dict(zip(parts, costs, strict=True))


def _predicted(costs: dict[str, float], share: Shares) -> float:
    return sum(cost * float(getattr(share, part)) for part, cost in costs.items())


def main() -> None:
    """Measure, fit, and print two tables for each command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="of measurements; medians count")
    rounds = parser.parse_args().rounds
    found: dict[tuple[str, Case], list[Measured]] = {}
    with ours() as server:
        for _ in range(rounds):
            for case in (*_FITTED, *_COMPARED):
                for command, measured in measure(server, case):
                    found.setdefault((command, case), []).append(measured)
    for command in _COMMANDS:
        points = {}
        for case in (*_FITTED, *_COMPARED):
            several = found[command, case]
            calls = median(one.calls for one in several)
            times = {name: median(getattr(one, name) for one in several) for name in ("server", "backend")}
            points[case] = shares(case, calls), times
        costs = {
            side: fitted(parts, [(points[case][0], points[case][1][side]) for case in _FITTED])
            for side, parts in (("server", _SERVER), ("backend", _BACKEND))
        }
        print(f"\n{command}, microseconds of each part")
        for side, each in costs.items():
            print(f"  {side}: " + ", ".join(f"{part} {cost:.1f}" for part, cost in each.items()))
        print("| load | requests a call | server | model | error | backend | model | error |")
        print("|" + "---|" * 8)
        for case, (share, times) in points.items():
            cells = [f"{case}{'' if case in _FITTED else ' (not fitted)'}", f"{1 / share.calls:.0f}"]
            for side in ("server", "backend"):
                predicted = _predicted(costs[side], share)
                cells += [f"{times[side]:.1f}", f"{predicted:.1f}", f"{predicted / times[side] - 1:+.0%}"]
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
