"""A program that a test starts, whose output it watches, and which has ended at the end of the test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support.programs import TIMEOUT, Program, wait_for


class BackgroundProgram(Program):
    """A process and its children, with its output in a file. A `with` block kills it at its end."""

    def __init__(
        self,
        log: Path,
        *command: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.kill()
        if error is not None:
            error.add_note(self.output[-3000:])

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until the output has the text so often."""
        wait_for(
            lambda: self.output.count(text) >= count, f"{text!r} in the output, {count} times", 2 * TIMEOUT
        )

    def wait(self) -> int:
        """Wait until the program ends by itself. Return its exit status."""
        return self.process.wait(2 * TIMEOUT)

    def kill(self) -> None:
        """Send SIGKILL to the program and its children."""
        with suppress(ProcessLookupError):  # if all have ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
