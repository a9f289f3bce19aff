"""Plans: how much is measured, in a full run and in a quick test of the benchmarks."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace


class BenchmarkError(Exception):
    """A measurement failed; the text says why."""


@dataclass(frozen=True)
class Load:
    """The numbers of clients and requests, and the depth of the pipeline, for redis-benchmark."""

    clients: int
    pipeline: int
    requests: int

    def __str__(self) -> str:
        clients = "1 client" if self.clients == 1 else f"{self.clients} clients"
        return f"{clients}, pipeline {self.pipeline}"


@dataclass(frozen=True)
class Case:
    """A load that is spread at random over a number of queues."""

    queues: int
    load: Load

    def __str__(self) -> str:
        queues = "1 queue" if self.queues == 1 else f"{self.queues:,} queues"
        return f"{queues}, {self.load}"


@dataclass(frozen=True)
class Plan:
    """The number of rounds, and the sizes of all measurements."""

    rounds: int
    single: Load
    plain: Load
    pipelined: Load
    cases: tuple[Case, ...]
    mixed: Case
    native_messages: int
    connections: tuple[int, ...]
    lengths: tuple[int, ...]
    operations: int
    hand_overs: int
    bounded_messages: int
    pipe_messages: int
    waiting: int
    woken: int
    gone_queues: int
    gone_connections: int
    gone_waits: int
    job_cases: tuple[Case, ...]
    synced_job_cases: tuple[Case, ...]
    job_seconds: float
    reservations: int
    jobs_in_memory: int

    def each_round(self, part: str) -> Iterator[int]:
        """Yield the numbers of the rounds, and print the progress to stderr."""
        for number in range(1, self.rounds + 1):
            print(f"{part}: round {number} of {self.rounds}", file=sys.stderr, flush=True)
            yield number


FULL = Plan(
    rounds=3,
    single=Load(clients=1, pipeline=1, requests=12_000),
    plain=Load(clients=50, pipeline=1, requests=80_000),
    pipelined=Load(clients=50, pipeline=16, requests=500_000),
    cases=(
        Case(1, Load(clients=1, pipeline=1, requests=6_000)),
        Case(1_000, Load(clients=1, pipeline=1, requests=6_000)),
        Case(1, Load(clients=50, pipeline=1, requests=40_000)),
        Case(10, Load(clients=50, pipeline=1, requests=40_000)),
        Case(1_000, Load(clients=50, pipeline=1, requests=30_000)),
        Case(100_000, Load(clients=50, pipeline=1, requests=30_000)),
        Case(1, Load(clients=50, pipeline=16, requests=300_000)),
        Case(10, Load(clients=50, pipeline=16, requests=300_000)),
        Case(1_000, Load(clients=50, pipeline=16, requests=60_000)),
        Case(100_000, Load(clients=50, pipeline=16, requests=60_000)),
    ),
    mixed=Case(1_000, Load(clients=50, pipeline=1, requests=40_000)),
    native_messages=1_500,
    connections=(1_000, 10_000),
    lengths=(1, 1_000, 1_000_000),
    operations=2_000,
    hand_overs=2_000,
    bounded_messages=1_000,
    pipe_messages=100_000,
    waiting=10_000,
    woken=1_000,
    gone_queues=300_000,
    gone_connections=100_000,
    gone_waits=50_000,
    job_cases=(
        Case(1, Load(clients=1, pipeline=1, requests=4_000)),
        Case(1_000, Load(clients=1, pipeline=1, requests=500)),
        Case(1, Load(clients=1, pipeline=16, requests=16_000)),
        Case(1_000, Load(clients=1, pipeline=16, requests=500)),
        Case(1, Load(clients=50, pipeline=1, requests=30_000)),
        Case(1_000, Load(clients=50, pipeline=1, requests=10_000)),
        Case(1, Load(clients=50, pipeline=16, requests=80_000)),
        Case(1_000, Load(clients=50, pipeline=16, requests=10_000)),
    ),
    synced_job_cases=(
        Case(1, Load(clients=50, pipeline=1, requests=2_000)),
        Case(1, Load(clients=50, pipeline=16, requests=4_000)),
    ),
    job_seconds=1.5,
    reservations=30_000,
    jobs_in_memory=100_000,
)
QUICK = replace(
    FULL,
    rounds=1,
    single=Load(clients=1, pipeline=1, requests=1_000),
    plain=Load(clients=50, pipeline=1, requests=5_000),
    pipelined=Load(clients=50, pipeline=16, requests=30_000),
    cases=(
        Case(1, Load(clients=1, pipeline=1, requests=500)),
        Case(10, Load(clients=50, pipeline=1, requests=3_000)),
        Case(1_000, Load(clients=50, pipeline=16, requests=5_000)),
    ),
    mixed=Case(100, Load(clients=50, pipeline=1, requests=3_000)),
    native_messages=200,
    connections=(100, 1_000),
    lengths=(1, 1_000, 20_000),
    operations=200,
    hand_overs=200,
    bounded_messages=200,
    pipe_messages=5_000,
    waiting=500,
    woken=50,
    gone_queues=6_000,
    gone_connections=3_000,
    gone_waits=3_000,
    job_cases=(
        Case(1, Load(clients=1, pipeline=1, requests=300)),
        Case(1, Load(clients=50, pipeline=1, requests=1_500)),
        Case(1, Load(clients=50, pipeline=16, requests=3_000)),
        Case(100, Load(clients=50, pipeline=16, requests=1_500)),
    ),
    synced_job_cases=(Case(1, Load(clients=50, pipeline=16, requests=320)),),
    job_seconds=0.0,
    reservations=1_000,
    jobs_in_memory=3_000,
)
