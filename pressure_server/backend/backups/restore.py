"""Restore: unpack a backup in a data directory, and replace the data when the backup is verified."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import IO

from pressure_server.backend.backups.archive import Description, read_archive
from pressure_server.backend.backups.files import DataError, sync
from pressure_server.backend.data_directory import DataDirectory


def restore(source: IO[bytes], data: DataDirectory, *, replace: bool) -> tuple[Description, Path | None]:
    """Restore a backup. With `replace`, data in the directory are moved into a directory of their own.

    Return the backup's description, and the directory of the former data, if there were any. Raise
    BackendError if the directory is in use, or has data and `replace` is not set, or if the backup cannot be
    used; and OSError. The directory's data are then as before.
    """
    is_new = not data.path.exists()
    aside = None
    with data.lock():
        try:
            if data.is_running():
                raise DataError(f"a Valkey is running on {data.socket}: stop it")
            has_data = data.append_only.is_dir() and any(data.append_only.iterdir())
            if has_data and not replace:
                raise DataError(
                    f"{data.path} has data ({data.append_only.name}): choose another directory, or replace "
                    "them with --force, which keeps them beside the restored ones"
                )
            if data.restoring.exists():
                # An earlier restore was killed.
                shutil.rmtree(data.restoring)
            data.restoring.mkdir(mode=0o700)
            description = read_archive(source, data.restoring)
            for path in (*data.restoring.iterdir(), data.restoring):
                sync(path)
            if has_data:
                aside = keep_aside(data, "restore")
        except BaseException:
            shutil.rmtree(data.path if is_new else data.restoring, ignore_errors=True)
            raise
        # From here on, a server does not start while `restoring` exists and `appendonlydir` does not.
        if aside is not None:
            data.append_only.rename(aside / data.append_only.name)
        data.restoring.rename(data.append_only)
        data.give_to_owner()
        sync(data.path)
    return description, aside


def keep_aside(data: DataDirectory, occasion: str) -> Path:
    """Return a new folder in the data directory, named after the occasion and the time."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = data.path / f"before-{occasion}-{moment}"
    path.mkdir(mode=0o700)
    return path
