"""Check the files of a stopped embedded backend, and cut off what follows the first damage.

The tools that come with Valkey check the format of each file. Then Valkey loads links to the files, and may
not write a byte: only this finds a command that does not exist, or that has the wrong arguments.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pressure_server.backend.backups.files import DataError, chunks_of, new_file, size_of, sync_folder
from pressure_server.backend.backups.manifest import (
    MANIFEST,
    Manifest,
    has_rdb_format,
    parse_manifest,
)
from pressure_server.backend.backups.restore import keep_aside
from pressure_server.backend.data_directory import DataDirectory
from pressure_server.backend.valkey_program import check_commands, check_snapshot, program

# The second one is for data without anything in them.
_LOADED = ("DB loaded from append only file", "Ready to accept connections")
_LOG_PREFIX = re.compile(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ [-.*#] ")
_LAST_LINES = 2


@dataclass(frozen=True)
class PartState:
    """The state of one file: its size, how many bytes are sound, and what is wrong after them."""

    name: str
    size: int
    sound: int
    problem: str


@dataclass(frozen=True)
class DataState:
    """The state of all files. A `problem` concerns the manifest, or the directory itself."""

    manifest: Manifest
    parts: tuple[PartState, ...]
    problem: str

    @property
    def damaged(self) -> int | None:
        """The number of the first damaged part; None if there is none."""
        return next((number for number, part in enumerate(self.parts) if part.problem), None)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem and self.damaged is None

    @property
    def lost(self) -> int:
        """How many bytes follow the first damage: a repair cuts them off."""
        if self.damaged is None:
            return 0
        return sum(part.size for part in self.parts[self.damaged :]) - self.parts[self.damaged].sound

    @property
    def is_repairable(self) -> bool:
        """Whether a prefix of the data can be used: the damage is not in a file in the RDB format."""
        if self.problem or self.damaged is None:
            return False
        part = self.parts[self.damaged]
        return self.damaged > 0 or (not has_rdb_format(part.name) and part.sound > 0)


def check_data(data: DataDirectory) -> DataState:
    """Check the data of a directory that the caller has locked, and let Valkey load them if they seem sound.

    Raise BackendError if that is impossible.
    """
    if data.is_running():
        raise DataError(f"a Valkey is running on {data.socket}: stop it, or check a backup instead")
    nothing = Manifest((), ())
    if data.has_unfinished_restore():
        return DataState(nothing, (), "a restore was interrupted: run pressure-server restore again")
    try:
        manifest = parse_manifest((data.append_only / MANIFEST).read_bytes())
        state = DataState(manifest, tuple(_check(data.append_only / name) for name in manifest.names), "")
        if state.is_sound and (why := _problem_of_loading(data)):
            state = replace(state, problem=f"Valkey cannot load the data ({why}): restore a backup")
        return state
    except FileNotFoundError:
        if data.append_only.is_dir() and any(data.append_only.iterdir()):
            return DataState(nothing, (), f"{MANIFEST} is missing: restore a backup")
        raise DataError(f"there are no data in {data.path}") from None
    except DataError as error:
        return DataState(nothing, (), f"{error}: restore a backup")
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error


def repair_data(data: DataDirectory, state: DataState) -> Path:
    """Cut off everything after the first damage. Return the folder with the former data.

    The caller has locked the directory. The former files stay as they are, in a data directory of their own.
    Raise OSError; the data are then as before, or repaired.
    """
    assert state.damaged is not None  # noqa: S101 -- is_repairable
    aside = keep_aside(data, "repair")
    kept = aside / data.append_only.name
    kept.mkdir(mode=0o700)
    _link_files(data.append_only.iterdir(), kept)
    sync_folder(kept)
    sync_folder(aside)
    # If no byte of the part is sound, the part is removed.
    count = state.damaged + (1 if state.parts[state.damaged].sound else 0)
    # The manifest comes first: until the part is cut off as well, the data are still known to be damaged.
    if count < len(state.parts):
        with new_file(data.append_only / MANIFEST, replace=True) as file:
            file.write(state.manifest.first(count).encode())
    last = state.parts[count - 1]
    if not has_rdb_format(last.name):
        # Also if it is sound: Valkey will append to it, and the file that was kept aside must not change.
        _cut(data.append_only / last.name, last.sound)
    for later in state.manifest.names[count:]:
        with contextlib.suppress(FileNotFoundError):
            (data.append_only / later).unlink()
    data.give_to_owner()
    return aside


def _check(path: Path) -> PartState:
    try:
        with path.open("rb") as file:
            check = check_snapshot if has_rdb_format(path.name) else check_commands
            found = check(file.fileno())
            return PartState(path.name, size_of(file), found.sound, found.problem)
    except FileNotFoundError:
        return PartState(path.name, 0, 0, "the file is missing")


def _cut(path: Path, size: int) -> None:
    """Replace a file by its first `size` bytes. Its former content keeps its other names."""
    with path.open("rb") as source, new_file(path, replace=True) as target:
        target.writelines(chunks_of(source, size, str(path)))


def _problem_of_loading(data: DataDirectory) -> str:
    """Let Valkey load the data of a locked directory. Return why it cannot; '' if it can."""
    folder = data.path / "checking"
    if folder.exists():
        # An earlier check was killed.
        shutil.rmtree(folder)
    try:
        (folder / data.append_only.name).mkdir(mode=0o700, parents=True)
        _link_files(data.append_only.iterdir(), folder / data.append_only.name)
        return _load(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _link_files(files: Iterable[Path], folder: Path) -> None:
    """Link files into a folder, or copy them if the file system has no hard links."""
    for path in files:
        try:
            os.link(path, folder / path.name)
        except OSError:
            shutil.copy2(path, folder / path.name)


def _load(folder: Path) -> str:
    # The socket's path is relative to `dir`, and so never too long. The log goes to the pipe.
    arguments = ["--port", "0", "--unixsocket", "valkey.sock", "--dir", str(folder), "--logfile", ""]
    arguments += ["--appendonly", "yes", "--aof-load-truncated", "no", "--save", ""]
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        process = subprocess.Popen(  # noqa: S603 -- the program comes with the server
            [program(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),  # may not write
        )
    except OSError as error:
        raise DataError(f"cannot run {program()}: {error.strerror}") from error
    with process:
        try:
            for line in process.stdout or ():
                if any(text in line for text in _LOADED):
                    return ""
                last.append(_LOG_PREFIX.sub("", line).strip())
        finally:
            process.kill()
    return "; ".join(last)
