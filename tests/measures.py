"""What the kernel says of a server: its memory, and the processor time it has used."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.programs import Server

MB = 1 << 20


def memory(server: Server, field: str = "VmRSS") -> int:
    """Resident memory in bytes; VmHWM is its peak."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def processor_seconds(server: Server) -> float:
    """Used since it was started, its own and the kernel's for it."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
