"""The statistics of commands, of this process since it started: calls, errors by code, latencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

# A latency of n bits in microseconds is counted in the nth bucket: the last one has all from 8 seconds.
BUCKETS = 25
_LAST = BUCKETS - 1
_MICROSECONDS = 1_000_000
# Stands for requests that are not in a protocol's table.
UNKNOWN = "unknown"
# Codes of errors can come from the backend: others than the first ones are counted together.
_MAX_CODES = 64
OTHER_CODES = "OTHER"

# By protocol and name.
_ALL: dict[tuple[str, str], CommandStatistics] = {}


class CommandStatistics:
    """The statistics of one command.

    `rejected` calls were not executed, and do not count as `calls`. `failed` calls were executed, and replied
    with an error. `errors` has the codes of both. `latencies` counts the calls that were measured: the first
    command of each read that did not wait. `seconds` is their sum.
    """

    __slots__ = ("calls", "errors", "failed", "latencies", "name", "protocol", "rejected", "seconds")

    def __init__(self, protocol: str, name: str) -> None:
        self.protocol = protocol
        self.name = name
        self.reset()

    def reset(self) -> None:
        """Set all counters to zero."""
        self.calls = self.rejected = self.failed = 0
        self.errors: Counter[str] = Counter()
        self.seconds = 0.0
        self.latencies = [0] * BUCKETS

    def add(self, other: CommandStatistics) -> None:
        """Add the counts that another process has for the command."""
        self.calls += other.calls
        self.rejected += other.rejected
        self.failed += other.failed
        self.errors += other.errors
        self.seconds += other.seconds
        self.latencies = [mine + more for mine, more in zip(self.latencies, other.latencies, strict=True)]

    def measure(self, seconds: float) -> None:
        """Count the latency of a call."""
        self.seconds += seconds
        bucket = int(seconds * _MICROSECONDS).bit_length()
        self.latencies[bucket if bucket < _LAST else _LAST] += 1

    def fail(self, code: str, calls: int = 1) -> None:
        """Count calls that replied with an error of this code."""
        self.failed += calls
        self._count_error(code, calls)

    def reject(self, code: str, calls: int = 1) -> None:
        """Count calls that were refused before they were executed."""
        self.rejected += calls
        self._count_error(code, calls)

    def _count_error(self, code: str, calls: int) -> None:
        if code not in self.errors and len(self.errors) >= _MAX_CODES:
            code = OTHER_CODES
        self.errors[code] += calls

    def percentile(self, part: float) -> float:
        """Return the seconds below which this part (0 to 1) of the calls were: the limit of a bucket."""
        missing = part * sum(self.latencies)
        for bucket, count in enumerate(self.latencies):
            missing -= count
            if missing <= 0:
                return upper_limit(bucket)
        return upper_limit(_LAST)


def upper_limit(bucket: int) -> float:
    """Return the latency in seconds below which all calls in a bucket were, except in the last bucket."""
    return float(1 << bucket) / _MICROSECONDS


def statistics_of(protocol: str, name: str) -> CommandStatistics:
    """Return the statistics of a command."""
    if (protocol, name) not in _ALL:
        _ALL[protocol, name] = CommandStatistics(protocol, name)
    return _ALL[protocol, name]


def all_statistics() -> list[CommandStatistics]:
    """Return the statistics of the commands that have been called or refused, by protocol and name."""
    return [one for _, one in sorted(_ALL.items()) if one.calls or one.rejected]


def total_statistics(several: Iterable[CommandStatistics]) -> list[CommandStatistics]:
    """Return the sum of what several processes have for each command, by protocol and name."""
    totals: dict[tuple[str, str], CommandStatistics] = {}
    for one in several:
        totals.setdefault((one.protocol, one.name), CommandStatistics(one.protocol, one.name)).add(one)
    return [total for _, total in sorted(totals.items())]


def reset_statistics() -> None:
    """Set the counters of all commands to zero."""
    for one in all_statistics():
        one.reset()
