"""Requirements of tests. A test whose requirement is missing is skipped, or fails if CI is set."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def need(program: str, package: str) -> str:
    """Return the path of a required program."""
    path = shutil.which(program)
    require(path is not None, f"{program}, of the Debian package {package}")
    return path or ""


def need_success(package: str, *command: str) -> None:
    """Require that a command succeeds, which shows that a library is installed."""
    need(command[0], package)
    found = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=20, check=False)
    require(found.returncode == 0, f"the Debian package {package}")


def require(present: object, what: str) -> None:
    """Skip the test if the requirement is not present, or fail if CI is set."""
    if present:
        return
    if os.environ.get("CI"):
        pytest.fail(f"not installed: {what}")
    pytest.skip(f"not installed: {what}")
