"""Free ports for programs that must be told their port."""

import random
import socket
from pathlib import Path

_LOCAL = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return free ports outside the range for outgoing connections, so that they stay free after a kill."""
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    highest = first_outgoing - 1 if first_outgoing > 12_000 else 65_535
    found: set[int] = set()
    while len(found) < count:
        port = random.randint(10_000, highest)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((_LOCAL, port))
            except OSError:
                continue
        found.add(port)
    return list(found)
