"""Metrics of the server itself: commands, clients, buffers, the calls to the backend, and the backend."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from pressure_server import __version__
from pressure_server.compiled import variant
from pressure_server.errors import BackendError
from pressure_server.net.command_statistics import BUCKETS, CommandStatistics, upper_limit
from pressure_server.net.workers import Totals
from pressure_server.queues.broker import Broker
from pressure_server.queues.calls.statistics import CallStatistics
from pressure_server.queues.upkeep import memory_fields
from pressure_server.web.http_requests import HttpContext
from pressure_server.web.metric_families import counter, counters, gauge, gauges

_DATABASE = ("database",)
_COMMAND = ("protocol", "command")
# Every second bucket of latencies, from 128 microseconds: each is a time series.
_LIMITS = range(7, BUCKETS - 1, 2)


def command_metrics(found: Sequence[CommandStatistics]) -> Iterator[Metric]:
    """Yield the families about commands: calls, errors by code, and latencies."""
    calls = [((one.protocol, one.name), one.calls) for one in found]
    yield counters("commands", "Commands that were executed.", _COMMAND, calls)
    errors = [((one.protocol, one.name, code), count) for one in found for code, count in one.errors.items()]
    text = "Commands that replied with an error, by its first word."
    yield counters("command_errors", text, (*_COMMAND, "error"), errors)
    histogram = HistogramMetricFamily(
        "pressure_command_duration_seconds",
        "Time from a command to its reply, of the first command of each read that did not have to wait.",
        labels=_COMMAND,
    )
    for one in found:
        if any(one.latencies):
            sums = list(accumulate(map(float, one.latencies)))
            buckets = [(f"{upper_limit(bucket):g}", sums[bucket]) for bucket in _LIMITS]
            histogram.add_metric((one.protocol, one.name), [*buckets, ("+Inf", sums[-1])], one.seconds)
    yield histogram


def client_metrics(totals: Totals) -> Iterator[Metric]:
    """Yield the families about clients, their buffers and their logins."""
    rows = [((protocol,), count) for protocol, count in totals.protocols.items()]
    yield gauges("clients", "Connected clients.", ("protocol",), rows)
    yield gauge("clients_limit", "The most clients (--max-clients).", totals.max_clients)
    text = "Clients that wait for a message, for room or for a role."
    yield gauge("clients_blocked", text, totals.blocked)
    text = "Clients that are throttled, because buffers are full."
    yield gauge("clients_throttled", text, totals.throttled)
    yield gauge("buffered_bytes", "Bytes buffered for clients.", totals.buffered_bytes)
    text = "The most bytes buffered (--max-buffered-bytes)."
    yield gauge("buffered_bytes_limit", text, totals.max_buffered_bytes)
    yield gauge("waiting_operations", "Operations that wait.", totals.waiting_operations)
    yield counter("clients_evicted", "Clients disconnected, because buffers were full.", totals.evicted)
    yield counter("connections_accepted", "Connections accepted.", totals.accepted)
    text = "Connections refused: too many, or protected mode."
    yield counter("connections_rejected", text, totals.rejected)
    yield counter("failed_logins", "Logins with a wrong name or password.", totals.failed_logins)
    denied = [(("command",), totals.refused_commands), (("queue",), totals.refused_queues)]
    yield counters("commands_denied", "Commands that the user had no right to.", ("reason",), denied)


def call_metrics(broker: Broker, calls: Mapping[int, CallStatistics]) -> Iterator[Metric]:
    """Yield the families about the calls to the backend, its databases and its shards."""
    labelled = [((str(number),), one) for number, one in calls.items()]
    text = "Time from a call of the script to its reply."
    durations = SummaryMetricFamily("pressure_backend_call_duration_seconds", text, labels=_DATABASE)
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
        yield counters(f"backend_{name}", text, _DATABASE, rows)
    databases = [((str(one.database_number),), one) for one in broker.databases]
    are_up = [(label, int(one.is_up)) for label, one in databases]
    yield gauges("backend_up", "1 if the backend is connected.", _DATABASE, are_up)
    reconnects = [(label, one.reconnects) for label, one in databases]
    yield counters(
        "backend_reconnects", "Times that the backend was lost and is back.", _DATABASE, reconnects
    )
    yield from _shard_metrics(broker)
    yield gauge("peers", "Other servers on the backend.", broker.default_database.peer_count)


def _shard_metrics(broker: Broker) -> Iterator[Metric]:
    """Yield the families about the nodes that have the shards; a backend that is no cluster has one."""
    numbered = [(str(number), shard) for number, shard in enumerate(broker.default_database.shards)]
    are_up = [
        ((number, str(shard.route)), int(reason is None))
        for (number, shard), reason in zip(numbered, broker.why_not_ready(), strict=True)
    ]
    text = "1 if the node that has the shard is connected, and refuses nothing that this server needs."
    yield gauges("shard_up", text, ("shard", "node"), are_up)
    redirects = [
        ((number, kind.lower()), count)
        for number, shard in numbered
        for kind, count in sorted(shard.route.redirects.items())
    ]
    text = "Times that a node has sent calls elsewhere, or has let them wait while keys were moved."
    yield counters("shard_redirects", text, ("shard", "kind"), redirects)
    changes = [((number,), shard.route.changes) for number, shard in numbered]
    text = "Times that another node has come to have the shard: after a failover, or a move of its slot."
    yield counters("shard_node_changes", text, ("shard",), changes)


async def backend_metrics(context: HttpContext) -> list[Metric]:
    """Return the families about the backend, without those of its memory while it is away."""
    broker, embedded = context.server.broker, context.embedded
    about = {"version": broker.version, "embedded": "no" if embedded is None else "yes"}
    families: list[Metric] = [InfoMetricFamily("pressure_backend", "The backend.", about)]
    if embedded is not None:
        families += _disk_metrics(embedded.data.path)
    with suppress(BackendError):
        fields = await memory_fields(broker)
        machine = fields.get("total_system_memory", 0) if embedded is None else context.machine_memory
        families += _memory_metrics(fields, broker.policy.max_stored_bytes, int(machine))
    return families


def _memory_metrics(fields: Mapping[str, str], max_stored_bytes: int, machine: int) -> Iterator[Metric]:
    """Yield the families about the backend's memory, from the fields of INFO memory."""
    used, resident = (int(fields.get(name, 0)) for name in ("used_memory", "used_memory_rss"))
    yield gauge("backend_memory_bytes", "Memory that the backend uses for data.", used)
    yield gauge("backend_resident_bytes", "Memory of the backend's process.", resident)
    limits = [limit for limit in (max_stored_bytes, int(fields.get("maxmemory", 0))) if limit]
    yield gauge(
        "backend_memory_limit_bytes",
        "The most memory that the backend may use: the smaller of --max-stored-bytes and its maxmemory; "
        "0 for none.",
        min(limits, default=0),
    )
    text = "Memory of the backend's machine; of the container with the embedded backend, if that has less."
    yield gauge("backend_machine_memory_bytes", text, machine)


def _disk_metrics(data_dir: Path) -> Iterator[Metric]:
    """Yield the families about the embedded backend's files, and the disk that has them."""
    size, disk = 0, shutil.disk_usage(data_dir)
    for folder, _, names in os.walk(data_dir):
        for name in names:
            with suppress(OSError):  # the backend may have removed it
                size += os.lstat(os.path.join(folder, name)).st_size
    yield gauge("backend_disk_bytes", "Size of the embedded backend's files.", size)
    yield gauge(
        "backend_disk_free_bytes", "Bytes that are free for the embedded backend on its disk.", disk.free
    )
    yield gauge("backend_disk_size_bytes", "Size of that disk.", disk.total)


def build_metrics(not_ready: str | None) -> Iterator[Metric]:
    """Yield the families about the program."""
    build = {"version": __version__, "python": platform.python_version(), "code": variant()}
    yield InfoMetricFamily("pressure_build", "The program.", build)
    yield gauge("ready", "1 if the server is ready for new clients.", int(not_ready is None))
