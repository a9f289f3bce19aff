"""Files of backups and of data: a new one appears when it is complete; the others are read in chunks."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from pressure_server.errors import BackendError

_CHUNK = 1 << 20


class DataError(BackendError):
    """A data directory, or a backup of one, cannot be used."""


@contextlib.contextmanager
def new_file(path: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """Write a file that only its owner may read. Raise DataError if it exists and `replace` is not set.

    It is written to PATH.partial, which is deleted if the block raises an exception, and reused if an earlier
    process was killed. The caller may read it back before the block ends.
    """
    if not replace and os.path.lexists(path):
        raise _exists(path)
    partial = path.with_name(f"{path.name}.partial")
    with _open_locked(partial) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if replace:
                partial.replace(path)
            else:
                _link(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Sync the names of the files in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_of(file: BinaryIO) -> int:
    """Return the present size of an open file."""
    return os.fstat(file.fileno()).st_size


def chunks_of(file: IO[bytes], size: int, name: str) -> Iterator[bytes]:
    """Yield the next `size` bytes of a file, in chunks. Raise DataError if it has fewer."""
    while size:
        chunk = file.read(min(size, _CHUNK))
        if not chunk:
            raise DataError(f"{name} is cut short: {size} bytes are missing")
        size -= len(chunk)
        yield chunk


def _open_locked(partial: Path) -> BinaryIO:
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    file = open(descriptor, "w+b")  # noqa: SIM115 -- the caller closes it
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.fstat(descriptor).st_ino == partial.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        is_ours = False
    if not is_ours:
        file.close()
        raise DataError(f"another process is writing {partial}")
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, 0)
    return file


def _link(partial: Path, path: Path) -> None:
    """Rename without replacing a file that has appeared meanwhile."""
    try:
        os.link(partial, path)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError:
        # The file system has no hard links.
        if os.path.lexists(path):
            raise _exists(path) from None
        partial.rename(path)
    else:
        partial.unlink()


def _exists(path: Path) -> DataError:
    return DataError(f"{path} exists: choose another name, or replace it with --force")
