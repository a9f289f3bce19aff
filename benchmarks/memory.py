"""The memory of an idle connection: the growth of pressure-server's resident memory with many of them.

Does not include the kernel's memory for sockets.
"""

from contextlib import ExitStack

from benchmarks.crowd import allow_files, connect, resident_kib
from benchmarks.plan import Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import ours

_LIMIT_KIB = 6.0


def run(plan: Plan) -> list[Table]:
    """Measure a new server in each round, because a process rarely returns memory."""
    most = max(plan.connections)
    allow_files(most)
    samples = Samples()
    for _ in plan.each_round("memory"):
        with ours("--max-clients", str(most + most // 10)) as server, ExitStack() as clients:
            connect(server, range(10), clients)  # not counted: memory for the first clients only
            idle, before = 0, resident_kib(server)
            for count in plan.connections:
                connect(server, range(idle, count), clients)
                idle = count
                samples.add(count, "ours", (resident_kib(server) - before) / count)
    return [
        Table(
            "memory",
            f"KiB of resident memory per idle connection, median of {plan.rounds} rounds",
            ("ours",),
            [_row(samples, count) for count in plan.connections],
        )
    ]


def _row(samples: Samples, count: int) -> Row:
    kib = samples.median(count, "ours")
    return Row(f"{count:,} connections", (kib,), Target("KiB", kib, at_most=_LIMIT_KIB), samples.of(count))
