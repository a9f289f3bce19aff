"""SADD and SPOP a second, as redis-benchmark counts them: ours, Redis itself, and twemproxy."""

from __future__ import annotations

import csv
import subprocess

from benchmarks.client import Client
from benchmarks.plan import BenchmarkError, Load, Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Subject, ours, program, redis_server, twemproxy

COMMANDS = ("SADD", "SPOP")
_QUEUE = "bench:queue"
_SECONDS = 60
_SUBJECTS = ("ours", "redis", "twemproxy")


def run(plan: Plan) -> Table:
    """Every load on every subject, one subject after the other in each round."""
    samples = Samples()
    with ours() as server, redis_server() as plain, twemproxy() as proxy:
        for _ in plan.each_round("throughput"):
            for load in plan.loads:
                for subject in (server, plain, proxy):
                    for command, rate in zip(COMMANDS, add_and_pop(subject, load), strict=True):
                        samples.add((command, load), subject.name, rate)
    return Table(
        "throughput",
        f"requests a second, median of {plan.rounds}",
        (*_SUBJECTS, "ours/redis", "ours/twemproxy"),
        [_row(samples, plan, command, load) for load in plan.loads for command in COMMANDS],
    )


def add_and_pop(subject: Subject, load: Load) -> tuple[float, float]:
    """SADDs a second into an empty set or queue, then SPOPs of most of what is there."""
    pops = load.requests * 4 // 5
    with Client(subject.port) as client:
        for requests in (load.requests // 10, load.requests):  # the first is to warm up
            client("DEL", _QUEUE)
            adds_a_second = _rate(subject, load, requests, "SADD", _QUEUE, "element:__rand_int__")
        added = client("SCARD", _QUEUE)
        pops_a_second = _rate(subject, load, pops, "SPOP", _QUEUE)
        popped = added - client("SCARD", _QUEUE)
        client("DEL", _QUEUE)
    # redis-benchmark counts errors as it counts other replies; a few of its random members are equal.
    if added < load.requests * 0.99 or popped < pops:
        raise BenchmarkError(f"{subject.name} added {added} of {load.requests}, popped {popped} of {pops}")
    return adds_a_second, pops_a_second


def _rate(subject: Subject, load: Load, requests: int, *command: str) -> float:
    arguments = [
        program("redis-benchmark"), "-p", str(subject.port), "-n", str(requests), "-r", "1000000000",
        "-c", str(load.clients), "-P", str(load.pipeline), "--csv", *command,
    ]  # fmt: skip
    try:
        finished = subprocess.run(
            arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{command[0]} on {subject.name} took over {_SECONDS} seconds") from error
    lines = list(csv.DictReader(finished.stdout.splitlines()))
    if finished.returncode or len(lines) != 1:
        said = " ".join((finished.stderr or finished.stdout).split())
        raise BenchmarkError(f"redis-benchmark failed on {subject.name}: {said}")
    return float(lines[0]["rps"])


def _row(samples: Samples, plan: Plan, command: str, load: Load) -> Row:
    of = (command, load)
    to_redis, to_twemproxy = (samples.ratio(of, "ours", other) for other in ("redis", "twemproxy"))
    if load == plan.single:
        target = Target("x redis", to_redis, at_least=0.5)
    elif load == plan.plain:
        target = Target("x twemproxy", to_twemproxy, at_least=1.0)
    else:
        target = Target("x twemproxy", to_twemproxy, at_least=1.2)
    rates = [samples.median(of, subject) for subject in _SUBJECTS]
    return Row(f"{command}, {load}", (*rates, to_redis, to_twemproxy), target, samples.of(of))
