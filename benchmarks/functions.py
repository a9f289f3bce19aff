"""What the library's function takes for each command, alone in its call, as Redis counts it.

The unit is an EVALSHA of one GET on the same backend, in the same round.
"""

import re
from collections.abc import Callable

from benchmarks.client import Client
from benchmarks.plan import BenchmarkError, Plan
from benchmarks.results import Row, Samples, Table, Target
from benchmarks.subjects import ours

_UNIT = "a GET"
# The most that each may take.
_TARGETS: dict[str, float] = {
    "SADD": 9,
    "SPOP": 10,
    "SCARD": 6,
    "SISMEMBER": 6,
    "PRESSURE.PUT of a job": 18,
    "PRESSURE.RESERVE": 22,
    "PRESSURE.ACK": 18,
    "PRESSURE.AT": 8,
}


def run(plan: Plan) -> list[Table]:
    """Measure every command, in each round."""
    samples = Samples()
    with ours() as server, Client(server.port) as client, Client(server.backend_port) as backend:
        client("SADD", "bench:set", "x")
        client("PRESSURE.CREATE", "bench:jobs", "TYPE", "JOBS")
        client("PRESSURE.CREATE", "bench:log", "TYPE", "LOG")
        client("RPUSH", "bench:log", "x")
        script = backend("SCRIPT", "LOAD", "return redis.call('GET', KEYS[1])")
        for _ in plan.each_round("functions"):
            ids: list[int] = []

            def reserve(_: int, ids: list[int] = ids) -> None:
                ids.append(client("PRESSURE.RESERVE", "bench:jobs")[1])

            def acknowledge(number: int, ids: list[int] = ids) -> None:
                client("PRESSURE.ACK", "bench:jobs", ids[number])

            commands: dict[str, Callable[[int], object]] = {
                "SADD": lambda number: client("SADD", "bench:set", f"m{number}"),
                "SPOP": lambda _: client("SPOP", "bench:set"),
                "SCARD": lambda _: client("SCARD", "bench:set"),
                "SISMEMBER": lambda _: client("SISMEMBER", "bench:set", "x"),
                "PRESSURE.PUT of a job": lambda number: client("PRESSURE.PUT", "bench:jobs", f"m{number}"),
                "PRESSURE.RESERVE": reserve,
                "PRESSURE.ACK": acknowledge,
                "PRESSURE.AT": lambda _: client("PRESSURE.AT", "bench:log", 0),
            }
            for name, command in commands.items():
                backend("CONFIG", "RESETSTAT")
                for number in range(plan.operations):
                    command(number)
                    # In turns, because a processor that does the same again and again is faster.
                    backend("EVALSHA", script, 1, "bench:key")
                samples.add(name, "microseconds", _microseconds(backend, "fcall", plan.operations))
                samples.add(name, _UNIT, _microseconds(backend, "evalsha", plan.operations))
    return [
        Table(
            "functions",
            f"microseconds of Redis for a call of one command, median of {plan.rounds} rounds",
            ("microseconds", _UNIT, "ratio"),
            [_row(samples, name) for name in _TARGETS],
        )
    ]


def _microseconds(backend: Client, command: str, times: int) -> float:
    """Return what Redis has needed for its command since RESETSTAT, divided by `times`."""
    statistic = re.search(
        rb"cmdstat_%b:calls=\d+,usec=(\d+)" % command.encode(), backend("INFO", "commandstats")
    )
    if statistic is None:
        raise BenchmarkError(f"the backend's INFO commandstats has no {command}")
    return int(statistic[1]) / times


def _row(samples: Samples, name: str) -> Row:
    ratio = samples.ratio(name, "microseconds", _UNIT)
    values = (samples.median(name, "microseconds"), samples.median(name, _UNIT), ratio)
    target = Target("x a GET", ratio, at_most=_TARGETS[name])
    return Row(name, values, target, samples.of(name))
