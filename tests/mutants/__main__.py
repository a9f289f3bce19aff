"""`python -m tests.mutants`: put each mutant into a copy of the tree, and print which machine finds it.

Each line has a mutant, a machine, and the verdict: `killed` if the machine failed, `survived` if it did not,
and `timeout` if it was stopped, with the time in seconds. The exit status is 1 if a mutant survives all.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.mutants.machines import MACHINES, Machine
from tests.support.paths import ROOT

_FOLDERS = ("pressure_server", "handlers", "tests", "deploy", "docs", "benchmarks")
_FILES = ("pyproject.toml", "README.md", "setup.py")
KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"


class Mutant(NamedTuple):
    """A fault: in a file, one text in place of another."""

    file: str
    before: str
    after: str
    breaks: str

    def text_of(self, root: Path) -> str:
        """Return the file with the fault. Raise ValueError if the text is not there exactly once."""
        text = (root / self.file).read_text()
        if text.count(self.before) != 1:
            raise ValueError(f"{self.file} has this {text.count(self.before)} times: {self.before!r}")
        return text.replace(self.before, self.after)


_MUTANT = re.compile(r"^([a-z-]+): (.*)\n@ (.*)\n((?:-.*\n)+)((?:\+.*\n)*)", re.MULTILINE)


def all_mutants() -> dict[str, Mutant]:
    """Return the mutants by id."""
    text = (Path(__file__).parent / "mutants.txt").read_text()

    def without_signs(lines: str) -> str:
        return "\n".join(line[1:] for line in lines.splitlines())

    return {
        name: Mutant(file, without_signs(before), without_signs(after), breaks)
        for name, breaks, file, before, after in _MUTANT.findall(text)
    }


def play(mutant: Mutant | None, machines: Sequence[str], seconds: float) -> dict[str, str]:
    """Run the machines on a copy of the tree, with the mutant if there is one. Return the verdict of each."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        for name in _FOLDERS:
            shutil.copytree(ROOT / name, tree / name, symlinks=True)
        for name in _FILES:
            shutil.copy(ROOT / name, tree / name)
        if mutant is not None:
            (tree / mutant.file).write_text(mutant.text_of(ROOT))
        return {name: _verdict(MACHINES[name], mutant, tree, seconds) for name in machines}


def _verdict(machine: Machine, mutant: Mutant | None, tree: Path, seconds: float) -> str:
    if mutant is not None and mutant.file.endswith(".lua") and not machine.sees_lua:
        return "- 0"
    began = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(tree), "TMPDIR": str(tree)} | machine.environment
    with (tree / "output").open("wb") as output:
        process = subprocess.Popen(
            machine.command, cwd=tree, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            verdict = SURVIVED if process.wait(seconds) == 0 else KILLED
        except subprocess.TimeoutExpired:
            verdict = TIMEOUT
        _end_all_of(tree)
        process.wait()
    return f"{verdict} {time.monotonic() - began:.0f}"


def _end_all_of(tree: Path) -> None:
    """Kill the machine, and the servers and backends that it has left."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(tree):
                os.kill(int(process.name), signal.SIGKILL)


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only these mutants: the beginnings of ids, with commas")
    parser.add_argument("--machine", default=",".join(MACHINES), help="only these machines, with commas")
    parser.add_argument("--seconds", type=float, default=120, help="the limit of one machine")
    parser.add_argument("--at-once", type=int, default=2, help="how many mutants are played at the same time")
    arguments = parser.parse_args()
    begins = tuple(arguments.only.split(","))
    mutants = {name: one for name, one in all_mutants().items() if name.startswith(begins)}
    machines = arguments.machine.split(",")
    if any(verdict.startswith(KILLED) for verdict in play(None, machines, arguments.seconds).values()):
        print("a machine fails without a mutant")
        return 1

    def play_one(name: str) -> bool:
        verdicts = play(mutants[name], machines, arguments.seconds)
        print("\n".join(f"{name:<28} {key:<14} {verdict}" for key, verdict in verdicts.items()), flush=True)
        return any(verdict.startswith(KILLED) for verdict in verdicts.values())

    with ThreadPoolExecutor(arguments.at_once) as pool:
        results = dict(zip(mutants, pool.map(play_one, mutants), strict=True))
    alive = [name for name, is_killed in results.items() if not is_killed]
    print(f"{len(results)} mutants, {len(results) - len(alive)} killed; alive: {', '.join(alive) or 'none'}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
