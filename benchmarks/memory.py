"""What an idle connection costs: pressure-server's resident memory with many of them, less that without.

What the kernel keeps for a socket is not part of it.
"""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.crowd import allow_files, connect, resident_kib
from benchmarks.plan import Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import ours

_LIMIT_KIB = 6.0


def run(plan: Plan) -> list[Table]:
    """A new server in each round, since memory that was used once stays with a program."""
    most = max(plan.connections)
    allow_files(most)
    samples = Samples()
    for _ in plan.each_round("memory"):
        with ours("--max-clients", str(most + most // 10)) as server, ExitStack() as clients:
            connect(server, range(10), clients)  # what comes with the first few only is not counted
            idle, before = 0, resident_kib(server)
            for count in plan.connections:
                connect(server, range(idle, count), clients)
                idle = count
                samples.add(count, "ours", (resident_kib(server) - before) / count)
    return [
        Table(
            "memory",
            f"KiB of resident memory for an idle connection, median of {plan.rounds}",
            ("ours",),
            [_row(samples, count) for count in plan.connections],
        )
    ]


def _row(samples: Samples, count: int) -> Row:
    kib = samples.median(count, "ours")
    return Row(f"{count:,} connections", (kib,), Target("KiB", kib, at_most=_LIMIT_KIB), samples.of(count))
