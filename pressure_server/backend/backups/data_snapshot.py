"""A consistent view of the files of an embedded backend, while its Valkey runs or not.

Valkey only appends to its files, replaces the manifest atomically, and deletes files that no manifest names.
So the files that one manifest names are the data of one moment: the last one up to any complete command, the
others as a whole. Open files remain readable after Valkey has deleted them. No setting of Valkey and no file
is changed, so nothing remains changed if this process is killed.
"""

import contextlib
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pressure_server.backend.backups.files import DamageError
from pressure_server.backend.backups.manifest import MANIFEST, encode_manifest, has_rdb_format, parse_manifest
from pressure_server.backend.data_directory import DataDirectory, DataError
from pressure_server.backend.valkey_program import check_commands, program_version

# Seconds for Valkey to load its data and to sync its file.
_SYNC_TIMEOUT = 60.0
# Seconds for a write that is under way to be complete.
_WRITE_TIMEOUT = 3.0
_PAUSE = 0.1
# WAITAOF waits for the last write of its own connection; this one leaves no key.
_WRITE = ("SET", "pressure-server:backup", "", "PX", 1)
# How the error of a Valkey begins that runs a script for long.
_BUSY = "BUSY"


class OpenPart(NamedTuple):
    """An open file, of which the first `size` bytes belong to the snapshot."""

    name: str
    file: IO[bytes]
    size: int


@contextlib.contextmanager
def open_snapshot(data: DataDirectory) -> Iterator[tuple[list[OpenPart], str]]:
    """Open the manifest and its parts with all that was acknowledged before the call; tell Valkey's version.

    Raise OSError, or BackendError if there are no data, or if they are damaged, or if Valkey does not answer.
    """
    if not (data.append_only / MANIFEST).exists():
        raise DataError(f"there are no data in {data.path}")
    version = _sync(data)
    with contextlib.ExitStack() as stack:
        yield _open_parts(data.append_only, stack), version


def _sync(data: DataDirectory) -> str:
    """Wait until Valkey has written and synced everything acknowledged. Return Valkey's version."""
    end = time.monotonic() + _SYNC_TIMEOUT
    why = ""
    while data.is_running():
        left = end - time.monotonic()
        if left < 0:
            raise DataError(f"Valkey on {data.socket} did not sync its append-only file: {why}")
        try:
            return _sync_once(data, max(left, 1.0))
        except redis.RedisError as error:
            why = str(error)
            if isinstance(error, redis.ResponseError) and not why.startswith(_BUSY):
                raise DataError(
                    f"Valkey on {data.socket} cannot write its append-only file: {why}"
                ) from error
            # It is busy, or loads its data, or has just ended: then its files have all that it acknowledged.
        time.sleep(_PAUSE)
    return program_version()


def _sync_once(data: DataDirectory, seconds: float) -> str:
    with redis.Redis(
        unix_socket_path=str(data.socket),
        single_connection_client=True,
        socket_timeout=seconds,
        retry=Retry(NoBackoff(), 0),
    ) as client:
        server = client.info("server")
        client.execute_command(*_WRITE)
        if not client.execute_command("WAITAOF", 1, 0, int(seconds * 1000))[0]:
            raise redis.TimeoutError(f"WAITAOF did not succeed within {seconds:g} seconds")
        return str(server.get("valkey_version") or server["redis_version"])


def _open_parts(folder: Path, stack: contextlib.ExitStack) -> list[OpenPart]:
    """Open the files that the manifest names. Retry if Valkey deletes one because of a new manifest."""
    last, content = b"", (folder / MANIFEST).read_bytes()
    while content != last:
        lines = parse_manifest(content)
        with contextlib.suppress(FileNotFoundError):
            files = {name: stack.enter_context((folder / name).open("rb")) for name in lines}
            manifest = encode_manifest(lines.values())
            parts = [OpenPart(name, file, _complete_size(name, file)) for name, file in files.items()]
            return [OpenPart(MANIFEST, io.BytesIO(manifest), len(manifest)), *parts]
        last, content = content, (folder / MANIFEST).read_bytes()
    raise DamageError(f"a file that {MANIFEST} names is missing: run pressure-server check-data")


def _complete_size(name: str, file: IO[bytes]) -> int:
    """Return how many bytes of the part belong to the snapshot: all that were there, and complete."""
    least = os.fstat(file.fileno()).st_size
    if has_rdb_format(name):
        # Not checked, because the tool would need as much memory as the largest queue.
        return least
    end = time.monotonic() + _WRITE_TIMEOUT
    while (found := check_commands(file.fileno())).sound < least:
        # Valkey may be in the middle of a write.
        if time.monotonic() > end:
            raise DamageError(
                f"{name} is damaged after byte {found.sound} of {least} ({found.problem}): "
                "stop the server, and run pressure-server check-data"
            )
        time.sleep(_PAUSE)
    file.seek(0)
    return found.sound
