"""Run a command under the restrictions of a systemd unit on system calls and on memory, without systemd.

`python -m tests.support.confined UNIT COMMAND…` installs the unit's SystemCallFilter and
MemoryDenyWriteExecute, which the command and its children inherit.
"""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

_ALLOW = 0x7FFF0000  # SCMP_ACT_ALLOW
_REFUSE = 0x00050000 | 1  # SCMP_ACT_ERRNO(EPERM)
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_MDWE = 65


def settings_of(unit: Path, name: str) -> list[str]:
    """Return the values that a unit assigns to a name, in order."""
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def allowed_calls(unit: Path) -> set[str]:
    """Return the names of the system calls that the unit's SystemCallFilter allows."""
    allowed: set[str] = set()
    for line in settings_of(unit, "SystemCallFilter"):
        names = {name for word in line.removeprefix("~").split() for name in _expanded(word)}
        allowed = allowed - names if line.startswith("~") else allowed | names
    # systemd adds these to every list, so that it can start the service.
    return allowed | _expanded("@default") | {"execve"}


def _expanded(word: str) -> set[str]:
    """Return the system calls of a group, or the one that is named."""
    if not word.startswith("@"):
        return {word}
    command = ["systemd-analyze", "syscall-filter", word]
    lines = subprocess.check_output(command, text=True, timeout=20).splitlines()[1:]
    members = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return {name for member in members for name in _expanded(member)}


def confine(unit: Path) -> None:
    """Restrict this process and its children as the unit says. Raise OSError if the kernel cannot."""
    calls = allowed_calls(unit)
    libc, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libseccomp.so.2", use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(_REFUSE)))
    for call in calls:
        number = seccomp.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # others belong to other architectures
            _check(seccomp.seccomp_rule_add(context, ctypes.c_uint32(_ALLOW), number, 0))
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if settings_of(unit, "MemoryDenyWriteExecute") == ["yes"]:
        _check(libc.prctl(_PR_SET_MDWE, 1, 0, 0, 0))
    _check(seccomp.seccomp_load(context))


def _check(status: int) -> None:
    if status < 0:
        raise OSError(ctypes.get_errno() or -status, "cannot restrict this process")


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
