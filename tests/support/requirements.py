"""Requirements of tests. A test whose requirement is missing is skipped, or fails if CI is set."""

import os
import re
import shutil
import subprocess

import pytest

# Errors of pip if it reaches no registry.
_NO_REGISTRY = re.compile(r"NewConnectionError|NameResolutionError|No matching distribution found")


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


def need_registry(output: str) -> None:
    """Require that pip, which has failed with this output, did not fail for lack of a registry."""
    require(not _NO_REGISTRY.search(output), f"a package registry for pip: {output[-500:]}")


def require(present: object, what: str) -> None:
    """Skip the test if the requirement is not present, or fail if CI is set."""
    if present:
        return
    if os.environ.get("CI"):
        pytest.fail(f"not installed: {what}")
    pytest.skip(f"not installed: {what}")
