"""Thousands of connections to a server, and the server's memory."""

import resource
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.client import Client
from benchmarks.plan import BenchmarkError
from benchmarks.subjects import Server, Subject

_OTHER_FILES = 64
_PER_ADDRESS = 4_000  # connections per source address, well below its 28 000 ports, which are shared
_SETTLE_SECONDS = 0.3


def allow_files(connections: int) -> None:
    """Raise the limit of open files so that this process and its children can have this many connections.

    Raise BenchmarkError if the hard limit is too low.
    """
    count = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise BenchmarkError(f"{count} open files are needed, and the hard limit (ulimit -Hn) is {hard}")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def connect(server: Server, numbers: range, clients: ExitStack) -> list[Client]:
    """Connect one client for each number, and have each send a PING. Closing `clients` closes them."""
    connected = [
        clients.enter_context(Client(server.port, f"127.0.0.{1 + number // _PER_ADDRESS}"))
        for number in numbers
    ]
    for client in connected:
        client("PING")
    return connected


def resident_kib(subject: Subject) -> float:
    """Return the program's resident memory in KiB, after a pause in which it settles."""
    time.sleep(_SETTLE_SECONDS)
    pages = int(Path(f"/proc/{subject.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024
