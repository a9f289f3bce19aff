"""Power cuts: after the kill, the files hold what the program has synced, and a random part of the rest.

`kill -9` proves less: the kernel still writes what the program has written. A preload (synced.c) notes what
has been synced. Names are taken to be durable at once: a cut undoes no rename.
"""

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.preload import preload
from tests.support.programs import TIMEOUT, Valkey


class Disk:
    """What a power cut leaves of the files in a folder. A program notes what it syncs with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder.with_name(folder.name + ".synced")
        self._synced: dict[int, int] = {}
        self._position = 0
        # The bytes that cuts have removed.
        self.lost = 0

    @property
    def environment(self) -> dict[str, str]:
        """What makes a program note its syncs."""
        return {"LD_PRELOAD": str(preload("synced")), "SYNCED_LOG": str(self._log)}

    def _read_log(self) -> None:
        with self._log.open("rb") as log:
            log.seek(self._position)
            for line in log:
                event, inode, size = line.split()
                self._note(event, int(inode), int(size))
            self._position = log.tell()

    def _note(self, event: bytes, inode: int, size: int) -> None:
        before = self._synced.get(inode, 0)
        self._synced[inode] = {b"F": max(before, size), b"T": min(before, size), b"U": 0}[event]

    def cut(self, chance: random.Random, *ignored: str) -> None:
        """Truncate the files of a program that has ended to what has been synced, or a part of the rest.

        Leave files with these names alone: nobody promises them to be durable.
        """
        self._read_log()
        for file in self._files():
            if file.name in ignored:
                continue
            found = file.stat()
            synced = min(self._synced.get(found.st_ino, 0), found.st_size)
            kept = synced + int(chance.choice((0.0, chance.random())) * (found.st_size - synced))
            self.lost += found.st_size - kept
            os.truncate(file, kept)
            self._synced[found.st_ino] = kept

    def has_unsynced(self, *ignored: str) -> bool:
        """Return whether a cut would remove something, as long as the program is stopped."""
        self._read_log()
        sizes = {
            file.stat().st_ino: file.stat().st_size for file in self._files() if file.name not in ignored
        }
        return any(size > self._synced.get(inode, 0) for inode, size in sizes.items())

    def _files(self) -> Iterator[Path]:
        return (path for path in sorted(self._folder.rglob("*")) if path.is_file())


class PoweredValkey(Valkey):
    """A Valkey or Redis whose power can be cut. Its options are those of Valkey."""

    def __init__(self, folder: Path, *options: str, **others: Any) -> None:
        self.disk = Disk(folder)
        super().__init__(folder, *options, **others)

    def launch(self) -> None:
        """See Program."""
        environment = {**os.environ, **self.disk.environment}
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
        )

    def cut_power(self, chance: random.Random) -> None:
        """Kill the program and its children, and lose what they have not synced. `start` starts it again."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
        self.disk.cut(chance, "backend.log")
