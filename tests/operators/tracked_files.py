"""The files of the working tree that are in the repository, or will be."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.support.paths import ROOT


def tracked_files() -> list[str]:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listing, cwd=ROOT, text=True).split("\0")
    return [name for name in names if (ROOT / name).is_file()]


def copy_files(names: Iterable[str], folder: Path) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
