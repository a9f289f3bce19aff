"""Backups: a tar with a description first, the files of Valkey, and their checksums last.

`tar` and `sha256sum -c SHA256SUMS` can read it too. Only regular files of one folder are unpacked.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from pressure_server import __version__
from pressure_server.backend.backups.data_snapshot import OpenPart
from pressure_server.backend.backups.files import DamageError, sync
from pressure_server.backend.data_directory import DataDirectory, DataError
from pressure_server.backend.valkey_program import program_version

_DESCRIPTION = "backup.json"
_SUMS = "SHA256SUMS"
_FOLDER = "appendonlydir/"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Description:
    """What a backup is, and how many files and bytes of Valkey it has."""

    server_version: str
    valkey_version: str
    created: str
    files: int
    size: int


def write_archive(target: IO[bytes], parts: Sequence[OpenPart], valkey_version: str) -> Description:
    """Write a backup of a snapshot, and return its description. Raise OSError."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    size = sum(part.size for part in parts)
    description = Description(__version__, valkey_version, created, len(parts), size)
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        members = _Members(tar)
        members.add_text(_DESCRIPTION, json.dumps(asdict(description), indent=1).encode() + b"\n")
        for part in parts:
            members.add(_FOLDER + part.name, part.file, part.size)
        members.add_text(_SUMS, members.sums())
    return description


def read_archive(source: IO[bytes], folder: Path | None = None) -> Description:
    """Verify a backup, and unpack its files into an empty folder if one is given.

    Raise DamageError if it is damaged or foreign, another DataError if it is newer than this server or needs
    too much room, and OSError if a file cannot be read or written.
    """
    try:
        with tarfile.open(fileobj=source, mode="r|") as tar:
            description = _unpack(_Members(tar), folder)
    except tarfile.TarError as error:
        raise DamageError(f"this is not a backup of pressure-server, or it is damaged: {error}") from error
    # Without this, the program that writes into a pipe might fail at the end.
    while source.read(_CHUNK):
        pass
    return description


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
            has_data = data.has_data()
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
                aside = data.keep_aside("restore")
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


def _unpack(members: _Members, folder: Path | None) -> Description:
    name, content = members.next()
    if name != _DESCRIPTION:
        raise tarfile.ReadError(f"its first file is not {_DESCRIPTION}")
    description = _parse_description(content.read())
    if folder is not None and description.size > (free := shutil.disk_usage(folder).free):
        raise DataError(f"the backup needs {description.size:,} bytes, and {folder} has room for {free:,}")
    while True:
        expected = members.sums()
        name, content = members.next()
        if name == _SUMS:
            break
        file = name.removeprefix(_FOLDER)
        if file == name or "/" in file:
            raise tarfile.ReadError(f"it has a file {name}")
        with open(folder / file, "xb") if folder else open(os.devnull, "wb") as target:
            shutil.copyfileobj(content, target, _CHUNK)
    if content.read() != expected:
        raise DamageError("the backup is damaged: its content does not match its checksums")
    return description


class _Hashed:
    """A file whose content is hashed while it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """Read as the file does."""
        chunk = self._file.read(size)
        self.digest.update(chunk)
        return chunk


class _Members:
    """The members of a tar, written or read in their order, and their checksums."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._hashed: dict[str, _Hashed] = {}

    def add(self, name: str, file: IO[bytes], size: int) -> None:
        """Write the next `size` bytes of a file as a member."""
        header = tarfile.TarInfo(name)
        header.size, header.mode, header.mtime = size, 0o600, int(time.time())
        self._hashed[name] = _Hashed(file)
        self._tar.addfile(header, self._hashed[name])

    def add_text(self, name: str, text: bytes) -> None:
        """Write a member."""
        self.add(name, io.BytesIO(text), len(text))

    def next(self) -> tuple[str, _Hashed]:
        """Return the name and the content of the next member, which must be a regular file."""
        member = self._tar.next()
        content = self._tar.extractfile(member) if member is not None and member.isreg() else None
        if member is None or content is None:
            raise tarfile.ReadError("it is cut short, or has other members than files")
        self._hashed[member.name] = _Hashed(content)
        return member.name, self._hashed[member.name]

    def sums(self) -> bytes:
        """Return the checksums of the members so far, as sha256sum writes them."""
        lines = [f"{hashed.digest.hexdigest()}  {name}\n" for name, hashed in self._hashed.items()]
        return "".join(lines).encode()


def _parse_description(content: bytes) -> Description:
    try:
        found = json.loads(content)
        texts = str(found["server_version"]), str(found["valkey_version"]), str(found["created"])
        description = Description(*texts, int(found["files"]), int(found["size"]))
    except (ValueError, TypeError, KeyError) as error:
        raise DamageError("the backup is damaged: its description cannot be read") from error
    # A patch release does not change the format of Valkey's files.
    for what, its, ours, digits in (
        ("pressure-server", description.server_version, __version__, 3),
        ("Valkey", description.valkey_version, program_version(), 2),
    ):
        if _numbers(its)[:digits] > _numbers(ours)[:digits]:
            raise DataError(
                f"the backup was made by {what} {its}, and this is {ours}: install a newer version"
            )
    return description


def _numbers(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d{1,9}", version)]
