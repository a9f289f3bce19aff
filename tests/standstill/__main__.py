"""Measure the worst that each command does to other clients: `python -m tests.standstill --help`."""

import argparse
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.standstill.cases import KINDS, Size, cases
from tests.standstill.stage import BUFFERED, Outcome, Stage, staged

_MB = 1 << 20
_HEAD = "| command | others wait (ms) | PING | put and take | by the clock | memory (MB) | took (s) | reply |"


def _line(outcome: Outcome) -> str:
    worst = outcome.worst
    return (
        f"| {outcome.case} | {outcome.pause * 1000:.0f} | {worst.ping * 1000:.0f} | "
        f"{worst.put_and_take * 1000:.0f} | {worst.by_clock * 1000:.0f} | {outcome.memory / _MB:.0f} | "
        f"{outcome.seconds:.1f} | {outcome.reply} |"
    )


def _play(stage: Stage, chosen: re.Pattern[str], kinds: tuple[str, ...]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for case in cases(stage.size, kinds):
        if not chosen.search(str(case)):
            continue
        stage.prepare(case)
        outcomes.append(stage.play(case))
        print(_line(outcomes[-1]), file=sys.stderr, flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1, help="processes of the server")
    parser.add_argument("--only", default="", help="an expression for the names of cases, such as '^SREM'")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of queues")
    parser.add_argument("--pause", type=float, default=100, help="milliseconds that others may wait")
    parser.add_argument("--top", type=int, default=30, help="how many of the worst cases are shown")
    parser.add_argument("--words", type=int, default=Size().words, help="the most words of a request")
    options = parser.parse_args()
    size = replace(Size(), words=options.words)
    with tempfile.TemporaryDirectory() as folder, staged(Path(folder), size, options.workers) as stage:
        stage.watch()
        outcomes = _play(stage, re.compile(options.only), tuple(options.kinds.split(",")))
        log = stage.server.log
    print(f"{len(outcomes)} cases\n\n{_HEAD}\n|{'---|' * 8}")
    for outcome in sorted(outcomes, key=lambda one: -one.pause)[: options.top]:
        print(_line(outcome))
    print("\nthe most memory:\n")
    for outcome in sorted(outcomes, key=lambda one: -one.memory)[: options.top // 3]:
        print(_line(outcome))
    bad = [one for one in outcomes if one.pause * 1000 > options.pause or one.memory > BUFFERED]
    faults = [line for line in log.splitlines() if re.search("ERROR|Traceback|has ended", line)]
    print(f"\n{len(bad)} cases beyond {options.pause:g} ms or {BUFFERED // _MB} MB", *faults[:20], sep="\n")
    return 1 if bad or faults else 0


if __name__ == "__main__":
    sys.exit(main())
