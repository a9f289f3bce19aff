"""The endpoint /metrics, and its families: of the server, the backend, all queues, and single queues.

The families are named `pressure_…`. The text is made in pieces, so that clients are served in between.
"""

import asyncio
import os
import platform
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import accumulate, chain
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric

from pressure_server import __version__
from pressure_server.auth.users import User
from pressure_server.compiled import variant
from pressure_server.errors import BackendError
from pressure_server.net.command_statistics import BUCKETS, CommandStatistics, upper_limit
from pressure_server.net.workers import Totals, Waiting
from pressure_server.queues.broker import Broker
from pressure_server.queues.calls.statistics import CallStatistics
from pressure_server.queues.operations.operation import Line
from pressure_server.queues.survey import COUNTS, Survey, Surveyed
from pressure_server.queues.upkeep import memory_fields
from pressure_server.text import Glob, printable
from pressure_server.web.http_requests import STATES, USER, HttpContext

# The labels of a row, and its value.
Row = tuple[Sequence[str], float]

_DATABASE = ("database",)
_COMMAND = ("protocol", "command")
_QUEUE = ("database", "queue")
# Every second bucket of latencies, from 128 microseconds: each is a time series.
_LIMITS = range(7, BUCKETS - 1, 2)
# Counts of the survey, for all queues and for each.
_COUNTS = {
    "put": ("messages_put", "Messages put"),
    "put_bytes": ("put_bytes", "Bytes of messages put"),
    "taken": ("messages_taken", "Messages taken, and jobs deleted"),
    "taken_bytes": ("taken_bytes", "Bytes of messages taken"),
    "dropped": ("messages_dropped", "Messages dropped to make room for others"),
    "timeouts": ("delivery_timeouts", "Reservations of jobs that timed out"),
    "deliveries": ("deliveries", "Reservations of jobs"),
    "dead_letters": ("dead_letters", "Jobs that went to a queue of dead letters"),
}
_ONLY_JOBS = ("timeouts", "deliveries", "dead_letters")


class Metrics:
    """The endpoint /metrics."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        settings = context.settings
        self._queues = _MeasuredQueues(context.survey, settings.metrics_queues, settings.metrics_match)
        self._process = ProcessCollector(registry=None)
        self._is_busy = asyncio.Lock()

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with the metrics in Prometheus's text format."""
        context, workers = self._context, self._context.server.workers
        async with self._is_busy:
            queues = self._queues.current()
            families = chain(
                await _backend_metrics(context),
                _build_metrics(await context.not_ready_for_more()),
                _total_metrics(context.survey),
                _queue_metrics(context.survey, queues, request[USER], await context.waiting()),
                _command_metrics(await workers.statistics()),
                _client_metrics(await workers.totals()),
                _call_metrics(context.server.broker, await workers.calls()),
                self._process.collect(),
            )
            pieces: list[bytes] = []
            for family in families:
                pieces.append(generate_latest(_CollectorOfOne(family)))
                await asyncio.sleep(0)
        return web.Response(body=b"".join(pieces), headers={"Content-Type": CONTENT_TYPE_LATEST})


class _CollectorOfOne(NamedTuple):
    family: Metric

    def collect(self) -> Iterable[Metric]:
        return [self.family]


class _MeasuredQueues:
    """The queues that have metrics of their own.

    A queue keeps its place while it exists, so that its series do not come and go; free places go to the
    queues with the most messages.
    """

    def __init__(self, survey: Survey, most: int, pattern: str) -> None:
        self._survey = survey
        self._most = most
        self._matches = Glob(pattern.encode()).matches
        self._chosen: list[tuple[int, bytes]] = []

    def current(self) -> list[Surveyed]:
        queues = self._survey.queues
        self._chosen = [key for key in self._chosen if key in queues]
        free = self._most - len(self._chosen)
        if free > 0 and len(queues) > len(self._chosen):
            others = [key for key in queues.keys() - self._chosen if self._matches(key[1])]
            self._chosen += nlargest(free, others, key=lambda key: queues[key].figures.length)
        return [queues[key] for key in self._chosen]


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pressure_{name}", text, value)


