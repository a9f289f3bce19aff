"""A trial: let Valkey load files that are sound in their format, and find out whether it accepts them.

Only this finds a command that does not exist, or that has the wrong arguments. The trial runs on links to the
files, and may not write a byte.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from pressure_server.backend.backups.parts import DataError
from pressure_server.backend.data_directory import DataDirectory
from pressure_server.backend.valkey_program import program

# The second one is for data without anything in them.
_LOADED = ("DB loaded from append only file", "Ready to accept connections")
_LOG_PREFIX = re.compile(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ [-.*#] ")
_LAST_LINES = 2


def problem_of_loading(data: DataDirectory) -> str:
    """Let Valkey load the data of a locked directory. Return why it cannot; '' if it can.

    Raise DataError if Valkey cannot be run, or OSError.
    """
    folder = data.path / "checking"
    if folder.exists():
        # An earlier check was killed.
        shutil.rmtree(folder)
    try:
        (folder / data.append_only.name).mkdir(mode=0o700, parents=True)
        link_files(data.append_only.iterdir(), folder / data.append_only.name)
        return _load(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def link_files(files: Iterable[Path], folder: Path) -> None:
    """Link files into a folder, or copy them if the file system has no hard links."""
    for path in files:
        try:
            os.link(path, folder / path.name)
        except OSError:
            shutil.copy2(path, folder / path.name)


def _load(folder: Path) -> str:
    # The socket's path is relative to `dir`, and so never too long. The log goes to the pipe.
    options = {
        "port": "0",
        "unixsocket": "valkey.sock",
        "dir": str(folder),
        "logfile": "",
        "appendonly": "yes",
        "aof-load-truncated": "no",
        "save": "",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        process = subprocess.Popen(  # noqa: S603 -- the program comes with the server
            [program(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=_forbid_writes,
        )
    except OSError as error:
        raise DataError(f"cannot run {program()}: {error.strerror}") from error
    with process:
        try:
            for line in process.stdout or ():
                if any(text in line for text in _LOADED):
                    return ""
                last.append(_LOG_PREFIX.sub("", line).strip())
        finally:
            process.kill()
    return "; ".join(last)


def _forbid_writes() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
