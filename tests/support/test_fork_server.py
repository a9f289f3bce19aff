"""A forked process behaves as a new one, so that tests may start servers either way."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import ForkedProcess, run_forked
from tests.support.paths import ROOT
from tests.support.programs import TIMEOUT, wait_for

FACTS = "tests.support.process_facts"
# It serves until a signal ends it.
ENDLESS = ("http.server", "--bind", "127.0.0.1", "0")


def start(folder: Path, *command: str) -> ForkedProcess:
    """Start the module with its output in the file `log`."""
    with (folder / "log").open("w") as log:
        return ForkedProcess(*command, output=log, errors=log, environment=os.environ, folder=folder)


def module(folder: Path, text: str) -> str:
    """Write a module, and return its name."""
    (folder / "forked_module.py").write_text(text)
    return "forked_module"


def output(folder: Path, text: str) -> tuple[int, str]:
    """Return the exit status and the output of a forked process that runs the text."""
    status = start(folder, module(folder, text)).wait(TIMEOUT)
    return status, (folder / "log").read_text()


def test_a_forked_process_is_like_a_new_one(tmp_path: Path) -> None:
    environment = {**os.environ, "SOME": "thing"}
    forked = run_forked(FACTS, "one", "two", environment=environment, timeout=TIMEOUT)
    new = subprocess.run(
        [sys.executable, "-m", FACTS, "one", "two"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
        timeout=TIMEOUT, check=True,
    )  # fmt: skip
    facts: list[dict[str, Any]] = [json.loads(text) for text in (forked.stdout, new.stdout)]
    for each in facts:
        # Pipes of the one, files of the other.
        del each["files"]["1"], each["files"]["2"]
    assert facts[0] == facts[1]
    assert (forked.returncode, forked.stderr) == (0, "")


def test_each_forked_process_has_random_numbers_of_its_own(tmp_path: Path) -> None:
    text = "import random, uuid; print(random.random(), uuid.uuid4())"
    assert output(tmp_path, text) != output(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "status", "last_line"),
    [
        ("print('end')", 0, "end"),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('why')", 1, "why"),
        ("raise ValueError('why')", 1, "ValueError: why"),
        ("import atexit; atexit.register(print, 'at exit')", 0, "at exit"),
        ("import threading; threading.Timer(0.1, print, ['thread']).start()", 0, "thread"),
        ("class Last:\n def __del__(_): print('freed')\nlast = Last(); last.cycle = last", 0, "freed"),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
    ],
)
def test_its_end_is_that_of_a_new_process(tmp_path: Path, text: str, status: int, last_line: str) -> None:
    name = module(tmp_path, text)
    new = subprocess.run(
        [sys.executable, "-m", name], capture_output=True, text=True, cwd=tmp_path, check=False
    )  # fmt: skip
    for ended_with, shown in (output(tmp_path, text), (new.returncode, new.stdout + new.stderr)):
        assert ended_with == status
        assert "".join(shown.splitlines()[-1:]) == last_line


def test_its_status_is_known_when_it_has_ended_and_not_before(tmp_path: Path) -> None:
    process = start(tmp_path, *ENDLESS)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(TIMEOUT) == -signal.SIGKILL
    assert process.poll() == process.returncode == -signal.SIGKILL
    process.terminate()  # as with Popen, no error


def test_no_process_is_left_when_a_test_worker_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from tests.support.test_fork_server import ENDLESS, start\n"
        f"process = start(Path({str(tmp_path)!r}), *ENDLESS)\n"
        "process.send_signal(signal.SIGSTOP)\n"
        "print(process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    process = Path(f"/proc/{int(ended.stdout)}")
    wait_for(lambda: not process.exists(), "the forked process to end")
