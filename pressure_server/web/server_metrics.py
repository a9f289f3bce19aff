"""Metrics of the server itself: commands, clients, buffers, the calls to the backend, and the backend."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric

from pressure_server import __version__
from pressure_server.errors import BackendError
from pressure_server.net.command_table import BUCKETS, CommandStatistics, upper_limit
from pressure_server.net.workers import Totals
from pressure_server.queues.broker import Broker
from pressure_server.queues.calls.courier import CallStatistics
from pressure_server.queues.upkeep import memory_fields
from pressure_server.web.http_requests import HttpContext
from pressure_server.web.metric_families import counters, gauges

# The fields of INFO memory, as metrics.
_MEMORY = {
    "used_memory": ("memory_bytes", "Memory that the backend uses for data."),
    "used_memory_rss": ("resident_bytes", "Memory of the backend's process."),
}
_DATABASE = ("database",)
_COMMAND = ("protocol", "command")
# Every second bucket of latencies, from 128 microseconds: each is a time series.
_LIMITS = range(7, BUCKETS - 1, 2)


def command_metrics(found: Sequence[CommandStatistics]) -> Iterator[Metric]:
    """Yield the families about commands: calls, errors by code, and latencies."""
    yield counters(
        "pressure_commands",
        "Commands that were executed.",
        _COMMAND,
        [((one.protocol, one.name), one.calls) for one in found],
    )
    yield counters(
        "pressure_command_errors",
        "Commands that replied with an error, by its first word.",
        (*_COMMAND, "error"),
        [((one.protocol, one.name, code), count) for one in found for code, count in one.errors.items()],
    )
    histogram = HistogramMetricFamily(
        "pressure_command_duration_seconds",
        "Time from a command to its reply, of the first command of each read that did not have to wait.",
        labels=_COMMAND,
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


def client_metrics(totals: Totals) -> Iterator[Metric]:
    """Yield the families about clients, their buffers and their logins."""
    rows = [((protocol,), count) for protocol, count in totals.protocols.items()]
    yield gauges("pressure_clients", "Connected clients.", ("protocol",), rows)
    for name, text, value in (
        ("clients_limit", "The most clients (--max-clients).", totals.max_clients),
        ("clients_blocked", "Clients that wait for a message, for room or for a role.", totals.blocked),
        ("clients_throttled", "Clients that are throttled, because buffers are full.", totals.throttled),
        ("buffered_bytes", "Bytes buffered for clients.", totals.buffered_bytes),
        (
            "buffered_bytes_limit",
            "The most bytes buffered (--max-buffered-bytes).",
            totals.max_buffered_bytes,
        ),
        ("waiting_operations", "Operations that wait.", totals.waiting_operations),
    ):
        yield GaugeMetricFamily(f"pressure_{name}", text, value)
    for name, text, value in (
        ("clients_evicted", "Clients disconnected, because buffers were full.", totals.evicted),
        ("connections_accepted", "Connections accepted.", totals.accepted),
        ("connections_rejected", "Connections refused: too many, or protected mode.", totals.rejected),
        ("failed_logins", "Logins with a wrong name or password.", totals.failed_logins),
    ):
        yield CounterMetricFamily(f"pressure_{name}", text, value)
    yield counters(
        "pressure_commands_denied",
        "Commands that the user had no right to.",
        ("reason",),
        [(("command",), totals.refused_commands), (("queue",), totals.refused_queues)],
    )


def call_metrics(context: HttpContext, calls: Mapping[int, CallStatistics]) -> Iterator[Metric]:
    """Yield the families about the calls to the backend."""
    labelled = [((str(number),), one) for number, one in calls.items()]
    durations = SummaryMetricFamily(
        "pressure_backend_call_duration_seconds",
        "Time from a call of the script to its reply.",
        labels=_DATABASE,
    )
    for label, one in labelled:
        durations.add_metric(label, one.calls, one.seconds)
    yield durations
    for name, text, count in (
        ("call_operations", "Operations in calls; an operation may be many equal commands.", "operations"),
        ("call_queues", "Queues in calls: a call has operations of many queues.", "blocks"),
        ("call_failures", "Calls that had no reply, or an error.", "failed"),
        (
            "lost_calls",
            "Calls that had been answered, and were not in the data with which the backend came back.",
            "lost",
        ),
    ):
        rows = [(label, getattr(one, count)) for label, one in labelled]
        yield counters(f"pressure_backend_{name}", text, _DATABASE, rows)
    databases = [((str(one.database_number),), one) for one in context.server.broker.databases]
    yield gauges(
        "pressure_backend_up",
        "1 if the backend is connected.",
        _DATABASE,
        [(label, int(one.is_up)) for label, one in databases],
    )
    yield counters(
        "pressure_backend_reconnects",
        "Times that the backend was lost and is back.",
        _DATABASE,
        [(label, one.reconnects) for label, one in databases],
    )
    yield from _shard_metrics(context.server.broker)
    peers = context.server.broker.default_database.peer_count
    yield GaugeMetricFamily("pressure_peers", "Other servers on the backend.", peers)


def _shard_metrics(broker: Broker) -> Iterator[Metric]:
    """Yield the families about the nodes that have the shards; a backend that is no cluster has one."""
    numbered = [(str(number), shard) for number, shard in enumerate(broker.default_database.shards)]
    yield gauges(
        "pressure_shard_up",
        "1 if the node that has the shard is connected, and refuses nothing that this server needs.",
        ("shard", "node"),
        [
            ((number, str(shard.route)), int(reason is None))
            for (number, shard), reason in zip(numbered, broker.why_not_ready(), strict=True)
        ],
    )
    yield counters(
        "pressure_shard_redirects",
        "Times that a node has sent calls elsewhere, or has let them wait while keys were moved.",
        ("shard", "kind"),
        [
            ((number, kind.lower()), count)
            for number, shard in numbered
            for kind, count in sorted(shard.route.redirects.items())
        ],
    )
    yield counters(
        "pressure_shard_node_changes",
        "Times that another node has come to have the shard: after a failover, or a move of its slot.",
        ("shard",),
        [((number,), shard.route.changes) for number, shard in numbered],
    )


async def backend_metrics(context: HttpContext) -> list[Metric]:
    """Return the families about the backend, without those of its memory while it is away."""
    broker, embedded = context.server.broker, context.embedded
    info = InfoMetricFamily("pressure_backend", "The backend.")
    info.add_metric((), {"version": broker.version, "embedded": "no" if embedded is None else "yes"})
    families: list[Metric] = [info]
    if embedded is not None:
        families += _disk_metrics(embedded.data_dir)
    try:
        fields = await memory_fields(broker)
    except BackendError:
        return families
    for field, (name, help_text) in _MEMORY.items():
        families.append(GaugeMetricFamily(f"pressure_backend_{name}", help_text, float(fields.get(field, 0))))
    limits = [limit for limit in (broker.policy.max_stored_bytes, int(fields.get("maxmemory", 0))) if limit]
    families.append(
        GaugeMetricFamily(
            "pressure_backend_memory_limit_bytes",
            "The most memory that the backend may use: the smaller of --max-stored-bytes and its maxmemory; "
            "0 for none.",
            min(limits, default=0),
        )
    )
    machine = fields.get("total_system_memory", 0) if embedded is None else context.machine_memory
    families.append(
        GaugeMetricFamily(
            "pressure_backend_machine_memory_bytes",
            "Memory of the backend's machine; of the container with the embedded backend, if that has less.",
            int(machine),
        )
    )
    return families


def _disk_metrics(data_dir: Path) -> Iterator[Metric]:
    """Yield the families about the embedded backend's files, and the disk that has them."""
    yield GaugeMetricFamily(
        "pressure_backend_disk_bytes", "Size of the embedded backend's files.", _size_of(data_dir)
    )
    disk = os.statvfs(data_dir)
    yield GaugeMetricFamily(
        "pressure_backend_disk_free_bytes",
        "Bytes that are free for the embedded backend on its disk.",
        disk.f_bavail * disk.f_frsize,
    )
    yield GaugeMetricFamily(
        "pressure_backend_disk_size_bytes", "Size of that disk.", disk.f_blocks * disk.f_frsize
    )


def build_metrics(not_ready: str | None) -> Iterator[Metric]:
    """Yield the families about the program."""
    build = InfoMetricFamily("pressure_build", "The program.")
    build.add_metric((), {"version": __version__, "python": platform.python_version()})
    yield build
    yield GaugeMetricFamily(
        "pressure_ready", "1 if the server is ready for new clients.", int(not_ready is None)
    )


def _size_of(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # the backend may have removed it
                total += os.lstat(os.path.join(where, name)).st_size
    return total
