"""Restore: unpack a backup in a data directory, and replace the data when the backup is verified."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pressure_server.backend.backups.archive import Description, read_archive
from pressure_server.backend.backups.files import DataError, sync_folder
from pressure_server.backend.data_directory import DataDirectory

# The only file of Redis 6 and older, which Valkey reads as well.
_OLD_FILE = "appendonly.aof"


@dataclass(frozen=True)
class Restored:
    """The result of a restore: the backup, and where the former data are, if there were any."""

    description: Description
    former: Path | None


def restore(source: IO[bytes], data: DataDirectory, *, replace: bool) -> Restored:
    """Restore a backup. With `replace`, data in the directory are moved into a directory of their own.

    Raise BackendError if the directory is in use, or has data and `replace` is not set, or if the backup
    cannot be used; and OSError. The directory's data are then as before.
    """
    is_new = not data.path.exists()
    with data.lock() as lock:
        try:
            if data.is_running():
                raise DataError(f"a Valkey is running on {data.socket}: stop it")
            former = _data_in(data)
            if former and not replace:
                raise DataError(
                    f"{data.path} has data ({former[0].name}): choose another directory, or replace them "
                    "with --force, which keeps them beside the restored ones"
                )
            return _restore(source, data, former)
        except BaseException:
            if is_new:
                Path(lock.name).unlink()
                with contextlib.suppress(OSError):
                    data.path.rmdir()
            raise


def keep_aside(data: DataDirectory, occasion: str) -> Path:
    """Return a new folder in the data directory, named after the occasion and the time."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1000):
        path = data.path / f"before-{occasion}-{moment}{f'-{number}' if number else ''}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise DataError(f"{data.path} has too many folders before-{occasion}-{moment}")


def _data_in(data: DataDirectory) -> list[Path]:
    """Return the files or folders with data."""
    paths = (data.append_only, data.path / _OLD_FILE)
    return [path for path in paths if path.is_file() or (path.is_dir() and any(path.iterdir()))]


def _restore(source: IO[bytes], data: DataDirectory, former: list[Path]) -> Restored:
    folder = data.restoring
    if folder.exists():
        # An earlier restore was killed.
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    try:
        description = read_archive(source, folder)
        sync_folder(folder)
        aside = keep_aside(data, "restore") if former else None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # From here on, a server does not start while `restoring` exists and `appendonlydir` does not.
    for path in former:
        path.rename((aside or data.path) / path.name)
    if data.append_only.exists():
        data.append_only.rmdir()
    folder.rename(data.append_only)
    data.give_to_owner()
    sync_folder(data.path)
    return Restored(description, aside)
