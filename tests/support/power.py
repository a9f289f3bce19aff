"""Power cuts: after the kill, the files hold what the program has synced, and a random part of the rest.

`kill -9` proves less: the kernel still writes what the program has written. A preload (synced.c) notes what
has been synced. Names are taken to be durable at once: a cut undoes no rename.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.preload import preload


class Disk:
    """What a power cut leaves of the files in a folder. A program notes what it syncs with `environment`.

    The files that are there at the beginning are durable.
    """

    def __init__(self, folder: Path, *ignored: str) -> None:
        """A cut leaves files with the names `ignored` alone: nobody promises them to be durable."""
        self._folder = folder
        self._ignored = ignored
        self._log = folder.with_name(folder.name + ".synced")
        found = [file.stat() for file in self._files()]
        self._synced = {file.st_ino: file.st_size for file in found}
        self._position = 0
        # The bytes that cuts have removed, and the times of the cuts.
        self.lost = 0
        self.cuts: list[float] = []

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

    def cut(self, chance: random.Random | None = None) -> None:
        """Truncate the files of a program that has ended to what has been synced.

        With a `chance`, a random part of the rest is left.
        """
        self.cuts.append(time.monotonic())
        self._read_log()
        for file in self._files():
            found = file.stat()
            synced = min(self._synced.get(found.st_ino, 0), found.st_size)
            kept = synced
            if chance is not None:
                kept += int(chance.choice((0.0, chance.random())) * (found.st_size - synced))
            self.lost += found.st_size - kept
            os.truncate(file, kept)
            self._synced[found.st_ino] = kept

    def has_unsynced(self) -> bool:
        """Return whether a cut would remove something, as long as the program is stopped."""
        self._read_log()
        found = [file.stat() for file in self._files()]
        return any(file.st_size > self._synced.get(file.st_ino, 0) for file in found)

    def _files(self) -> Iterator[Path]:
        found = sorted(self._folder.rglob("*"))
        return (path for path in found if path.is_file() and path.name not in self._ignored)
