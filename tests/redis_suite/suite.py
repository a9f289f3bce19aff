"""Redis's own test suite: get its source, and run its tests against a server."""

import os
import random
import shutil
import signal
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path

from tests.redis_suite.expectations import Test, numbered

UNITS = ("unit/type/list", "unit/type/list-2", "unit/type/list-3", "unit/type/set")
# Debian's copy of the source that Redis has released.
_ARCHIVE = "http://deb.debian.org/debian/pool/main/r/redis/redis_7.0.15.orig.tar.gz"
_SHA256 = "4b1dc4ee6d622a09fff9c6777191209750fb5e5a725ef78ea012d6eef4c22982"
_SHIM = Path(__file__).with_name("shim.tcl")
# After its procedures, the suite's main file runs the tests.
_BEFORE_RUN = "\nif {$::client} {\n"
# The suite listens on one of the 32 ports below this one. Runs at the same time would take the same one.
_PORTS = (20_000, 30_000)
_DENIED_TAGS = "-needs:debug -needs:repl"
# In seconds: for one reply, and for the run, which takes three minutes.
_PATIENCE = 30
_TIMEOUT = 1800


def fetch(folder: Path) -> Path:
    """Download the source into the folder with the tools of Debian. Return the folder of the source."""
    archive = folder / "redis.tar.gz"
    subprocess.run(
        ["/usr/lib/apt/apt-helper", "download-file", _ARCHIVE, str(archive), f"SHA256:{_SHA256}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return source


def run(source: Path, folder: Path, port: int, only: list[str]) -> tuple[dict[Test, str], dict[Test, str]]:
    """Run the tests on a copy of the source. Return the status of each test that has run, and its text.

    A status is passed, failed or skipped. `only` are names of tests; all tests if it is empty.
    """
    shutil.copytree(source / "tests", folder / "tests")
    helper = folder / "tests" / "test_helper.tcl"
    text = helper.read_text(encoding="utf-8")
    if text.count(_BEFORE_RUN) != 1:
        raise ValueError(f"{source} is not the source of Redis 7.0")
    helper.write_text(text.replace(_BEFORE_RUN, f"\nsource $::env(SHIM){_BEFORE_RUN}"), encoding="utf-8")
    results = folder / "results"
    results.touch()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            ["tclsh", "tests/test_helper.tcl", "--host", "127.0.0.1", "--port", str(port),
             "--baseport", str(random.randrange(*_PORTS)),
             *(word for unit in UNITS for word in ("--single", unit)),
             *(word for name in only for word in ("--only", name)),
             "--singledb", "--ignore-encoding", "--ignore-digest", "--durable", "--tags", _DENIED_TAGS],
            cwd=folder,
            env={
                **os.environ,
                "SHIM": str(_SHIM),
                "SHIM_RESULTS": str(results),
                "SHIM_PATIENCE": str(_PATIENCE),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(_TIMEOUT)
        finally:
            # The suite runs the tests in a second process.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    if not results.stat().st_size:
        text = (folder / "output").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"no test of the suite has run: {text[-2000:]}")
    lines = results.read_text(encoding="utf-8", errors="replace").split("\n")
    rows = [line.split("\t") for line in lines if line]
    statuses = numbered([(unit, name, status) for status, unit, name, _text in rows])
    return statuses, numbered([(unit, name, text) for _status, unit, name, text in rows])
