"""Jobs per second over the beanstalk protocol, compared with beanstalkd, and the processor time per job.

beanstalkd keeps its jobs in its memory and loses them when it dies. With `-b -f0` it syncs each change to
disk; so do the backend and pressure-server with `--durability fsync`.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from benchmarks import reservations
from benchmarks.beanstalk_load import producers, workers
from benchmarks.plan import Case, Plan
from benchmarks.processor import processor_time
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Subject, beanstalk_address, beanstalkd, ours, ours_before, redis_server

_STEPS = {"put": producers, "reserve + delete": workers}
_ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
_LISTEN = ("--listen", "beanstalk://127.0.0.1:0")
# Targets by (tubes, connections, pipeline): the least ratio to beanstalkd, for each step.
_LEAST_RATIOS = {
    (1, 50, 1): {"put": 0.4, "reserve + delete": 0.4},
    (1, 50, 16): {"put": 1.2, "reserve + delete": 0.8},
}
# The same with fsync.
_LEAST_SYNCED_RATIOS = {(1, 50, 1): {"put": 2.0}, (1, 50, 16): {"put": 2.0}}
_Targets = dict[tuple[int, int, int], dict[str, float]]


@dataclass
class _Costs:
    """The jobs of a case, and the seconds that they took: all in all, and of processor time."""

    jobs: int = 0
    seconds: float = 0.0
    user: float = 0.0
    server: float = 0.0
    backend: float = 0.0
    generator: float = 0.0


def run(plan: Plan) -> list[Table]:
    """Measure every case on both servers, without and with fsync. Then measure reservations, and memory."""
    samples = Samples()
    with ExitStack() as stack:
        in_memory = (stack.enter_context(ours(*_LISTEN)), stack.enter_context(beanstalkd()))
        always = stack.enter_context(redis_server(*_ALWAYS))
        synced = (
            stack.enter_context(ours_before(always, *_LISTEN, "--durability", "fsync")),
            stack.enter_context(beanstalkd(fsync=True)),
        )
        for _ in plan.each_round("beanstalk"):
            for case in plan.job_cases:
                _compare(samples, "", case, in_memory, plan.job_seconds)
            for case in plan.synced_job_cases:
                _compare(samples, "fsync", case, synced, plan.job_seconds)
    return [
        Table(
            "beanstalk",
            f"jobs per second, median of {plan.rounds} rounds",
            ("ours", "beanstalkd", "ours/beanstalkd"),
            _rates(samples, "", plan.job_cases, _LEAST_RATIOS),
        ),
        Table(
            "beanstalk, processor time",
            f"microseconds per job; the load generator's in parts of a core; median of {plan.rounds} rounds",
            (
                "ours, user", "ours", "our backend", "beanstalkd, user", "beanstalkd",
                "generator, ours", "generator, beanstalkd",
            ),
            [_times(samples, step, case) for case in plan.job_cases for step in _STEPS],
        ),
        Table(
            "beanstalk, fsync",
            f"jobs per second, median of {plan.rounds} rounds",
            ("ours, fsync", "beanstalkd -b -f0", "ours/beanstalkd"),
            _rates(samples, "fsync", plan.synced_job_cases, _LEAST_SYNCED_RATIOS),
        ),
        *reservations.run(plan),
    ]  # fmt: skip


def _compare(samples: Samples, level: str, case: Case, subjects: Sequence[Subject], seconds: float) -> None:
    few = replace(case, load=replace(case.load, requests=case.load.requests // 10))
    for subject in subjects:
        _measure(subject, few, 0)  # a warm-up
        for step, costs in _measure(subject, case, seconds).items():
            of, microseconds = (level, step, case), 1e6 / costs.jobs
            samples.add(of, subject.name, costs.jobs / costs.seconds)
            samples.add(of, f"{subject.name}, user", costs.user * microseconds)
            samples.add(of, f"{subject.name}, server", costs.server * microseconds)
            samples.add(of, f"{subject.name}, backend", costs.backend * microseconds)
            samples.add(of, f"{subject.name}, generator", costs.generator / costs.seconds)


def _measure(subject: Subject, case: Case, at_least: float) -> dict[str, _Costs]:
    """Put all jobs of the case and delete them, once, and again until this has taken `at_least` seconds."""
    found = {step: _Costs() for step in _STEPS}
    while True:
        for step, costs in found.items():
            with _STEPS[step](beanstalk_address(subject), case) as run_once:
                before, backend_before = processor_time(subject.pid), processor_time(subject.store.pid)
                taken = run_once()
                after, backend_after = processor_time(subject.pid), processor_time(subject.store.pid)
            costs.jobs += case.load.requests
            costs.seconds += taken.seconds
            costs.user += after.user - before.user
            costs.server += after.total - before.total
            costs.backend += backend_after.total - backend_before.total
            costs.generator += taken.generator
        if sum(costs.seconds for costs in found.values()) >= at_least:
            return found


def _rates(samples: Samples, level: str, cases: Sequence[Case], targets: _Targets) -> list[Row]:
    rows = []
    for case in cases:
        for step in _STEPS:
            of = (level, step, case)
            ratio = samples.ratio(of, "ours", "beanstalkd")
            at_least = targets.get((case.queues, case.load.clients, case.load.pipeline), {}).get(step)
            target = Target("x beanstalkd", ratio, at_least=at_least) if at_least else None
            rates = [samples.median(of, subject) for subject in ("ours", "beanstalkd")]
            rows.append(Row(f"{step}, {case}", (*rates, ratio), target, samples.of(of)))
    return rows


def _times(samples: Samples, step: str, case: Case) -> Row:
    columns = (
        "ours, user", "ours, server", "ours, backend", "beanstalkd, user", "beanstalkd, server",
        "ours, generator", "beanstalkd, generator",
    )  # fmt: skip
    values = tuple(samples.median(("", step, case), column) for column in columns)
    return Row(f"{step}, {case}", values, None, {})
