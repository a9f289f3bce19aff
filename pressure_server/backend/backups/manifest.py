"""The manifest of an append-only file: the names of its parts, which are one base and increments after it."""

import re
from collections.abc import Iterable

from pressure_server.backend.backups.files import DamageError

MANIFEST = "appendonly.aof.manifest"
# A name is never a path.
_LINE = re.compile(r"file ([^/\s]+) seq \d+ type ([bhi])(?: .*)?")
_HISTORY = "h"


def parse_manifest(content: bytes) -> dict[str, str]:
    """Return the line of each part by its name, in the order in which Valkey loads them. Raise DamageError.

    Files that Valkey is about to delete are left out.
    """
    parts = {}
    for line in content.decode(errors="replace").splitlines():
        if line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise DamageError(f"{MANIFEST} is damaged ({line[:100]!r}): restore a backup")
        if found[2] != _HISTORY:
            parts[found[1]] = line
    if not parts:
        raise DamageError(f"{MANIFEST} is damaged (it names no file): restore a backup")
    return parts


def encode_manifest(lines: Iterable[str]) -> bytes:
    """Return the content of a manifest with these lines."""
    return "".join(f"{line}\n" for line in lines).encode()


def has_rdb_format(name: str) -> bool:
    """Return whether a part of this name has the RDB format, of which no prefix can be used."""
    return name.endswith(".rdb")
