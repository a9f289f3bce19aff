"""A native client of pressure 0.15 or 0.1 in its own process, which can be suspended and killed.

`python -m tests.support.native_process SOCKET QUEUE IDENTITY VERSION SUSPEND_AFTER WORK…` prints the result:
the message, `done`, or the name of the error. WORK is `put MESSAGE`, `get`, `close`, `delete`,
`produce PREFIX FIRST END` (puts PREFIX-FIRST up to PREFIX-(END-1)) or `consume` (until the queue is closed).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.native import NativeError, NativeSteps, QueueClosedError, Steps, run
from tests.support.programs import TIMEOUT, wait_for

VERSIONS = ("0.15", "0.1")
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class NativeProcess:
    """The process. It suspends itself once, after the command `suspend_after`, such as `SET :producer`."""

    def __init__(
        self,
        socket: Path,
        queue: str,
        identity: str,
        *work: str,
        version: str = "0.15",
        suspend_after: str = "",
    ) -> None:
        self.identity = identity
        arguments = [str(socket), queue, identity, version, suspend_after, *work]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.native_process", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parent.parent.parent,
        )

    def __enter__(self) -> NativeProcess:
        return self

    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.kill()
        self.outcome()

    def suspend(self) -> None:
        """Send SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, which also ends a suspended process."""
        self._process.kill()

    def wait_until_suspended(self) -> None:
        """Return when the process is suspended. Raise AssertionError if it ends."""
        status = Path(f"/proc/{self._process.pid}/stat")

        def is_suspended() -> bool:
            state = status.read_text().rpartition(")")[2].split()[0]
            assert state != "Z", f"{self.identity} has ended"
            return state == "T"

        wait_for(is_suspended, f"{self.identity} to be suspended")

    def outcome(self, timeout: float = TIMEOUT) -> str:
        """Wait for the process to end, and return its output, which is empty if it was killed."""
        if self._process.stdout is not None and not self._process.stdout.closed:
            printed, _ = self._process.communicate(timeout=timeout)
            self._outcome = printed.decode()
        return self._outcome

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.poll()


class _VersionedSteps(NativeSteps):
    """A native client of either version, which suspends its process after one command."""

    def __init__(
        self, client: redis.Redis, queue: str, identity: str, version: str, suspend_after: str
    ) -> None:
        super().__init__(client, queue, identity, blocks=True)
        self._version = version
        self._suspend_after = suspend_after

    def _do(self, command: str, suffix: str, *arguments: bytes | str | int) -> Any:
        if command == "LTRIM" and self._version == "0.1":
            # As in the pseudo-code of 0.1, which leaves up to two tokens.
            arguments = (0, 1)
        reply = super()._do(command, suffix, *arguments)
        self._suspend_if_after(command, suffix)
        return reply

    def _pop(self, *suffixes: str) -> Steps[tuple[str, bytes]]:
        popped = yield from super()._pop(*suffixes)
        self._suspend_if_after("BRPOP", suffixes[0])
        return popped

    def _suspend_if_after(self, command: str, suffix: str) -> None:
        if f"{command} {suffix}".rstrip() == self._suspend_after:
            self._suspend_after = ""
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


def _main(socket: str, queue: str, identity: str, version: str, suspend_after: str, *work: str) -> None:
    # By default, redis-py repeats a command whose reply is late, for example because of a suspension.
    client = redis.Redis(unix_socket_path=socket, socket_timeout=None, retry=Retry(NoBackoff(), 0))
    client.ping()  # because a relay waits for the connection, even if there is no work left
    native = _VersionedSteps(client, queue, identity, version, suspend_after)
    try:
        result = _WORK[work[0]](native, *work[1:])
    except NativeError as error:
        print(type(error).__name__, end="")
    else:
        print("done" if result is None else result.decode(), end="")


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _end_with_parent()
    _main(*sys.argv[1:])
