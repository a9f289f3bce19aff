"""The programs that are measured: Redis, memcached, beanstalkd, and three proxies, each with its own Redis.

The proxies are pressure-server, twemproxy and the empty proxy. Each program runs in a temporary folder, on
a free port of 127.0.0.1, until its `with` block ends.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from benchmarks.plan import BenchmarkError

_START_SECONDS = 20.0
_STOP_SECONDS = 20.0
_PACKAGES = {
    "redis-server": "redis-server",
    "redis-benchmark": "redis-tools",
    "nutcracker": "nutcracker",
    "memcached": "memcached",
    "beanstalkd": "beanstalkd",
}
# Debian installs nutcracker in a folder that only root's PATH contains.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
_TWEMPROXY_SETTINGS = """\
queues:
  listen: 127.0.0.1:{port}
  hash: fnv1a_64
  distribution: ketama
  redis: true
  timeout: 4000
  servers:
    - 127.0.0.1:{backend}:1
"""


class MissingError(Exception):
    """A program is not installed."""


@dataclass(frozen=True)
class Subject:
    """A running program that is measured: its name, port and process id."""

    name: str
    port: int
    pid: int

    @property
    def store(self) -> Subject:
        """The program that stores the data: this one or its backend."""
        return self


@dataclass(frozen=True)
class Proxy(Subject):
    """A program with a Redis as its backend."""

    backend: Subject

    @property
    def store(self) -> Subject:
        """See Subject."""
        return self.backend

    @property
    def backend_port(self) -> int:
        """The port of its Redis."""
        return self.backend.port


@dataclass(frozen=True)
class Server(Proxy):
    """A pressure-server. The port of a protocol is 0 if the server has no listener for it."""

    memcached_port: int
    beanstalk_port: int
    http_port: int


def beanstalk_address(subject: Subject) -> tuple[str, int]:
    """Return the address of a beanstalkd, or of the beanstalk listener of a pressure-server."""
    return "127.0.0.1", subject.beanstalk_port if isinstance(subject, Server) else subject.port


def program(name: str) -> str:
    """Return the path of a program. Raise MissingError if it is not installed."""
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise MissingError(f"{name} is not installed (Debian: apt-get install {_PACKAGES[name]})")
    return found


def require_programs() -> None:
    """Raise MissingError if a program that the benchmarks run is not installed."""
    for name in _PACKAGES:
        program(name)


@contextmanager
def redis_server(*options: str) -> Iterator[Subject]:
    """Run a Redis. Without options it writes nothing to disk."""
    port = _free_port()
    with TemporaryDirectory(prefix="bench-redis-") as folder:
        command = [
            program("redis-server"), "--bind", "127.0.0.1", "--port", str(port),
            "--save", "", "--appendonly", "no", "--dir", folder, *options,
        ]  # fmt: skip
        with _running("redis", command, Path(folder), lambda _log: _listens(port)) as pid:
            yield Subject("redis", port, pid)


@contextmanager
def replica_of(main: Subject) -> Iterator[Subject]:
    """Run a replica of a Redis. The block begins when the replica is in sync."""
    options = ("--replicaof", f"127.0.0.1 {main.port}", "--repl-diskless-sync-delay", "0")
    with redis_server(*options) as replica, redis.Redis(port=main.port) as client:
        end = time.monotonic() + _START_SECONDS
        while client.execute_command("WAIT", 1, 100) == 0:
            if time.monotonic() > end:
                raise BenchmarkError("the replica did not synchronise in time")
        yield replica


@contextmanager
def twemproxy() -> Iterator[Proxy]:
    """Run a nutcracker (twemproxy) with its own Redis."""
    port = _free_port()
    with redis_server() as backend, TemporaryDirectory(prefix="bench-twemproxy-") as folder:
        settings = Path(folder, "nutcracker.yml")
        settings.write_text(_TWEMPROXY_SETTINGS.format(port=port, backend=backend.port))
        command = [
            program("nutcracker"), "-c", str(settings), "-p", f"{folder}/pid", "-s", str(_free_port()),
        ]  # fmt: skip
        with _running("twemproxy", command, Path(folder), lambda _log: _listens(port)) as pid:
            yield Proxy("twemproxy", port, pid, backend)


@contextmanager
def empty_proxy() -> Iterator[Proxy]:
    """Run the proxy of `empty_proxy.py`, which only forwards bytes, with its own Redis."""
    port = _free_port()
    with redis_server() as backend, TemporaryDirectory(prefix="bench-empty-proxy-") as folder:
        script = Path(__file__).with_name("empty_proxy.py")
        command = [sys.executable, str(script), str(port), str(backend.port)]
        with _running("empty proxy", command, Path(folder), lambda _log: _listens(port)) as pid:
            yield Proxy("empty proxy", port, pid, backend)


@contextmanager
def memcached() -> Iterator[Subject]:
    """Run a memcached with its default settings; `-u` allows root to start it."""
    port = _free_port()
    with TemporaryDirectory(prefix="bench-memcached-") as folder:
        command = [program("memcached"), "-u", "nobody", "-l", "127.0.0.1", "-p", str(port)]
        with _running("memcached", command, Path(folder), lambda _log: _listens(port)) as pid:
            yield Subject("memcached", port, pid)


@contextmanager
def beanstalkd(*, fsync: bool = False) -> Iterator[Subject]:
    """Run a beanstalkd, which keeps its jobs in memory only, or writes and syncs each change to a log."""
    port = _free_port()
    with TemporaryDirectory(prefix="bench-beanstalkd-") as folder:
        command = [program("beanstalkd"), "-l", "127.0.0.1", "-p", str(port)]
        command += ["-b", folder, "-f0"] if fsync else []
        with _running("beanstalkd", command, Path(folder), lambda _log: _listens(port)) as pid:
            yield Subject("beanstalkd", port, pid)


@contextmanager
def ours(*options: str) -> Iterator[Server]:
    """Run a pressure-server with its own Redis."""
    with redis_server() as backend, ours_before(backend, *options) as server:
        yield server


@contextmanager
def ours_before(backend: Subject, *options: str) -> Iterator[Server]:
    """Run a pressure-server with the given backend."""
    with TemporaryDirectory(prefix="bench-ours-") as folder:
        command = [
            sys.executable, "-m", "pressure_server", "serve", "--listen", "resp://127.0.0.1:0",
            "--backend", f"redis://127.0.0.1:{backend.port}", *options,
        ]  # fmt: skip
        with _running("ours", command, Path(folder), lambda log: "ready" in log) as pid:
            log = _log_file(Path(folder)).read_text()
            ports = [_port_in(log, scheme) for scheme in ("resp", "memcached", "beanstalk", "http")]
            yield Server("ours", ports[0], pid, backend, *ports[1:])


@contextmanager
def _running(
    name: str, command: Sequence[str], folder: Path, ready: Callable[[str], object]
) -> Iterator[int]:
    """Run the command until the block ends. Yield its process id once `ready` accepts the log."""
    log = _log_file(folder)
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(),
            start_new_session=True,
        )
    try:
        end = time.monotonic() + _START_SECONDS
        while not ready(log.read_text()):
            if process.poll() is not None or time.monotonic() > end:
                raise BenchmarkError(f"{name} did not start: {' '.join(log.read_text().split())[-400:]}")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _log_file(folder: Path) -> Path:
    return folder / "output.log"


def _environment() -> dict[str, str]:
    """Return this process's environment without variables that would change pressure-server's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PRESSURE_", "REDIS_"))}


def _port_in(log: str, scheme: str) -> int:
    """Return the port on which pressure-server listens for that protocol, from its log; 0 if it does not."""
    found = re.search(rf"listening on {scheme}://127\.0\.0\.1:(\d+)", log)
    return int(found[1]) if found else 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
