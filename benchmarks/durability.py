"""SADD and SPOP per second at each level of durability: pressure-server, and Redis with an append-only file.

At the level `fsync` the backend has `appendfsync always`; at `replica` it has a replica.
"""

from contextlib import ExitStack
from dataclasses import replace

from benchmarks.one_queue import COMMANDS, add_and_pop
from benchmarks.plan import Load, Plan
from benchmarks.results import Row, Samples, Table
from benchmarks.subjects import Subject, ours_before, redis_server, replica_of

_ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
_EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec")
_SUBJECTS = ("ours, none", "ours, fsync", "ours, replica", "redis, always", "redis, everysec")


def run(plan: Plan) -> list[Table]:
    """Measure every load on every subject, one subject after the other in each round."""
    samples = Samples()
    with ExitStack() as stack:
        subjects = _subjects(stack)
        for _ in plan.each_round("durability"):
            for load in (plan.plain, plan.pipelined):
                for subject in subjects:
                    rates = add_and_pop(subject, load)
                    for command, rate in zip(COMMANDS, rates, strict=True):
                        samples.add((command, load), subject.name, rate)
    return [
        Table(
            "durability",
            f"requests per second, median of {plan.rounds} rounds",
            (*_SUBJECTS, "fsync/none", "replica/none", "fsync/redis, always"),
            [_row(samples, command, load) for load in (plan.plain, plan.pipelined) for command in COMMANDS],
        )
    ]


def _subjects(stack: ExitStack) -> list[Subject]:
    def named(name: str, backend: Subject, level: str) -> Subject:
        server = stack.enter_context(ours_before(backend, "--durability", level))
        return Subject(name, server.port, server.pid)

    always = stack.enter_context(redis_server(*_ALWAYS))
    replicated = stack.enter_context(redis_server())
    stack.enter_context(replica_of(replicated))
    return [
        named("ours, none", stack.enter_context(redis_server()), "none"),
        named("ours, fsync", always, "fsync"),
        named("ours, replica", replicated, "replica"),
        replace(stack.enter_context(redis_server(*_ALWAYS)), name="redis, always"),
        replace(stack.enter_context(redis_server(*_EVERY_SECOND)), name="redis, everysec"),
    ]


def _row(samples: Samples, command: str, load: Load) -> Row:
    of = (command, load)
    ratios = (
        samples.ratio(of, "ours, fsync", "ours, none"),
        samples.ratio(of, "ours, replica", "ours, none"),
        samples.ratio(of, "ours, fsync", "redis, always"),
    )
    rates = [samples.median(of, subject) for subject in _SUBJECTS]
    return Row(f"{command}, {load}", (*rates, *ratios), None, samples.of(of))
