"""Programs that use the server as its users' do: what they print."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TIMEOUT = 60


def output_of(*command: str) -> str:
    """What the command prints, started in the repository; it must succeed, and warn of nothing."""
    ended = subprocess.run(
        command,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=TIMEOUT,
        cwd=ROOT,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    return ended.stdout
