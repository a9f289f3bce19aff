"""The memory limit: how many bytes the machine has, or the container may use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# Of cgroups version 2 and 1. Without a limit, a file holds `max` or a number larger than any memory.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def memory_limit(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the machine's memory in bytes, or the lowest limit of the process's cgroups if that is less."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _folders(cgroups, own):
        for name in _LIMITS:
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():
                found.append(int(text))
    return min(found)


def _folders(cgroups: Path, own: Path) -> list[Path]:
    """Return the folders of the process's cgroup (version 2) and of its parents, and the root.

    In a container, the root shows the limits of the container.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    folders = [cgroups]
    for line in lines:
        if line.startswith("0::/"):
            ours = cgroups / line[len("0::/") :]
            folders += [ours, *ours.parents]
    return [folder for folder in dict.fromkeys(folders) if folder == cgroups or cgroups in folder.parents]
