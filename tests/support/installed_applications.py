"""Applications of PyPI and npm, installed by `make test-applications`, that use a server as their Redis."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from tests.support.paths import ROOT
from tests.support.programs import TIMEOUT, BackgroundProgram, Server, wait_for

SCRIPTS = ROOT / "tests" / "applications" / "scripts"
INSTALLED = ROOT / "build" / "applications"
NODE_MODULES = INSTALLED / "node" / "node_modules"
_REFUSED = re.compile(r" refused command (\S+) from ")


class Application(NamedTuple):
    """An application in one of the environments: its queue, and its commands.

    The words of the jobs follow `put`. `$QUEUE_PORT` is the port, also in `variables`.
    """

    queue: str
    put: tuple[str, ...]
    work: tuple[str, ...]
    environment: str = "python"
    variables: tuple[tuple[str, str], ...] = ()
    prepare: tuple[str, ...] = ()


def in_python(queue: str, module: str, *work: str, environment: str = "python") -> Application:
    """Return the application that a module of `scripts/` defines. `work` is its worker's command."""
    return Application(queue, ("python", "-m", module, "put"), work, environment)


def in_node(queue: str, script: str) -> Application:
    """Return the application that a script of `scripts/` defines."""
    command = ("node", str(SCRIPTS / script))
    return Application(queue, (*command, "put"), (*command, "work"))


def refused_by(server: Server) -> set[str]:
    """Return the commands of which the server has warned in its log."""
    return set(_REFUSED.findall(server.log))


class Stand:
    """An application at a port: its commands, and the file in which its jobs note what they do."""

    def __init__(self, application: Application, port: int, folder: Path) -> None:
        if not (INSTALLED / "installed").exists():
            pytest.fail("the applications are not installed: run make test-applications")
        self._application = application
        self._port = port
        self._folder = folder
        self._done = folder / "done"
        self._held = folder / "held"
        self._held.mkdir()
        self._workers: list[BackgroundProgram] = []
        programs = INSTALLED / application.environment / "bin"
        self._variables = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(SCRIPTS),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "NODE_PATH": str(NODE_MODULES),
            "QUEUE_PORT": str(port),
            "DONE": str(self._done),
            "HELD": str(self._held),
            **{name: self._with_port(value) for name, value in application.variables},
        }
        if application.prepare:
            prepared = self.run(*application.prepare)
            assert prepared.returncode == 0, prepared.stdout

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the application until it ends."""
        return subprocess.run(
            self._located(command),
            cwd=self._folder,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT * 2,
            check=False,
        )

    def put(self, *words: str) -> None:
        """Put one job for each word. Raise AssertionError if the application does not say that it has."""
        ended = self.try_to_put(*words)
        assert ended.returncode == 0, ended.stdout

    def try_to_put(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(*self._application.put, *words)

    def start_worker(self) -> BackgroundProgram:
        """Start the application's worker, and do not wait until it is ready."""
        log = self._folder / f"worker-{len(self._workers)}.log"
        command = self._located(self._application.work)
        worker = BackgroundProgram(log, *command, environment=self._variables, folder=self._folder)
        self._workers.append(worker)
        return worker

    def hold(self, word: str) -> None:
        """Let the job go on until `let_end`."""
        (self._held / word).touch()

    def let_end(self, word: str) -> None:
        (self._held / word).unlink()

    def times_begun(self, word: str) -> int:
        """Return how often workers have printed that they begin the job."""
        return self._times("(?:begin|sending|sending to)", word)

    def times_finished(self, word: str) -> int:
        """Return how often workers have printed that they have finished the job."""
        return self._times("sent", word)

    def _times(self, event: str, word: str) -> int:
        line = re.compile(rf"\b{event} {word}\b")
        return sum(len(line.findall(worker.output)) for worker in self._workers)

    @property
    def done(self) -> list[str]:
        """The words of the jobs that workers have begun, in the order in which they did."""
        return self._done.read_text().split() if self._done.exists() else []

    def wait_until_done(self, words: Iterable[str]) -> None:
        """Wait until workers have begun all these jobs."""
        expected = set(words)
        wait_for(lambda: expected <= set(self.done), f"the jobs {sorted(expected)}", TIMEOUT * 2)

    @property
    def queued(self) -> int:
        """The number of jobs in the application's queue."""
        with redis.Redis(port=self._port, socket_timeout=TIMEOUT) as client:
            return int(client.llen(self._application.queue))

    def _located(self, command: tuple[str, ...]) -> list[str]:
        program = shutil.which(command[0], path=self._variables["PATH"])
        assert program, f"{command[0]} is not installed"
        return [program, *map(self._with_port, command[1:])]

    def _with_port(self, text: str) -> str:
        return text.replace("$QUEUE_PORT", str(self._port))
