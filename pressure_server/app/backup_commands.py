"""`pressure-server backup`, `restore` and `check-data`: the files of the embedded backend."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from pressure_server.app.settings import EMBEDDED
from pressure_server.backend.backups import data_check as checking
from pressure_server.backend.backups.archive import Description, read_archive, write_archive
from pressure_server.backend.backups.data_snapshot import open_snapshot
from pressure_server.backend.backups.files import DataError, new_file
from pressure_server.backend.backups.restore import restore
from pressure_server.backend.data_directory import DataDirectory
from pressure_server.net.listen import SettingsError

Say = Callable[[str], None]
# Standard input or output, as a FILE.
STANDARD = Path("-")
_STOPPING = (signal.SIGTERM, signal.SIGHUP)


def back_up(data_dir: Path, path: Path, *, replace: bool, say: Say) -> None:
    """Back up the data of a running or stopped embedded backend, and verify the backup.

    Raise BackendError if that fails; there is then no file, or the former one.
    """
    with _interrupts(), _errors_of(path), open_snapshot(DataDirectory(data_dir)) as snapshot:
        if path == STANDARD:
            if sys.stdout.isatty():
                raise SettingsError("a backup is not text: redirect the output to a file")
            description = write_archive(sys.stdout.buffer, snapshot)
            sys.stdout.buffer.flush()
            say(f"backup written: {_described(description)}")
            return
        with new_file(path, replace=replace) as file:
            description = write_archive(file, snapshot)
            file.seek(0)
            read_archive(file)
    say(f"{path} is a backup: {_described(description)}")


def restore_backup(data_dir: Path, path: Path, *, replace: bool, say: Say) -> None:
    """Restore a backup into a data directory. Raise BackendError if the directory is unchanged."""
    with _interrupts(), _errors_of(path), _opened(path) as source:
        restored = restore(source, DataDirectory(data_dir), replace=replace)
    say(f"{data_dir} has the data of the backup: {_described(restored.description)}")
    if restored.former is not None:
        say(f"the former data are in {restored.former}")


def check_backup(path: Path, *, say: Say) -> int:
    """Verify a backup. Return the exit status: 0 if it is sound, 1 if not. Raise OSError."""
    with _interrupts(), _opened(path) as source:
        try:
            description = read_archive(source)
        except DataError as error:
            say(f"{path}: {error}")
            return 1
    say(f"{path} is sound: {_described(description)}")
    return 0


def check_data(data_dir: Path, *, repair: bool, say: Say) -> int:
    """Check the data of a stopped embedded backend, and repair them on request.

    Return the exit status: 0 if they are sound or have been repaired, 1 if not. Raise BackendError if they
    cannot be checked.
    """
    data = DataDirectory(data_dir)
    if not data_dir.is_dir():
        raise SettingsError(f"there is no data directory {data_dir}")
    with _interrupts(), _errors_of(data.path), data.lock():
        state = checking.check_data(data)
        for part in state.parts:
            problem = f"damaged after byte {part.sound:,}: {part.problem}" if part.problem else "sound"
            say(f"{part.name}: {part.size:,} bytes, {problem}")
        if state.is_sound:
            say(f"the data in {data.path} are sound")
            return 0
        if state.problem:
            say(state.problem)
            return 1
        if not state.is_repairable:
            say("this cannot be repaired, because no part of the damaged file can be used: restore a backup")
            return 1
        if not repair:
            say(f"--repair would cut off the last {state.lost:,} bytes, and keep the former files")
            return 1
        aside = checking.repair_data(data, state)
        say(f"the last {state.lost:,} bytes were cut off; the former files are in {aside}")
        if (left := checking.check_data(data)) and not left.is_sound:
            say("the data are still damaged: run the command again")
            return 1
    return 0


def require_embedded(backend: str) -> None:
    """Raise SettingsError if the queues are in a backend that has backups of its own."""
    if backend != EMBEDDED:
        raise SettingsError(
            "this command is for the embedded backend; your own Redis or Valkey (--backend) has its own"
        )


def _described(description: Description) -> str:
    return (
        f"{len(description.files)} files, {description.size:,} bytes, made {description.created} by "
        f"pressure-server {description.server_version} with Valkey {description.valkey_version}"
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path == STANDARD:
        yield sys.stdin.buffer
    else:
        with path.open("rb") as file:
            yield file


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Turn OSError into DataError, whose text names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt the block as Ctrl-C does, so that it removes unfinished files."""
    former = [signal.signal(number, signal.default_int_handler) for number in _STOPPING]
    try:
        yield
    finally:
        for number, handler in zip(_STOPPING, former, strict=True):
            signal.signal(number, handler)
