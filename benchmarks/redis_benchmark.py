"""Run redis-benchmark, the load generator of Redis."""

import csv
import subprocess

from benchmarks.plan import BenchmarkError, Load
from benchmarks.subjects import Subject, program

# redis-benchmark replaces this with a random number of twelve digits, a new one each time.
RANDOM = "__rand_int__"
# The largest range of these numbers.
MAX_NUMBERS = 1_000_000_000
_SECONDS = 90


def requests_per_second(subject: Subject, load: Load, *command: str, numbers: int = MAX_NUMBERS) -> float:
    """Return the rate at which the subject executes the command. Each RANDOM in it is below `numbers`.

    Raise BenchmarkError if redis-benchmark fails. It counts error replies like others, so check the effect of
    the commands.
    """
    return rate(start(subject, load, *command, numbers=numbers))


def start(subject: Subject, load: Load, *command: str, numbers: int = MAX_NUMBERS) -> subprocess.Popen[str]:
    """Start a redis-benchmark, which may run beside others. Pass the result to `rate`."""
    arguments = [
        program("redis-benchmark"), "-p", str(subject.port), "-n", str(load.requests), "-r", str(numbers),
        "-c", str(load.clients), "-P", str(load.pipeline), "--csv", *command,
    ]  # fmt: skip
    return subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def rate(running: subprocess.Popen[str]) -> float:
    """Wait for a redis-benchmark, and return its requests per second. Raise BenchmarkError if it fails."""
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
