"""What a server uses, as the kernel says, and what its backend knows of it."""

import os
import re
from pathlib import Path

from tests.support.programs import Client, Server, Valkey

MB = 1 << 20


def memory(server: Server, field: str = "VmRSS") -> int:
    """Resident memory in bytes; VmHWM is its peak."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def reset_peak(server: Server) -> None:
    """Let VmHWM begin again with the present memory."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


def processor_seconds(server: Server | Valkey) -> float:
    """Used since it was started, its own and the kernel's for it."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_in_line(*processes: Server | Valkey) -> float:
    """Return for how long the main threads of these processes and of the test waited for a processor."""
    pids = [os.getpid(), *(each.process.pid for each in processes)]
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e9


def connections(direct: Client, *, tracking: bool) -> list[dict[str, str]]:
    """A server's connections to its backend: those on which it is told of changes, or the others."""
    return [c for c in direct.client_list() if ("t" in c["flags"]) is tracking and "pressure" in c["name"]]


def heartbeats(direct: Client) -> dict[bytes, bytes]:
    """Return the last heartbeat of each server, by its identity."""
    found: dict[bytes, bytes] = direct.hgetall("__pressure__!peers")
    return found


def identity(server: Server) -> bytes:
    """Return the name by which a server signs."""
    (found,) = re.findall(r"the name of this server is '(\S+)'", server.log)
    return bytes(found.encode())
