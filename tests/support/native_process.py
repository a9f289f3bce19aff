"""A native client of pressure 0.15 or 0.1 in a process of its own, which a test can stop and kill.

`python -m tests.support.native_process SOCKET QUEUE IDENTITY VERSION STOP_AFTER WORK…` does the work and
prints the message, `done`, or the error's name. WORK is `put MESSAGE`, `get`, `close`, `delete`, `consume`
(until the queue is closed) or `produce PREFIX FIRST END` (puts PREFIX-FIRST up to, but not, PREFIX-END).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.forked import ForkedProcess
from tests.support.native import VERSIONS, NativeError, NativeSteps, QueueClosedError, Steps, run
from tests.support.paths import ROOT
from tests.support.programs import TIMEOUT, wait_for


class NativeProcess:
    """A running native client. It stops itself after the first command `stop_after`, as `SET :producer`."""

    def __init__(
        self,
        socket: Path,
        queue: str,
        identity: str,
        *work: str,
        version: str = VERSIONS[0],
        stop_after: str = "",
    ) -> None:
        self.identity = identity
        arguments = [str(socket), queue, identity, version, stop_after, *work]
        self._output = TemporaryFile("w+")  # noqa: SIM115 -- `outcome` closes it
        self._process = ForkedProcess(
            *("tests.support.native_process", *arguments),
            output=self._output, errors=self._output, environment=os.environ, folder=ROOT,
        )  # fmt: skip

    def __enter__(self) -> NativeProcess:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()
        self.outcome()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()

    def wait_until_stopped(self) -> None:
        """Return when the process is stopped. Raises AssertionError if it ends."""
        status = Path(f"/proc/{self._process.pid}/stat")

        def is_stopped() -> bool:
            assert self.status is None, f"{self.identity} has ended"
            state = status.read_text().rpartition(")")[2].split()[0]
            return state == "T"

        wait_for(is_stopped, f"{self.identity} to be stopped")

    def outcome(self, timeout: float = TIMEOUT) -> str:
        """Wait for the process to end, and return what it has printed: "" if it was killed."""
        if not self._output.closed:
            self._process.wait(timeout)
            with self._output:
                self._output.seek(0)
                self._outcome = self._output.read()
        return self._outcome

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.poll()


class _StoppingSteps(NativeSteps):
    """A native client that stops its process after one command."""

    stop_after: str

    def _do(self, command: str, suffix: str, *arguments: bytes | str | int) -> Any:
        reply = super()._do(command, suffix, *arguments)
        self._stop_if_due(command, suffix)
        return reply

    def _pop(self, *suffixes: str) -> Steps[tuple[str, bytes]]:
        popped = yield from super()._pop(*suffixes)
        self._stop_if_due("BRPOP", suffixes[0])
        return popped

    def _stop_if_due(self, command: str, suffix: str) -> None:
        if f"{command} {suffix}".rstrip() == self.stop_after:
            self.stop_after = ""
            os.kill(os.getpid(), signal.SIGSTOP)


def _produce(native: NativeSteps, prefix: str, first: str, end: str) -> None:
    for number in range(int(first), int(end)):
        run(native.put(f"{prefix}-{number}".encode()))


def _consume(native: NativeSteps) -> None:
    try:
        while True:
            run(native.get())
    except QueueClosedError:
        return


_WORK: dict[str, Callable[..., bytes | None]] = {
    "put": lambda native, message: run(native.put(message.encode())),
    "get": lambda native: run(native.get()),
    "close": lambda native: run(native.close()),
    "delete": lambda native: run(native.delete()),
    "produce": _produce,
    "consume": _consume,
}


def _main(socket: str, queue: str, identity: str, version: str, stop_after: str, *work: str) -> None:
    # Without a timeout and retries: the reply comes late if the process is stopped.
    client = redis.Redis(unix_socket_path=socket, socket_timeout=None, retry=Retry(NoBackoff(), 0))
    client.ping()  # a relay waits for the connection, even if there is no work left
    native = _StoppingSteps(client, queue, identity, blocks=True, version=version)
    native.stop_after = stop_after
    try:
        result = _WORK[work[0]](native, *work[1:])
    except NativeError as error:
        print(type(error).__name__, end="")
    else:
        print("done" if result is None else result.decode(), end="")


if __name__ == "__main__":
    _main(*sys.argv[1:])
    # Python's shutdown would take most of the processor time of this process.
    sys.stdout.flush()
    os._exit(0)
