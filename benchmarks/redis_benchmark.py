"""Running redis-benchmark, the load generator that Redis comes with."""

from __future__ import annotations

import csv
import subprocess

from benchmarks.plan import BenchmarkError, Load
from benchmarks.subjects import Subject, program

# redis-benchmark replaces each with another random number of twelve digits.
RANDOM = "__rand_int__"
# The most different numbers.
MOST = 1_000_000_000
_SECONDS = 90


def requests_per_second(subject: Subject, load: Load, *command: str, numbers: int = MOST) -> float:
    """Return the rate at which the subject does the command. Each RANDOM in it is below `numbers`.

    Raises BenchmarkError if redis-benchmark fails. It counts errors as it counts other replies, so look at
    what has been done.
    """
    return rate(start(subject, load, *command, numbers=numbers))


def start(subject: Subject, load: Load, *command: str, numbers: int = MOST) -> subprocess.Popen[str]:
    """Start a redis-benchmark, to run beside others. Its result is for `rate`."""
    arguments = [
        program("redis-benchmark"), "-p", str(subject.port), "-n", str(load.requests), "-r", str(numbers),
        "-c", str(load.clients), "-P", str(load.pipeline), "--csv", *command,
    ]  # fmt: skip
    return subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def rate(running: subprocess.Popen[str]) -> float:
    """Return its requests a second when it has finished. Raises BenchmarkError."""
    try:
        output, errors = running.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        running.kill()
        running.communicate()
        raise BenchmarkError(f"{running.args!r} took over {_SECONDS} seconds") from error
    lines = list(csv.DictReader(output.splitlines()))
    if running.returncode or len(lines) != 1:
        raise BenchmarkError(f"{running.args!r} failed: {' '.join((errors or output).split())}")
    return float(lines[0]["rps"])
