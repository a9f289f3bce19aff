"""The manifest of an append-only file: the names of its parts, which are one base and increments after it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pressure_server.backend.backups.files import DataError

MANIFEST = "appendonly.aof.manifest"
_PART_NAME = re.compile(r"appendonly\.aof(\.[A-Za-z0-9-]+)*")
_LINE = re.compile(r"file (\S+) seq \d+ type ([bhi])(?: .*)?")
_HISTORY = "h"


@dataclass(frozen=True)
class Manifest:
    """The manifest: the names of the parts in the order in which Valkey loads them, and their lines.

    Files that Valkey is about to delete are left out.
    """

    names: tuple[str, ...]
    lines: tuple[str, ...]

    def first(self, count: int) -> Manifest:
        """Return a manifest of the first `count` parts."""
        return Manifest(self.names[:count], self.lines[:count])

    def encode(self) -> bytes:
        """Return the content of the manifest's file."""
        return "".join(f"{line}\n" for line in self.lines).encode()


def parse_manifest(content: bytes) -> Manifest:
    """Parse the content of a manifest. Raise DataError if it is damaged."""
    names, lines = [], []
    for line in content.decode(errors="replace").splitlines():
        if line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None or not is_part_name(found[1]) or found[1] in names:
            raise DataError(f"{MANIFEST} is damaged: {line[:100]!r}")
        if found[2] != _HISTORY:
            names.append(found[1])
            lines.append(line)
    if not names:
        raise DataError(f"{MANIFEST} is damaged: it names no file")
    return Manifest(tuple(names), tuple(lines))


def is_part_name(name: str) -> bool:
    """Return whether a part may have this name, which is never a path."""
    return bool(_PART_NAME.fullmatch(name)) and name != MANIFEST


def has_rdb_format(name: str) -> bool:
    """Return whether a part of this name has the RDB format, of which no prefix can be used."""
    return name.endswith(".rdb")
