"""The memory of this process, in bytes."""

from __future__ import annotations

import resource


def resident_bytes() -> int:
    """Return the present size in memory; the largest one if the system does not tell the present one."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """Return the largest size in memory since the start."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
