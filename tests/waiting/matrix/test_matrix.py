"""Waits end in time: a sample of the matrix. `python -m tests.waiting.matrix --full` runs all of it."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.waiting.matrix.cells import in_order, sample
from tests.waiting.matrix.machine import Machine
from tests.waiting.matrix.report import Report
from tests.waiting.matrix.run import run
from tests.waiting.matrix.stand import started

SEED = int(os.environ.get("PRESSURE_SEED", "1"))
CELLS = int(os.environ.get("PRESSURE_WAITS", "400"))
# Few, so that a busy machine prepares the cells in time.
AT_ONCE = 40


@pytest.mark.alone
@pytest.mark.slow
def test_every_wait_ends_in_time(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    cells = in_order(sample(CELLS, chance))
    report = Report()

    with started(tmp_path) as stand:
        asyncio.run(run(cells, stand, report.add, Machine(), AT_ONCE))

    print("\n".join(report.lines()))
    assert report.total == CELLS
    assert report.is_clean, report.summary()
