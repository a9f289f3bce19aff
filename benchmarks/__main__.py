"""Run the benchmarks, print their tables, and write benchmarks/results/latest.json.

Exit status: 0 if everything was measured, even if targets were missed; 1 if a measurement failed; 2 if a
program is missing.
"""

import argparse
import signal
import sys
import time
from dataclasses import replace

import redis

from benchmarks import (
    beanstalk,
    blast,
    bounded,
    console,
    durability,
    functions,
    growth,
    handover,
    in_memory,
    leftovers,
    logs,
    memcached,
    memory,
    mix,
    native,
    pipe,
    report,
    throughput,
    waiting,
)
from benchmarks.plan import FULL, QUICK, BenchmarkError, Plan
from benchmarks.results import Table
from benchmarks.subjects import MissingError, require_programs

_PARTS = {
    "throughput": throughput.run,
    "mix": mix.run,
    "native": native.run,
    "functions": functions.run,
    "in-memory": in_memory.run,
    "growth": growth.run,
    "memory": memory.run,
    "logs": logs.run,
    "leftovers": leftovers.run,
    "handover": handover.run,
    "bounded": bounded.run,
    "pipe": pipe.run,
    "waiting": waiting.run,
    "blast": blast.run,
    "console": console.run,
    "durability": durability.run,
    "memcached": memcached.run,
    "beanstalk": beanstalk.run,
}


def main() -> int:
    """Run the benchmarks. Return the exit status."""
    arguments = _arguments()
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves all `with` blocks
    try:
        require_programs()
        _measure(plan, [arguments.only] if arguments.only else list(_PARTS))
    except MissingError as error:
        return _fail(str(error), 2)
    except (BenchmarkError, OSError, redis.RedisError) as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return 130
    return 0


def _measure(plan: Plan, parts: list[str]) -> None:
    began = time.monotonic()
    tables: list[Table] = []
    for part in parts:
        found = _PARTS[part](plan)
        tables += found
        for table in found:
            print(f"\n{report.as_text(table)}\n", flush=True)
        report.write_json(tables, plan, time.monotonic() - began)
    print(f"finished in {time.monotonic() - began:.0f} seconds; results are in {report.LATEST}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rounds", type=_at_least_one, help=f"rounds (default {FULL.rounds}, {QUICK.rounds} with --quick)"
    )
    parser.add_argument("--quick", action="store_true", help="small counts, to test that the benchmarks work")
    parser.add_argument("--only", choices=_PARTS, help="run only this part")
    return parser.parse_args()


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def _fail(text: str, status: int) -> int:
    print(f"benchmarks: {text}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
