"""Metrics of commands: calls, errors by code, and latencies, by protocol and command."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from pressure_server.net.command_statistics import BUCKETS, CommandStatistics, all_statistics, upper_limit
from pressure_server.web.metrics.families import counters

# Every second bucket, from 128 microseconds: each is a time series.
_LIMITS = range(7, BUCKETS - 1, 2)
_LABELS = ("protocol", "command")


def command_metrics() -> Iterator[Metric]:
    """Yield the families."""
    found = all_statistics()
    yield counters(
        "pressure_commands",
        "Commands that were executed.",
        _LABELS,
        [((one.protocol, one.name), one.calls) for one in found],
    )
    yield counters(
        "pressure_command_errors",
        "Commands that replied with an error, by its first word.",
        (*_LABELS, "error"),
        [((one.protocol, one.name, code), count) for one in found for code, count in one.errors.items()],
    )
    histogram = HistogramMetricFamily(
        "pressure_command_duration_seconds",
        "Time from a command to its reply, of the first command of each read that did not have to wait.",
        labels=_LABELS,
    )
    for one in found:
        if any(one.latencies):
            histogram.add_metric((one.protocol, one.name), _buckets(one), one.seconds)
    yield histogram


def _buckets(statistics: CommandStatistics) -> list[tuple[str, float]]:
    """Return the number of commands up to each limit."""
    sums = list(accumulate(statistics.latencies))
    finite = [(f"{upper_limit(bucket):g}", float(sums[bucket])) for bucket in _LIMITS]
    return [*finite, ("+Inf", float(sums[-1]))]
