"""Programs that are forked from a process with their imports: fork_server.py. Each worker has one."""

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from tests.support.fork_server import Start
from tests.support.paths import ROOT

# Threads may start their first processes together; one fork server is enough.
_STARTING = threading.Lock()


class ForkedProcess:
    """A process of `python -m MODULE ARGUMENTS`, in a session of its own. It is used like `subprocess.Popen`.

    The fork server is its parent, which waits for it and reports its exit status.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        output: IO[Any],
        errors: IO[Any],
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._reports, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        weakref.finalize(self, self._reports.close)
        start = Start(module, arguments, str(folder or Path.cwd()), dict(environment))
        with theirs:
            files = [output.fileno(), errors.fileno(), theirs.fileno()]
            with _STARTING:
                requests = _fork_server()
            socket.send_fds(requests, [json.dumps(start).encode()], files)
        self.pid = self._report()

    def _report(self) -> int:
        """Receive the next number from the fork server: first the pid, then the exit status."""
        report = self._reports.recv(100)
        assert report, "the fork server has ended"
        return int(report)

    def poll(self) -> int | None:
        """Return the exit status, as Popen does; None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends, and return its exit status. Raise TimeoutExpired after `timeout`."""
        ended = select.poll()  # select.select refuses the large file descriptors of tests with many clients
        ended.register(self._reports, select.POLLIN)
        if self.returncode is None and not ended.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        with self._lock:
            if self.returncode is None:
                self.returncode = self._report()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send the signal if the process has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _fork_server() -> socket.socket:
    """Start the fork server. Return the socket for requests; it ends when that is closed."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def run_forked(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    timeout: float,
    start: Callable[..., Any] = ForkedProcess,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGUMENTS` in a process that `start` makes, and wait until it ends."""
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = start(module, *arguments, output=output, errors=errors, environment=environment)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess((module, *arguments), status, output.read(), errors.read())
