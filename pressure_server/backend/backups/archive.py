"""The file format of a backup: a tar with a description first, the files of Valkey, and their checksums last.

`tar` and `sha256sum -c SHA256SUMS` can read it too. This module reads exactly what it writes: regular files
in a known order and of known sizes, so a hostile file can name no path, link or device.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, BinaryIO

from pressure_server import __version__
from pressure_server.backend.backups.data_snapshot import DataSnapshot
from pressure_server.backend.backups.files import DataError, chunks_of
from pressure_server.backend.backups.manifest import MANIFEST, is_part_name, parse_manifest
from pressure_server.backend.valkey_program import program_version

FORMAT = 1
_DESCRIPTION = "backup.json"
_SUMS = "SHA256SUMS"
_FOLDER = "appendonlydir/"
_BLOCK = tarfile.BLOCKSIZE
# The largest description, manifest or list of checksums, in bytes.
_MAX_TEXT = 1 << 20


@dataclass(frozen=True)
class StoredFile:
    """A file of Valkey in a backup."""

    name: str
    size: int


@dataclass(frozen=True)
class Description:
    """What a backup is, and what it has."""

    format: int
    server_version: str
    valkey_version: str
    created: str
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


def write_archive(target: BinaryIO, snapshot: DataSnapshot) -> Description:
    """Write a backup of the snapshot, and return its description. Raise DataError or OSError."""
    manifest = snapshot.manifest.encode()
    files = [StoredFile(MANIFEST, len(manifest))]
    files += [StoredFile(part.name, part.size) for part in snapshot.parts]
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    description = Description(FORMAT, __version__, snapshot.valkey_version, created, tuple(files))
    writer = _Writer(target)
    writer.add(_DESCRIPTION, [json.dumps(asdict(description), indent=1).encode() + b"\n"])
    writer.add(_FOLDER + MANIFEST, [manifest])
    for part in snapshot.parts:
        part.file.seek(0)
        writer.add(_FOLDER + part.name, chunks_of(part.file, part.size, part.name), part.size)
    writer.finish()
    return description


def read_archive(source: IO[bytes], folder: Path | None = None) -> Description:
    """Verify a backup, and unpack its files into an empty folder if one is given.

    Raise DataError if it is damaged, foreign, or newer than this server, and OSError if a file cannot be
    read or written. Nothing but files in the folder is written, and not more than the description says.
    """
    reader = _Reader(source)
    description = _parse_description(reader.text(_DESCRIPTION, is_first=True))
    if folder is not None:
        _check_space(folder, description.size)
    manifest = b""
    for file in description.files:
        if file.name == MANIFEST:
            manifest = reader.text(_FOLDER + file.name, file.size)
            chunks: Iterator[bytes] = iter([manifest])
        else:
            chunks = reader.open(_FOLDER + file.name, file.size)
        if folder is None:
            for _ in chunks:
                pass
        else:
            _store(folder / file.name, chunks)
    reader.finish()
    if set(parse_manifest(manifest).names) != {file.name for file in description.files} - {MANIFEST}:
        raise DataError("the backup is damaged: its files are not those of its manifest")
    return description


class _Writer:
    """Writes the members of a tar, and then their checksums."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._sums: list[str] = []

    def add(self, name: str, chunks: Iterator[bytes] | list[bytes], size: int | None = None) -> None:
        """Write a regular file; `size` is that of all chunks."""
        header = tarfile.TarInfo(name)
        header.size = size if size is not None else sum(map(len, chunks))
        header.mode = 0o600
        header.mtime = int(time.time())
        self._target.write(header.tobuf(tarfile.GNU_FORMAT))
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
            self._target.write(chunk)
        self._target.write(bytes(-header.size % _BLOCK))
        self._sums.append(f"{digest.hexdigest()}  {name}\n")

    def finish(self) -> None:
        """Write the checksums and the end of the tar."""
        self.add(_SUMS, ["".join(self._sums).encode()])
        self._target.write(bytes(2 * _BLOCK))


class _Reader:
    """Reads the members that a _Writer has written, and compares their checksums at the end."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._sums: list[str] = []

    def text(self, name: str, size: int | None = None, *, is_first: bool = False) -> bytes:
        """Return the content of a small file."""
        found = self._header(name, is_first)
        if found > _MAX_TEXT or size not in (None, found):
            raise DataError(f"the backup is damaged: {name} has {found} bytes")
        return b"".join(self._content(name, found))

    def open(self, name: str, size: int) -> Iterator[bytes]:
        """Return the content of a file, in chunks."""
        if self._header(name) != size:
            raise DataError(f"the backup is damaged: {name} does not have {size} bytes")
        return self._content(name, size)

    def finish(self) -> None:
        """Compare the checksums, and read the end."""
        expected = "".join(self._sums).encode()
        if self.text(_SUMS) != expected:
            raise DataError("the backup is damaged: its content does not match its checksums")
        if any(_read(self._source, 2 * _BLOCK)) or self._source.read(1):
            raise DataError("the backup is damaged: something follows its end")

    def _header(self, name: str, is_first: bool = False) -> int:
        try:
            header = tarfile.TarInfo.frombuf(_read(self._source, _BLOCK), "utf-8", "replace")
        except (tarfile.HeaderError, DataError) as error:
            if is_first:
                raise DataError("this is not a backup of pressure-server") from error
            raise DataError(f"the backup is cut short or damaged before {name}") from error
        if header.name != name or header.type != tarfile.REGTYPE or header.size < 0:
            if is_first:
                raise DataError("this is not a backup of pressure-server")
            raise DataError(f"the backup is damaged: {name} is expected, not {header.name!r}")
        return header.size

    def _content(self, name: str, size: int) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for chunk in chunks_of(self._source, size, name):
            digest.update(chunk)
            yield chunk
        if any(_read(self._source, -size % _BLOCK)):
            raise DataError(f"the backup is damaged after {name}")
        self._sums.append(f"{digest.hexdigest()}  {name}\n")


def _parse_description(content: bytes) -> Description:
    try:
        found = json.loads(content)
        if found["format"] > FORMAT:
            raise DataError(
                f"the backup has format {found['format']} of pressure-server {found['server_version']}; "
                f"this is {__version__}, which reads format {FORMAT}: install a newer version"
            )
        files = tuple(StoredFile(file["name"], file["size"]) for file in found["files"])
        texts = [found[name] for name in ("server_version", "valkey_version", "created")]
        names = [file.name for file in files]
        is_valid = (
            found["format"] == FORMAT
            and all(isinstance(text, str) for text in texts)
            and all(type(file.size) is int and file.size >= 0 for file in files)
            and all(name == MANIFEST or is_part_name(name) for name in names)
            and len(set(names)) == len(names)
            and MANIFEST in names
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError("the backup is damaged: its description cannot be read") from error
    if not is_valid:
        raise DataError("the backup is damaged: its description is invalid")
    description = Description(FORMAT, texts[0], texts[1], texts[2], files)
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


def _check_space(folder: Path, size: int) -> None:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if size > free:
        raise DataError(f"the backup needs {size:,} bytes, and {folder} has room for {free:,}")


def _store(path: Path, chunks: Iterator[bytes]) -> None:
    """Write a new file, and sync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())


def _read(source: IO[bytes], size: int) -> bytes:
    return b"".join(chunks_of(source, size, "the backup"))
