"""The file format of a backup: a tar with a description first, the files of Valkey, and their checksums last.

`tar` and `sha256sum -c SHA256SUMS` can read it too. Only regular files are unpacked, and no
paths.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from pressure_server import __version__
from pressure_server.backend.backups.data_snapshot import DataSnapshot
from pressure_server.backend.backups.files import DamageError, DataError
from pressure_server.backend.valkey_program import program_version

# No reader needs it yet: a server refuses what a newer one has written.
FORMAT = 1
_DESCRIPTION = "backup.json"
_SUMS = "SHA256SUMS"
_FOLDER = "appendonlydir/"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class StoredFile:
    """A file of Valkey in a backup."""

    name: str
    size: int


@dataclass(frozen=True)
class Description:
    """What a backup is, and what it has."""

    server_version: str
    valkey_version: str
    created: str
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


def write_archive(target: IO[bytes], snapshot: DataSnapshot) -> Description:
    """Write a backup of the snapshot, and return its description. Raise OSError."""
    files = tuple(StoredFile(part.name, part.size) for part in snapshot.parts)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    description = Description(__version__, snapshot.valkey_version, created, files)
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        members = _Members(tar)
        text = json.dumps({"format": FORMAT, **asdict(description)}, indent=1)
        members.add_text(_DESCRIPTION, text.encode() + b"\n")
        for part in snapshot.parts:
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


def _unpack(members: _Members, folder: Path | None) -> Description:
    description = _parse_description(members.next(_DESCRIPTION).read())
    if folder is not None and description.size > (free := shutil.disk_usage(folder).free):
        raise DataError(f"the backup needs {description.size:,} bytes, and {folder} has room for {free:,}")
    for file in description.files:
        content = members.next(_FOLDER + file.name)
        with open(folder / file.name, "xb") if folder else open(os.devnull, "wb") as target:
            shutil.copyfileobj(content, target, _CHUNK)
    expected = members.sums()
    if members.next(_SUMS).read() != expected:
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

    def next(self, name: str) -> _Hashed:
        """Return the content of the next member, which must be a regular file of that name."""
        member = self._tar.next()
        if member is None or member.name != name or not member.isreg():
            raise tarfile.ReadError(f"{name} is not where it belongs")
        content = self._tar.extractfile(member)
        assert content is not None  # noqa: S101 -- it is regular
        self._hashed[name] = _Hashed(content)
        return self._hashed[name]

    def sums(self) -> bytes:
        """Return the checksums of the members so far, as sha256sum writes them."""
        lines = [f"{hashed.digest.hexdigest()}  {name}\n" for name, hashed in self._hashed.items()]
        return "".join(lines).encode()


def _parse_description(content: bytes) -> Description:
    try:
        found = json.loads(content)
        files = tuple(StoredFile(str(file["name"]), int(file["size"])) for file in found["files"])
        versions = str(found["server_version"]), str(found["valkey_version"])
        description = Description(*versions, str(found["created"]), files)
    except (ValueError, TypeError, KeyError) as error:
        raise DamageError("the backup is damaged: its description cannot be read") from error
    if any("/" in file.name for file in files):
        raise DamageError("the backup is damaged: its description names a path")
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
