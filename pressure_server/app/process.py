"""The server's process: the limits of its memory and its processors, and its title."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path

from setproctitle import setproctitle

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
# Of cgroups version 2 and 1. Without a limit, a file holds `max` or a number larger than any memory.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
# In a command line whose words are separated by zeros.
_PASSWORD = re.compile(r"((?:^|\0)--password[=\0])[^\0]*")
# The user and password of a URL. Greedy, because a password may contain an unescaped slash or @.
_LOGIN_OF_URL = re.compile(r"://[^\0]*@")


def memory_limit(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Return the machine's memory in bytes, or the lowest limit of the process's cgroups if that is less."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _folders(cgroups, own):
        for name in _LIMITS:
            with suppress(OSError, ValueError):
                found.append(int((folder / name).read_text()))
    return min(found)


def processors(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Return how many processors the process may use: fewer than the machine has if its cgroups say so."""
    found = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for folder in _folders(cgroups, own):
        # Of cgroups version 2: microseconds of processor time in each period, or `max`.
        with suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            found.append(ceil(int(quota) / int(period)))
    return max(1, min(found))


def _folders(cgroups: Path, own: Path) -> Iterator[Path]:
    """Yield the root, which has the limits of a container, and the folders of the cgroup and its parents."""
    yield cgroups
    with suppress(OSError):
        # Only version 2 has a line that begins so, and only one.
        for ours in re.findall(r"^0::/(.+)", own.read_text(), re.MULTILINE):
            yield cgroups / ours
            yield from (cgroups / parent for parent in Path(ours).parents)


def without_secrets(words: Iterable[str]) -> list[str]:
    """Return the command line with the passwords in options and URLs replaced by ***."""
    line = _PASSWORD.sub(r"\1***", "\0".join(words))
    return _LOGIN_OF_URL.sub("://***@", line).split("\0")


def hide_secrets() -> None:
    """Set the process title to the command line without its secrets, if it has any."""
    shown = without_secrets(sys.orig_argv)
    if shown != sys.orig_argv:
        setproctitle(" ".join(shown))
