"""Check the files of a stopped embedded backend, and cut off what follows the first damage.

The tools that come with Valkey check the format of each file. Then Valkey loads links to the files, and may
not write a byte: only this finds a command that does not exist, or that has the wrong arguments.
"""

import os
import re
import resource
import shutil
import subprocess
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pressure_server.backend.backups.files import DamageError, new_file, sync
from pressure_server.backend.backups.manifest import MANIFEST, encode_manifest, has_rdb_format, parse_manifest
from pressure_server.backend.data_directory import DataDirectory, DataError
from pressure_server.backend.valkey_program import check_commands, check_snapshot, program

# The second one is for data without anything in them.
_LOADED = ("DB loaded from append only file", "Ready to accept connections")
_LOG_PREFIX = re.compile(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ [-.*#] ")
_LAST_LINES = 2


class PartState(NamedTuple):
    """The state of one file. Nothing after the first damage is usable, in this file and in those after it."""

    name: str
    line: str  # in the manifest
    size: int
    usable: int  # bytes
    problem: str  # '' if there is none

    @property
    def is_usable(self) -> bool:
        """Whether a repair keeps the file, or its beginning."""
        return not self.problem or self.usable > 0


def check_data(data: DataDirectory) -> list[PartState]:
    """Check the data of a locked directory, and let Valkey load them if they seem sound.

    Raise DamageError if a repair cannot help, and another BackendError if a check is impossible.
    """
    if data.is_running():
        raise DataError(f"a Valkey is running on {data.socket}: stop it, or check a backup instead")
    if data.has_unfinished_restore():
        raise DamageError("a restore was interrupted: run pressure-server restore again")
    if not data.has_data():
        raise DataError(f"there are no data in {data.path}")
    try:
        manifest = parse_manifest((data.append_only / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise DamageError(f"{MANIFEST} is missing: restore a backup") from None
    parts: list[PartState] = []
    for name, line in manifest.items():
        follows_damage = bool(parts and parts[-1].problem)
        parts.append(_check(data.append_only / name, line, follows_damage))
    if not any(part.problem for part in parts) and (why := _problem_of_loading(data)):
        raise DamageError(f"Valkey cannot load the data ({why}): restore a backup")
    return parts


def repair_data(data: DataDirectory, parts: Sequence[PartState]) -> Path:
    """Cut off everything after the first damage. Return the folder that keeps the former data as they were.

    The directory is locked, the first part usable. Raise OSError; the data are then as before, or repaired.
    """
    aside = data.keep_aside("repair")
    _link_files(data.append_only, aside)
    usable = [part for part in parts if part.is_usable]
    # The manifest comes first: until the part is cut off as well, the data are still known to be damaged.
    with new_file(data.append_only / MANIFEST, replace=True) as manifest:
        manifest.write(encode_manifest(part.line for part in usable))
    last = data.append_only / usable[-1].name
    if not has_rdb_format(last.name):
        # Also if it is sound: Valkey will append to it, and the file that was kept aside must not change.
        with last.open("rb") as source, new_file(last, replace=True) as target:
            shutil.copyfileobj(source, target)
            target.truncate(usable[-1].usable)
    for part in parts[len(usable) :]:
        (data.append_only / part.name).unlink(missing_ok=True)
    data.give_to_owner()
    return aside


def _check(path: Path, line: str, follows_damage: bool) -> PartState:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if follows_damage:
                return PartState(path.name, line, size, 0, "of no use after a damaged file")
            found = (check_snapshot if has_rdb_format(path.name) else check_commands)(file.fileno())
    except FileNotFoundError:
        return PartState(path.name, line, 0, 0, "missing")
    problem = found.problem and f"damaged after byte {found.sound:,}: {found.problem}"
    return PartState(path.name, line, size, found.sound, problem)


def _problem_of_loading(data: DataDirectory) -> str:
    """Let Valkey load the data of a locked directory. Return why it cannot; '' if it can."""
    folder = data.path / "checking"
    shutil.rmtree(folder, ignore_errors=True)  # of a check that was killed
    try:
        folder.mkdir(mode=0o700)
        _link_files(data.append_only, folder)
        return _load(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _link_files(source: Path, folder: Path) -> None:
    """Make a copy of a folder in another one, with links to its files if the file system has hard links."""
    copy = folder / source.name
    copy.mkdir(mode=0o700)
    for path in source.iterdir():
        try:
            os.link(path, copy / path.name)
        except OSError:
            shutil.copy2(path, copy / path.name)
    sync(copy)
    sync(folder)


def _load(folder: Path) -> str:
    # The socket's path is relative to `dir`, and so never too long. The log goes to the pipe.
    arguments = ["--port", "0", "--unixsocket", "valkey.sock", "--dir", str(folder), "--logfile", ""]
    arguments += ["--appendonly", "yes", "--aof-load-truncated", "no", "--save", ""]
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(  # noqa: S603 -- the program comes with the server
        [program(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),  # may not write
    ) as process:
        try:
            for line in process.stdout or ():
                if any(text in line for text in _LOADED):
                    return ""
                last.append(_LOG_PREFIX.sub("", line).strip())
        finally:
            process.kill()
    return "; ".join(last)
