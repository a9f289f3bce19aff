"""What an idle connection costs: pressure-server's resident memory with many of them, less that without.

What the kernel keeps for a socket is not part of it.
"""

from __future__ import annotations

import resource
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.client import Client
from benchmarks.plan import BenchmarkError, Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Server, ours

_LIMIT_KIB = 6.0
_OTHER_FILES = 64
_PER_ADDRESS = 4_000  # connections from one address, which has some 28 000 ports that others use, too
_SETTLE_SECONDS = 0.3


def run(plan: Plan) -> Table:
    """A new server in each round, since memory that was used once stays with a program."""
    most = max(plan.connections)
    _allow_files(most + _OTHER_FILES)
    samples = Samples()
    for _ in plan.each_round("memory"):
        with ours("--max-clients", str(most + most // 10)) as server, ExitStack() as clients:
            _connect(server, range(10), clients)  # what comes with the first few only is not counted
            idle, before = 0, _resident_kib(server)
            for count in plan.connections:
                _connect(server, range(idle, count), clients)
                idle = count
                samples.add(count, "ours", (_resident_kib(server) - before) / count)
    return Table(
        "memory",
        f"KiB of resident memory for an idle connection, median of {plan.rounds}",
        ("ours",),
        [_row(samples, count) for count in plan.connections],
    )


def _allow_files(count: int) -> None:
    """Let this process, and those it starts, have so many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise BenchmarkError(f"{count} open files are needed, and the hard limit (ulimit -Hn) is {hard}")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _connect(server: Server, numbers: range, clients: ExitStack) -> None:
    """Connections that each had one reply and then stay idle until `clients` is closed."""
    for number in numbers:
        client = clients.enter_context(Client(server.port, f"127.0.0.{1 + number // _PER_ADDRESS}"))
        client("PING")


def _resident_kib(server: Server) -> float:
    time.sleep(_SETTLE_SECONDS)
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


def _row(samples: Samples, count: int) -> Row:
    kib = samples.median(count, "ours")
    return Row(f"{count:,} connections", (kib,), Target("KiB", kib, at_most=_LIMIT_KIB), samples.of(count))
