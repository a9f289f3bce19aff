"""`python -m benchmarks`: measure, print tables, and write benchmarks/results/latest.json.

Exit status 0 whatever the numbers are; 1 where something could not be measured; 2 where a program is missing.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import replace

import redis

from benchmarks import (
    blast,
    bounded,
    durability,
    growth,
    handover,
    leftovers,
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
    "growth": growth.run,
    "memory": memory.run,
    "leftovers": leftovers.run,
    "handover": handover.run,
    "bounded": bounded.run,
    "pipe": pipe.run,
    "waiting": waiting.run,
    "blast": blast.run,
    "durability": durability.run,
    "memcached": memcached.run,
}


def main() -> int:
    """The exit status."""
    arguments = _arguments()
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of every `with`, which stops programs
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
    print(f"{time.monotonic() - began:.0f} seconds; also in {report.LATEST}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rounds", type=_at_least_one, help=f"instead of {FULL.rounds}, or {QUICK.rounds} with --quick"
    )
    parser.add_argument("--quick", action="store_true", help="small counts: whether it works, not how fast")
    parser.add_argument("--only", choices=_PARTS, help="run this part alone")
    return parser.parse_args()


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


def _fail(text: str, status: int) -> int:
    print(f"benchmarks: {text}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