def _gauges(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    family = GaugeMetricFamily(f"pressure_{name}", text, labels=labels)
    for row in rows:
        family.add_metric(*row)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    """Return a counter without labels; its sample gets the suffix _total."""
    return CounterMetricFamily(f"pressure_{name}", text, value)


def _counters(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    family = CounterMetricFamily(f"pressure_{name}", text, labels=labels)
    for row in rows:
        family.add_metric(*row)
    return family


def _command_metrics(found: Sequence[CommandStatistics]) -> Iterator[Metric]:
    """Yield the families about commands: calls, errors by code, and latencies."""
    calls = [((one.protocol, one.name), one.calls) for one in found]
    yield _counters("commands", "Commands that were executed.", _COMMAND, calls)
    errors = [((one.protocol, one.name, code), count) for one in found for code, count in one.errors.items()]
    text = "Commands that replied with an error, by its first word."
    yield _counters("command_errors", text, (*_COMMAND, "error"), errors)
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


def _client_metrics(totals: Totals) -> Iterator[Metric]:
    """Yield the families about clients, their buffers and their logins."""
    rows = [((protocol,), count) for protocol, count in totals.protocols.items()]
    yield _gauges("clients", "Connected clients.", ("protocol",), rows)
    yield _gauge("clients_limit", "The most clients (--max-clients).", totals.max_clients)
    text = "Clients that wait for a message, for room or for a role."
    yield _gauge("clients_blocked", text, totals.blocked)
    text = "Clients that are throttled, because buffers are full."
    yield _gauge("clients_throttled", text, totals.throttled)
    yield _gauge("buffered_bytes", "Bytes buffered for clients.", totals.buffered_bytes)
    text = "The most bytes buffered (--max-buffered-bytes)."
    yield _gauge("buffered_bytes_limit", text, totals.max_buffered_bytes)
    yield _gauge("waiting_operations", "Operations that wait.", totals.waiting_operations)
    yield _counter("clients_evicted", "Clients disconnected, because buffers were full.", totals.evicted)
    yield _counter("connections_accepted", "Connections accepted.", totals.accepted)
    text = "Connections refused: too many, or protected mode."
    yield _counter("connections_rejected", text, totals.rejected)
    yield _counter("failed_logins", "Logins with a wrong name or password.", totals.failed_logins)
    denied = [(("command",), totals.refused_commands), (("queue",), totals.refused_queues)]
    yield _counters("commands_denied", "Commands that the user had no right to.", ("reason",), denied)


def _call_metrics(broker: Broker, calls: Mapping[int, CallStatistics]) -> Iterator[Metric]:
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
        yield _counters(f"backend_{name}", text, _DATABASE, rows)
    databases = [((str(one.database_number),), one) for one in broker.databases]
    are_up = [(label, int(one.is_up)) for label, one in databases]
    yield _gauges("backend_up", "1 if the backend is connected.", _DATABASE, are_up)
    rows = [(label, one.reconnects) for label, one in databases]
    yield _counters("backend_reconnects", "Times that the backend was lost and is back.", _DATABASE, rows)
    yield from _shard_metrics(broker)
    yield _gauge("peers", "Other servers on the backend.", broker.default_database.peer_count)


def _shard_metrics(broker: Broker) -> Iterator[Metric]:
    """Yield the families about the nodes that have the shards; a backend that is no cluster has one."""
    numbered = [(str(number), shard) for number, shard in enumerate(broker.default_database.shards)]
    are_up = [
        ((number, str(shard.route)), int(reason is None))
        for (number, shard), reason in zip(numbered, broker.why_not_ready(), strict=True)
    ]
    text = "1 if the node that has the shard is connected, and refuses nothing that this server needs."
    yield _gauges("shard_up", text, ("shard", "node"), are_up)
    redirects = [
        ((number, kind.lower()), count)
        for number, shard in numbered
        for kind, count in sorted(shard.route.redirects.items())
    ]
    text = "Times that a node has sent calls elsewhere, or has let them wait while keys were moved."
    yield _counters("shard_redirects", text, ("shard", "kind"), redirects)
    changes = [((number,), shard.route.changes) for number, shard in numbered]
    text = "Times that another node has come to have the shard: after a failover, or a move of its slot."
    yield _counters("shard_node_changes", text, ("shard",), changes)


async def _backend_metrics(context: HttpContext) -> list[Metric]:
    """Return the families about the backend; while it is away, none about its memory."""
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
    yield _gauge("backend_memory_bytes", "Memory that the backend uses for data.", used)
    yield _gauge("backend_resident_bytes", "Memory of the backend's process.", resident)
    limits = [limit for limit in (max_stored_bytes, int(fields.get("maxmemory", 0))) if limit]
    yield _gauge(
        "backend_memory_limit_bytes",
        "The most memory that the backend may use: the smaller of --max-stored-bytes and its maxmemory; "
        "0 for none.",
        min(limits, default=0),
    )
    text = "Memory of the backend's machine; of the container with the embedded backend, if that has less."
    yield _gauge("backend_machine_memory_bytes", text, machine)


def _disk_metrics(data_dir: Path) -> Iterator[Metric]:
    """Yield the families about the embedded backend's files, and the disk that has them."""
    size, disk = 0, shutil.disk_usage(data_dir)
    for folder, _, names in os.walk(data_dir):
        for name in names:
            with suppress(OSError):  # the backend may have removed it
                size += os.lstat(os.path.join(folder, name)).st_size
    yield _gauge("backend_disk_bytes", "Size of the embedded backend's files.", size)
    text = "Bytes that are free for the embedded backend on its disk."
    yield _gauge("backend_disk_free_bytes", text, disk.free)
    yield _gauge("backend_disk_size_bytes", "Size of that disk.", disk.total)


def _build_metrics(not_ready: str | None) -> Iterator[Metric]:
    """Yield the families about the program."""
    build = {"version": __version__, "python": platform.python_version(), "code": variant()}
    yield InfoMetricFamily("pressure_build", "The program.", build)
    yield _gauge("ready", "1 if the server is ready for new clients.", int(not_ready is None))


def _total_metrics(survey: Survey) -> Iterator[Metric]:
    """Yield the families about all queues together."""
    totals = survey.totals
    yield _gauges("queues", "Queues by type.", ("type",), [((name,), n) for name, n in totals.types.items()])
    yield _gauge("queues_full", "Queues that have reached their bound or limit of bytes.", totals.full)
    yield _gauge("queues_closed", "Queues that are closed.", totals.closed)
    yield _gauge("messages", "Messages in all queues.", totals.length)
    yield _gauge("message_bytes", "Bytes of the messages in all queues.", totals.bytes)
    yield _gauge("oldest_message_age_seconds", "Age of the oldest message of all queues.", totals.oldest)
    text = "Duration of the last round of the survey: how old figures may be."
    yield _gauge("survey_round_seconds", text, survey.seconds)
    states = [((state,), getattr(totals, state)) for state in STATES]
    yield _gauges("jobs", "Jobs in all queues, by state.", ("state",), states)
    for count, (name, text) in _COUNTS.items():
        yield _counter(name, f"{text}, since the server started.", survey.counts[count])
    yield _counter("survey_rounds", "Complete rounds of the survey of queues.", survey.rounds)


def _queue_metrics(
    survey: Survey, queues: list[Surveyed], user: User, waiting: Mapping[tuple[int, bytes], Waiting]
) -> Iterator[Metric]:
    """Yield the families about single queues, as far as the user may see them."""
    queues = [one for one in queues if user.may_access(one.name)]
    labels = _distinct([(str(one.database), printable(one.name)) for one in queues])
    labelled = list(zip(labels, queues, strict=True))
    with_jobs = [(label, one) for label, one in labelled if _has_jobs(one)]
    for name, text, value in (
        ("messages", "Messages in the queue.", "figures.length"),
        ("bytes", "Bytes of the messages in the queue.", "figures.bytes"),
        ("bound", "The queue's bound; 0 for none.", "figures.bound"),
        ("closed", "1 if the queue is closed.", "figures.is_closed"),
        ("oldest_message_age_seconds", "Age of the oldest message, as far as the server has seen it.", "age"),
    ):
        value_of = attrgetter(value)
        yield _gauges(f"queue_{name}", text, _QUEUE, [(label, value_of(one)) for label, one in labelled])
    for count, (name, text) in _COUNTS.items():
        shown, at = with_jobs if count in _ONLY_JOBS else labelled, COUNTS.index(count)
        rows = [(label, one.counts[at]) for label, one in shown]
        yield _counters(f"queue_{name}", f"{text}.", _QUEUE, rows)
    states = [((*label, state), getattr(one.figures, state)) for label, one in with_jobs for state in STATES]
    yield _gauges("queue_jobs", "Jobs by state.", (*_QUEUE, "state"), states)
    lines = [
        ((*label, line.value), waiting[one.database, one.name][line])
        for label, one in labelled
        for line in Line
    ]
    text = "Operations of this server's clients that wait for a message or for room."
    yield _gauges("queue_waiting", text, (*_QUEUE, "role"), lines)
    text = "Queues beyond --metrics-queues, or that --metrics-match leaves out."
    yield _gauge("queues_without_metrics", text, max(0, len(survey.queues) - len(queues)))


def _has_jobs(one: Surveyed) -> bool:
    return one.figures.type not in (b"fifo", b"log") or one.figures.reserved > 0


def _distinct(labels: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the labels, changed if two long names have become equal: Prometheus refuses equal series."""
    seen = Counter[tuple[str, str]]()
    result = []
    for database, name in labels:
        seen[database, name] += 1
        number = seen[database, name]
        result.append((database, name if number == 1 else f"{name} #{number}"))
    return result
