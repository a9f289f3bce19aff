"""Requests per second on 1 to 100 000 queues, and the processor time per request.

The subjects are pressure-server, Redis, twemproxy, and an empty proxy, which is the limit for a proxy in
Python.
"""

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from benchmarks.client import Client
from benchmarks.plan import BenchmarkError, Case, Plan
from benchmarks.processor import processor_time
from benchmarks.redis_benchmark import MAX_NUMBERS, RANDOM, requests_per_second
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import Server, Subject, empty_proxy, ours, redis_server, twemproxy

_SUBJECTS = ("ours", "redis", "twemproxy", "empty proxy")
# The messages in every queue before the measurement, so that SPOP and RPOP rarely find an empty queue.
_QUEUED = ("first", "second")
_AT_ONCE = 1_000
# A message consists of random numbers of twelve digits, at most _MAX_RANDOM, and padding.
_MAX_RANDOM = 7
_LENGTH = 12 * _MAX_RANDOM
_MESSAGE = "(message)"
# The fraction of puts and takes that may have no effect: the message is queued already, or none is left.
_TOLERANCE = 0.05
_COUNT = """
local messages = 0
for number = 0, ARGV[2] - 1 do
  messages = messages + redis.call(ARGV[3], string.format('%s%012d', ARGV[1], number))
end
return messages
"""
# Targets by (queues, clients, pipeline): the least ratio to twemproxy, for SADD and SPOP.
_LEAST_RATIOS = {
    (1, 1, 1): {"SADD": 0.65, "SPOP": 0.65},
    (1, 50, 1): {"SADD": 0.85, "SPOP": 0.9},
    (1, 50, 16): {"SADD": 1.1, "SPOP": 1.8},
    (1_000, 50, 1): {"SADD": 0.5, "SPOP": 0.6},
    (1_000, 50, 16): {"SADD": 0.2, "SPOP": 0.28},
    (100_000, 50, 1): {"SADD": 0.4, "SPOP": 0.5},
    (100_000, 50, 16): {"SADD": 0.1, "SPOP": 0.12},
}
# Targets by the same: the most microseconds of pressure-server in user mode per SADD.
_MAX_USER_TIME = {(1, 1, 1): 30.0, (1, 50, 1): 4.5}


class _Command(NamedTuple):
    """A command, with its arguments after the key, and the messages that each request adds to the queue.

    `part` is the fraction of a load's requests that is sent.
    """

    name: str
    arguments: tuple[str, ...] = ()
    adds: int = 0
    part: float = 1.0


class _Family(NamedTuple):
    """Commands on one Redis type, in the order of measurement. The command `length` counts messages."""

    prefix: str
    length: str
    commands: tuple[_Command, ...]


_FAMILIES = (
    _Family(
        "set:",
        "SCARD",
        (
            _Command("SADD", (_MESSAGE,), adds=1),
            _Command("SISMEMBER", (_QUEUED[0],)),
            _Command("SPOP", adds=-1, part=0.5),
        ),
    ),
    _Family("list:", "LLEN", (_Command("LPUSH", (_MESSAGE,), adds=1), _Command("RPOP", adds=-1, part=0.5))),
)
_COMMANDS = [command.name for family in _FAMILIES for command in family.commands]


class Measured(NamedTuple):
    """The results of one command: requests per second, and per request microseconds and script calls."""

    rate: float
    user: float
    server: float
    backend: float
    calls: float


def run(plan: Plan) -> list[Table]:
    """Measure every case on every subject, one subject after the other in each round."""
    samples = Samples()
    with ExitStack() as stack:
        subjects = [stack.enter_context(start()) for start in (ours, redis_server, twemproxy, empty_proxy)]
        for _ in plan.each_round("throughput"):
            for case in plan.cases:
                for subject in subjects:
                    for command, measured in measure(subject, case):
                        samples.add((command, case), subject.name, measured.rate)
                        for name, value in measured._asdict().items():
                            samples.add((command, case), f"{subject.name}, {name}", value)
    each = [(command, case) for case in plan.cases for command in _COMMANDS]
    return [
        Table(
            "throughput",
            f"requests per second, median of {plan.rounds} rounds",
            (*_SUBJECTS, *(f"ours/{other}" for other in _SUBJECTS[1:])),
            [_rates(samples, command, case) for command, case in each],
        ),
        Table(
            "processor time",
            f"microseconds per request, and requests that share a call; median of {plan.rounds} rounds",
            ("ours, user", "ours", "our backend", "redis", "twemproxy", "empty proxy", "operations a call"),
            [_times(samples, command, case) for command, case in each],
        ),
    ]


