"""`python -m tests.waiting.matrix`: run cells of the matrix, and print those whose answers did not come.

The exit status is 0 if all answers came in time; otherwise 1.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.waiting.matrix.cells import Cell, all_cells, in_order, one_of_each, sample
from tests.waiting.matrix.machine import Machine
from tests.waiting.matrix.report import Report
from tests.waiting.matrix.run import Result, run
from tests.waiting.matrix.stand import started

_EVERY = 2000


def main() -> int:
    """Return the exit status."""
    arguments = _arguments()
    chance = random.Random(arguments.seed)
    if arguments.full or arguments.each or arguments.only:
        cells = all_cells(arguments.only)
        cells = one_of_each(cells, chance) if arguments.each else cells
    else:
        cells = sample(arguments.cells, chance)
    chance.shuffle(cells)
    part, parts = map(int, arguments.part.split("/"))
    cells = cells[part - 1 :: parts]
    cells *= arguments.times
    cells = in_order(cells)
    print(f"{len(cells)} cells, seed {arguments.seed}", flush=True)
    began = time.monotonic()
    report = Report()

    def add(result: Result) -> None:
        report.add(result)
        if report.total % _EVERY == 0:
            print(f"{time.monotonic() - began:6.0f} s  {report.summary()}", flush=True)

    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="waits-"))
    machine = Machine()
    # An interrupted run stops its servers and prints its results, also if a shell has it ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        _run(cells, folder, add, machine, arguments.at_once)
    print("", *report.lines(), "", report.summary(), sep="\n")
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s; the machine was {machine.worst * 1000:.0f} ms late at most; logs in {folder}")
    return 0 if report.is_clean else 1


def _run(
    cells: Sequence[Cell], folder: Path, add: Callable[[Result], None], machine: Machine, at_once: int
) -> None:
    with started(folder) as stand:
        asyncio.run(run(cells, stand, add, machine, at_once))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.waiting.matrix", description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="run all cells")
    parser.add_argument(
        "--each", action="store_true", help="run one cell of each event, waiter and kind of moment"
    )
    parser.add_argument("--cells", type=int, default=1000, help="how many cells to run otherwise")
    parser.add_argument(
        "--only", default="", help="run only these: 'EVENT | WAITER | QUESTION | PLACE | MOMENT'"
    )
    parser.add_argument("--part", default="1/1", help="run only this part: 2/8 is the second eighth")
    parser.add_argument("--times", type=int, default=1, help="how often to run each cell")
    parser.add_argument("--at-once", type=int, default=100, help="how many cells are in flight")
    parser.add_argument("--seed", type=int, default=1, help="decides the order, and which cells are run")
    parser.add_argument("--folder", type=Path, help="new folder for logs and data; default: a temporary one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
