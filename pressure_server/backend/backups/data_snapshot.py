"""A consistent view of the files of an embedded backend, while its Valkey runs or not.

Valkey only appends to its files, replaces the manifest atomically, and deletes files that no manifest names.
So the files that one manifest names, opened while it does not change, are the data of one moment: the last
one up to any complete command, the others as a whole. Open files remain readable after Valkey has deleted
them. Nothing is changed in Valkey or its directory, so nothing remains changed if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pressure_server.backend.backups.files import DataError, size_of
from pressure_server.backend.backups.manifest import (
    MANIFEST,
    Manifest,
    has_rdb_format,
    parse_manifest,
)
from pressure_server.backend.data_directory import DataDirectory
from pressure_server.backend.valkey_program import check_commands, program_version

# Seconds for Valkey to load its data and to sync its file.
_SYNC_TIMEOUT = 60.0
# Seconds for a write that is under way to be complete.
_WRITE_TIMEOUT = 3.0
_PAUSE = 0.1
# How the error of a Valkey begins that runs a script for long.
_BUSY = "BUSY"
# WAITAOF waits for the last write of its own connection; this one leaves no key.
_WRITE = "redis.call('SET', KEYS[1], ''); redis.call('DEL', KEYS[1])"
_KEY = "pressure-server:backup"


@dataclass(frozen=True)
class OpenPart:
    """An open file, of which the first `size` bytes belong to the snapshot."""

    name: str
    file: BinaryIO
    size: int


@dataclass(frozen=True)
class DataSnapshot:
    """The data of one moment."""

    manifest: Manifest
    parts: tuple[OpenPart, ...]
    valkey_version: str


@contextlib.contextmanager
def open_snapshot(data: DataDirectory) -> Iterator[DataSnapshot]:
    """Open a snapshot that has every change that was acknowledged before the call.

    Raise BackendError if there are no data, or if they are damaged, or if Valkey does not answer.
    """
    version = _sync(data)
    with contextlib.ExitStack() as stack:
        try:
            manifest, files = _open_files(data, stack)
            parts = []
            for name, file in zip(manifest.names, files, strict=True):
                is_last = name == manifest.names[-1]
                parts.append(OpenPart(name, file, _sound_size(name, file, is_last)))
        except OSError as error:
            raise DataError(f"cannot read {error.filename or data.append_only}: {error.strerror}") from error
        yield DataSnapshot(manifest, tuple(parts), version)


def _sync(data: DataDirectory) -> str:
    """Wait until Valkey has written and synced everything acknowledged. Return Valkey's version."""
    end = time.monotonic() + _SYNC_TIMEOUT
    why = ""
    while data.is_running():
        if not os.access(data.socket, os.W_OK):
            raise DataError(f"no permission to use {data.socket}: run the command as the user of the server")
        if time.monotonic() > end:
            raise DataError(f"Valkey on {data.socket} did not sync its append-only file: {why}")
        try:
            if version := _sync_once(data, end):
                return version
            why = f"WAITAOF did not succeed within {_SYNC_TIMEOUT:g} seconds"
        except redis.RedisError as error:
            why = str(error)
            if isinstance(error, redis.ResponseError) and not why.startswith(_BUSY):
                raise DataError(
                    f"Valkey on {data.socket} cannot write its append-only file: {why}"
                ) from error
            # It is busy, or loads its data, or has just ended: then its files have all that it acknowledged.
        time.sleep(_PAUSE)
    return program_version()


def _sync_once(data: DataDirectory, end: float) -> str:
    left = max(end - time.monotonic(), 1.0)
    with redis.Redis(
        unix_socket_path=str(data.socket),
        single_connection_client=True,
        socket_timeout=left,
        retry=Retry(NoBackoff(), 0),
    ) as client:
        server = client.info("server")
        client.eval(_WRITE, 1, _KEY)
        synced = client.execute_command("WAITAOF", 1, 0, int(left * 1000))
        return str(server.get("valkey_version") or server["redis_version"]) if synced[0] else ""


def _open_files(data: DataDirectory, stack: contextlib.ExitStack) -> tuple[Manifest, list[BinaryIO]]:
    """Open the files that a manifest names. Retry if Valkey replaces the manifest meanwhile."""
    path = data.append_only / MANIFEST
    if not path.exists():
        raise DataError(f"there are no data in {data.path}: {path} does not exist")
    while True:
        content = path.read_bytes()
        manifest = parse_manifest(content)
        with contextlib.ExitStack() as opened:
            try:
                files: list[BinaryIO] = [
                    opened.enter_context((data.append_only / name).open("rb")) for name in manifest.names
                ]
            except FileNotFoundError as error:
                if path.read_bytes() == content:
                    raise DataError(f"{error.filename} is missing") from error
                continue
            if path.read_bytes() == content:
                stack.push(opened.pop_all())
                return manifest, files


def _sound_size(name: str, file: BinaryIO, is_last: bool) -> int:
    """Return how many bytes of the part belong to the snapshot: all that were there, and complete."""
    least = size_of(file)
    if has_rdb_format(name):
        # Not checked, because the tool would need as much memory as the largest queue.
        return least
    end = time.monotonic() + _WRITE_TIMEOUT
    while True:
        found = check_commands(file.fileno())
        if found.sound >= least:
            return found.sound if is_last else least
        # Valkey may be in the middle of a write.
        if not is_last or time.monotonic() > end:
            raise DataError(
                f"{name} is damaged after byte {found.sound} of {least} ({found.problem}): "
                "stop the server, and run pressure-server check-data"
            )
        time.sleep(_PAUSE)
