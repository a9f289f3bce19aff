"""The machine: how much memory there is for us, where we run in a container as that container may have."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# By the version of cgroups; what has no limit says `max`, or a number beyond any machine's memory.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def memory(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """In bytes: what the machine has, or less where a cgroup of ours has a limit."""
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
    """Those of our group of version 2 and of the groups around it; a container sees its own as the first."""
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
