"""Workers that pop from a queue with ACK NEXT, one of each client library, driven step by step.

Their scripts are tests/applications/scripts/pop_worker.*.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.support.client_scripts import need_library
from tests.support.installed_applications import INSTALLED, NODE_MODULES, SCRIPTS
from tests.support.programs import TIMEOUT
from tests.support.requirements import need_success

# How a worker takes messages: at once, or when there is one.
POLL, WAIT = "poll", "wait"
# With php-memcached: by the open reads of kestrel. With ioredis: it waits for as long as `commandTimeout`.
OPEN, WAIT_WITH_COMMAND_TIMEOUT = "open", "wait-with-command-timeout"


class Library(NamedTuple):
    """A client library: the suffix of its worker's script, its protocol, and what must be installed."""

    language: str
    is_memcached: bool = False
    need: Callable[[], object] = lambda: None
    # What comes before the name of the queue in the name of its list.
    prefix: str = ""


LIBRARIES = {
    "phpredis": Library("php", need=lambda: need_library("worker.php")),
    "Predis": Library("php", need=lambda: need_library("worker_predis.php")),
    "redis-rb": Library("rb", need=lambda: need_library("worker.rb")),
    "redis-py": Library("py"),
    "redis-py asyncio": Library("py"),
    "ioredis": Library("js"),
    "node-redis": Library("js"),
    "hotqueue": Library("py", prefix="hotqueue:"),
    "php-memcached": Library(
        "php",
        is_memcached=True,
        need=lambda: need_success("php-memcached", "php", "-r", "exit(class_exists('Memcached') ? 0 : 1);"),
    ),
    "pymemcache": Library("py", is_memcached=True),
    "python-memcached": Library("py", is_memcached=True),
}


def _command(library: str) -> list[str]:
    if library == "hotqueue":
        return [str(INSTALLED / "python" / "bin" / "python")]
    return {"php": ["php", "-d", "display_errors=stderr"], "rb": ["ruby"], "js": ["node"]}.get(
        LIBRARIES[library].language, [sys.executable]
    )


class PopWorker:
    """A process that pops from a queue by a client library. A `with` block kills it at its end.

    `timeout` is the read timeout; None for the library's own settings.
    """

    def __init__(
        self, library: str, port: int, queue: str, pop: str, errors: Path, *, timeout: float | None = TIMEOUT
    ) -> None:
        if not (INSTALLED / "installed").exists():
            pytest.fail("the applications are not installed: run make test-applications")
        script = SCRIPTS / f"pop_worker.{LIBRARIES[library].language}"
        self.library = library
        self._errors = errors
        with errors.open("w") as log:
            self._process = subprocess.Popen(
                [*_command(library), str(script), library, str(port), queue, pop, str(timeout or "default")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                env={**os.environ, "NODE_PATH": str(NODE_MODULES), "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
        if error is not None:
            error.add_note(f"{self.library}: {self._errors.read_text()[-3000:]}")

    def begin(self, step: str) -> None:
        """Let the worker do a step, and do not wait for its answer."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # `answer` tells it
            self._process.stdin.write(f"{step}\n")

    def answer(self) -> str:
        """Return the answer to a step; an empty text if the worker has ended."""
        assert self._process.stdout
        assert select.select([self._process.stdout], [], [], TIMEOUT)[0], f"{self.library} does not answer"
        return self._process.stdout.readline().strip()

    def step(self, step: str) -> str:
        """Let the worker do a step, and return its answer."""
        self.begin(step)
        return self.answer()

    def end(self) -> None:
        """End the input of the worker's script, and so the script. Return when it has ended."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdin = None  # communicate() would use it
        self._process.wait(TIMEOUT)

    def signal_kill(self) -> None:
        """Send SIGKILL, and do not wait for the end."""
        self._process.send_signal(signal.SIGKILL)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the worker has ended."""
        self.signal_kill()
        self._process.wait(TIMEOUT)
