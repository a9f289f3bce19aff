"""The source of earlier versions, from the history of this repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.requirements import require


def extract(commit: str, folder: Path) -> Path:
    """Write the source at a commit into a folder; return the folder. Skip the test without the commit."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    require(archive.returncode == 0, f"the commit {commit} in git")
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return folder