def measure(subject: Subject, case: Case) -> Iterator[tuple[str, Measured]]:
    """Measure every command on new queues, and yield it with its results."""
    _flush(subject)
    for family in _FAMILIES:
        keys = [f"{family.prefix}{number:012}" for number in range(case.queues)]
        _fill(subject, family.commands[0].name, keys)
        for command in family.commands:
            load = replace(case.load, requests=int(case.load.requests * command.part))
            before = _count(subject, family, case.queues)
            measured = _do(subject, replace(case, load=load), family.prefix, command)
            added = _count(subject, family, case.queues) - before
            # redis-benchmark counts errors as it counts other replies.
            if abs(added - command.adds * load.requests) > _TOLERANCE * load.requests:
                text = f"{subject.name} added {added} messages with {load.requests} {command.name}, {case}"
                raise BenchmarkError(text)
            yield command.name, measured
    _flush(subject)


def _do(subject: Subject, case: Case, prefix: str, command: _Command) -> Measured:
    numbers = MAX_NUMBERS if case.queues == 1 else case.queues
    key = f"{prefix}{0:012}" if case.queues == 1 else prefix + RANDOM
    words = [_message(numbers) if word == _MESSAGE else word for word in command.arguments]
    backend = subject.store
    with Client(backend.port) as client:
        client("CONFIG", "RESETSTAT")
        before, backend_before = processor_time(subject.pid), processor_time(backend.pid)
        rate = requests_per_second(subject, case.load, command.name, key, *words, numbers=numbers)
        after, backend_after = processor_time(subject.pid), processor_time(backend.pid)
        statistics = client("INFO", "commandstats").decode()
    calls = sum(map(int, re.findall(r"^cmdstat_(?:evalsha|fcall):calls=(\d+)", statistics, re.MULTILINE)))
    each = 1e6 / case.load.requests
    return Measured(
        rate=rate,
        user=(after.user - before.user) * each,
        server=(after.total - before.total) * each,
        backend=(backend_after.total - backend_before.total) * each,
        calls=calls / case.load.requests,
    )


def _message(numbers: int) -> str:
    """Return a message of fixed length that redis-benchmark makes different in each request."""
    count = min(_MAX_RANDOM, math.ceil(math.log(MAX_NUMBERS, numbers)))
    return RANDOM * count + "x" * (_LENGTH - 12 * count)


def _flush(subject: Subject) -> None:
    """Delete all queues. Flush the Redis behind other proxies, because twemproxy has no FLUSHALL."""
    with Client(subject.port if isinstance(subject, Server) else subject.store.port) as client:
        client("FLUSHALL")


def _fill(subject: Subject, put: str, keys: list[str]) -> None:
    # pressure-server executes pipelined puts on queues new to it one by one; a transaction is faster.
    begins, ends = ([("MULTI",)], [("EXEC",)]) if isinstance(subject, Server) else ([], [])
    with Client(subject.port) as client:
        for first in range(0, len(keys), _AT_ONCE):
            commands = [*begins, *((put, key, *_QUEUED) for key in keys[first : first + _AT_ONCE]), *ends]
            for command in commands:
                client.send(*command)
            for _ in commands:
                client.reply()


def _count(subject: Subject, family: _Family, queues: int) -> int:
    """Return the number of messages in all queues of the family, from the backend."""
    prefix, length = family.prefix, family.length
    if isinstance(subject, Server):
        prefix, length = f"__pressure__:{prefix}", "LLEN"
    with Client(subject.store.port) as client:
        return int(client("EVAL", _COUNT, 0, prefix, queues, length))


def _rates(samples: Samples, command: str, case: Case) -> Row:
    of = (command, case)
    rates = [samples.median(of, subject) for subject in _SUBJECTS]
    ratios = {other: samples.ratio(of, "ours", other) for other in _SUBJECTS[1:]}
    load = case.load
    least = _LEAST_RATIOS.get((case.queues, load.clients, load.pipeline), {}).get(command)
    target = Target("x twemproxy", ratios["twemproxy"], at_least=least) if least else None
    return Row(f"{command}, {case}", (*rates, *ratios.values()), target, samples.of(of))


def _times(samples: Samples, command: str, case: Case) -> Row:
    of = (command, case)
    columns = (
        "ours, user", "ours, server", "ours, backend",
        "redis, server", "twemproxy, server", "empty proxy, server", "ours, calls",
    )  # fmt: skip
    *times, calls = (samples.median(of, column) for column in columns)
    values = (*times, 1 / calls if calls else 0.0)
    load = case.load
    most = _MAX_USER_TIME.get((case.queues, load.clients, load.pipeline)) if command == "SADD" else None
    target = Target("µs of ours, user", values[0], at_most=most) if most else None
    return Row(f"{command}, {case}", values, target, {})
