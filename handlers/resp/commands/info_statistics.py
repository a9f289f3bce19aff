"""The sections Commandstats, Errorstats and Latencystats of INFO, in Redis's format."""

from __future__ import annotations

import re
from collections import Counter

from handlers.resp.table import PROTOCOL
from pressure_server.net.command_statistics import CommandStatistics, all_statistics

_MICROSECONDS = 1_000_000
# Characters that would break the format. Codes of errors can come from the backend.
_NOT_IN_CODES = re.compile(r"[^A-Za-z0-9_.-]")


def shown_name(statistics: CommandStatistics) -> str:
    """Return the command's name; that of another protocol than RESP begins with the protocol."""
    return statistics.name if statistics.protocol == PROTOCOL else f"{statistics.protocol}.{statistics.name}"


def command_fields() -> dict[str, object]:
    """Return the calls of each command. `usec` is the time of the measured ones."""
    fields: dict[str, object] = {}
    for one in all_statistics():
        microseconds, measured = one.seconds * _MICROSECONDS, sum(one.latencies)
        fields[f"cmdstat_{shown_name(one)}"] = (
            f"calls={one.calls},usec={microseconds:.0f},usec_per_call={microseconds / (measured or 1):.2f},"
            f"rejected_calls={one.rejected},failed_calls={one.failed}"
        )
    return fields


def errors_by_code() -> Counter[str]:
    """Return how many commands of all protocols got each error."""
    errors: Counter[str] = Counter()
    for one in all_statistics():
        errors.update({_NOT_IN_CODES.sub("_", code): count for code, count in one.errors.items()})
    return errors


def error_fields() -> dict[str, object]:
    """Return the number of errors by code."""
    return {f"errorstat_{code}": f"count={count}" for code, count in sorted(errors_by_code().items())}


def latency_fields() -> dict[str, object]:
    """Return percentiles of the latency of each command that has been measured."""
    return {
        f"latency_percentiles_usec_{shown_name(one)}": ",".join(
            f"p{percent:g}={one.percentile(percent / 100) * _MICROSECONDS:.3f}" for percent in (50, 99, 99.9)
        )
        for one in all_statistics()
        if any(one.latencies)
    }
