"""The processor time of a program, as counted by the operating system."""

import os
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
# Positions in /proc/PID/stat after the program's name: see proc(5), which counts two fields more.
_USER, _SYSTEM = 11, 12


class ProcessorTime(NamedTuple):
    """Seconds in user mode and in the kernel."""

    user: float
    system: float

    @property
    def total(self) -> float:
        """The sum of both."""
        return self.user + self.system


def processor_time(pid: int) -> ProcessorTime:
    """Return the time used by all threads of the process since its start, with a resolution of 10 ms."""
    # The name is in parentheses and may contain any character.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ProcessorTime(int(fields[_USER]) / _TICKS, int(fields[_SYSTEM]) / _TICKS)
