"""Folders that are filled once for all tests of a run, whichever xdist worker needs them first."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder of that name, which `fill` has filled. Tests must not change it."""
    run = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent  # each worker has a folder of its own there
    folder, is_filled = run / name, run / f"{name}.filled"
    with (run / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_filled.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            is_filled.touch()
    return folder
