"""What a test needs of the machine: where it is missing, the test is skipped, or fails if CI is set."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def need(program: str, package: str) -> str:
    """The program's path."""
    path = shutil.which(program)
    require(path is not None, f"{program}, of the Debian package {package}")
    return path or ""


def need_success(package: str, *command: str) -> None:
    """The command, which shows that a library is there, must succeed."""
    need(command[0], package)
    found = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=20, check=False)
    require(found.returncode == 0, f"the Debian package {package}")


def require(present: object, what: str) -> None:
    """Skip the test where it is not there; fail where CI is set."""
    if present:
        return
    if os.environ.get("CI"):
        pytest.fail(f"not installed: {what}")
    pytest.skip(f"not installed: {what}")
