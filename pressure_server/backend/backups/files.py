"""Files of backups and of data: a new file appears when it is complete and synced."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pressure_server.backend.data_directory import DataError


class DamageError(DataError):
    """A data directory, or a backup of one, is damaged."""


@contextlib.contextmanager
def new_file(path: Path, *, replace: bool) -> Iterator[IO[bytes]]:
    """Write a file that only its owner may read. Raise DataError if it exists and `replace` is not set.

    It gets its name when the block ends. An exception deletes it. The caller may read it back in the block.
    """
    _require_absent(path, replace)
    # The name is known before the file exists, so an interrupt at any moment finds it.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with open(partial, "x+b", opener=_open_for_owner) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            _require_absent(path, replace)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file, or the names of the files in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_for_owner(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _require_absent(path: Path, replace: bool) -> None:
    if not replace and os.path.lexists(path):
        raise DataError(f"{path} exists: choose another name, or replace it with --force")
