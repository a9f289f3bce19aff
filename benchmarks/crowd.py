"""Thousands of connections to a server, each of which has had a reply."""

from __future__ import annotations

import resource
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.client import Client
from benchmarks.plan import BenchmarkError
from benchmarks.subjects import Server

_OTHER_FILES = 64
_PER_ADDRESS = 4_000  # connections from one address, which has some 28 000 ports that others use, too
_SETTLE_SECONDS = 0.3


def allow_files(connections: int) -> None:
    """Let this process, and those it starts, have so many connections. Raises BenchmarkError."""
    count = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise BenchmarkError(f"{count} open files are needed, and the hard limit (ulimit -Hn) is {hard}")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def connect(server: Server, numbers: range, clients: ExitStack) -> list[Client]:
    """Connections of these numbers, which had one reply each, until `clients` is closed."""
    connected = [
        clients.enter_context(Client(server.port, f"127.0.0.{1 + number // _PER_ADDRESS}"))
        for number in numbers
    ]
    for client in connected:
        client("PING")
    return connected


def resident_kib(server: Server) -> float:
    """The server's memory, once it has settled."""
    time.sleep(_SETTLE_SECONDS)
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024
