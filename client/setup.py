"""Build pressure-client: copy the sources of the clients from the clone. An sdist has the copy already."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from setuptools import setup

CLONE = Path(__file__).parent.parent
# Folders, and the modules in each.
MODULES = """
    pressure_server __init__ compiled errors text version
    pressure_server/client __init__ arguments connections jobs logs native queue redis_io replies synchronous
    pressure_server/client dramatiq kombu worker_connection
    pressure_server/lua __init__ layout scripts
    pressure_server/queues __init__ names
    pressure_server/queues/operations __init__ block_reply refusals wait
"""
SOURCES = [
    f"{folder}/{name}.py" for folder, *names in map(str.split, MODULES.strip().splitlines()) for name in names
]


def _copy() -> None:
    """Copy the sources, and note the commit."""
    shutil.rmtree("pressure_server", ignore_errors=True)
    scripts = [str(path.relative_to(CLONE)) for path in (CLONE / "pressure_server/lua").rglob("*.lua")]
    for name in (*SOURCES, *scripts, "pressure_server/py.typed", "LICENSE"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CLONE / name, name)
    version = runpy.run_path(str(CLONE / "pressure_server/version.py"))
    Path("pressure_server/commit.txt").write_text(version["commit"]())


if __name__ == "__main__":
    if (CLONE / "pressure_server").is_dir():
        _copy()
    setup(version=runpy.run_path("pressure_server/version.py")["VERSION"])
