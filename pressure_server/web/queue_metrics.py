"""Metrics of queues: sums over all queues, and figures of single queues, whose number is limited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nlargest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from pressure_server.auth.users import User
from pressure_server.net.workers import Waiting
from pressure_server.queues.operations.operation import Line
from pressure_server.queues.survey import COUNTS, Survey, Surveyed
from pressure_server.text import Glob, printable
from pressure_server.web.http_requests import HttpContext
from pressure_server.web.metric_families import counters, gauges

STATES = ("ready", "delayed", "reserved", "buried")
_LABELS = ("database", "queue")
_OF_COUNT = {
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


class MeasuredQueues:
    """The queues that have metrics of their own.

    A queue keeps its place while it exists, so that its series do not come and go; free places go to the
    queues with the most messages.
    """

    def __init__(self, survey: Survey, most: int, pattern: str) -> None:
        self._survey = survey
        self._most = most
        self._glob = Glob(pattern.encode()) if pattern != "*" else None
        self._chosen: dict[tuple[int, bytes], None] = {}

    def current(self) -> list[Surveyed]:
        """Return the queues."""
        queues = self._survey.queues
        for key in [key for key in self._chosen if key not in queues]:
            del self._chosen[key]
        free = self._most - len(self._chosen)
        if free > 0 and len(queues) > len(self._chosen):
            others = [
                one
                for key, one in queues.items()
                if key not in self._chosen and (self._glob is None or self._glob.matches(key[1]))
            ]
            for one in nlargest(free, others, key=lambda one: one.figures.length):
                self._chosen[one.database, one.name] = None
        return [queues[key] for key in self._chosen]


def total_metrics(survey: Survey) -> Iterator[Metric]:
    """Yield the families about all queues together."""
    totals = survey.totals
    types = [((name,), count) for name, count in totals.types.items()]
    yield gauges("pressure_queues", "Queues by type.", ("type",), types)
    for name, text, value in (
        ("queues_full", "Queues that have reached their bound or limit of bytes.", totals.full),
        ("queues_closed", "Queues that are closed.", totals.closed),
        ("messages", "Messages in all queues.", totals.length),
        ("message_bytes", "Bytes of the messages in all queues.", totals.bytes),
        ("oldest_message_age_seconds", "Age of the oldest message of all queues.", totals.oldest),
        (
            "survey_round_seconds",
            "Duration of the last round of the survey: how old figures may be.",
            survey.seconds,
        ),
    ):
        yield GaugeMetricFamily(f"pressure_{name}", text, value)
    states = [((state,), getattr(totals, state)) for state in STATES]
    yield gauges("pressure_jobs", "Jobs in all queues, by state.", ("state",), states)
    for count in COUNTS:
        name, text = _OF_COUNT[count]
        yield CounterMetricFamily(
            f"pressure_{name}", f"{text}, since the server started.", survey.counts[count]
        )
    yield CounterMetricFamily(
        "pressure_survey_rounds", "Complete rounds of the survey of queues.", survey.rounds
    )


def queue_metrics(
    context: HttpContext, queues: list[Surveyed], user: User, waiting: Mapping[tuple[int, bytes], Waiting]
) -> Iterator[Metric]:
    """Yield the families about single queues, as far as the user may see them."""
    queues = [one for one in queues if user.may_access(one.name)]
    labels = _distinct([(str(one.database), printable(one.name)) for one in queues])
    labelled = list(zip(labels, queues, strict=True))
    for name, text, value in (
        ("messages", "Messages in the queue.", "length"),
        ("bytes", "Bytes of the messages in the queue.", "bytes"),
        ("bound", "The queue's bound; 0 for none.", "bound"),
        ("closed", "1 if the queue is closed.", "is_closed"),
    ):
        rows = [(label, getattr(one.figures, value)) for label, one in labelled]
        yield gauges(f"pressure_queue_{name}", text, _LABELS, rows)
    yield gauges(
        "pressure_queue_oldest_message_age_seconds",
        "Age of the oldest message, as far as the server has seen it.",
        _LABELS,
        [(label, one.age) for label, one in labelled],
    )
    for count, (name, text) in _OF_COUNT.items():
        rows = [
            (label, getattr(one.figures, count))
            for label, one in labelled
            if count not in _ONLY_JOBS or _has_jobs(one)
        ]
        yield counters(f"pressure_queue_{name}", f"{text}.", _LABELS, rows)
    yield gauges(
        "pressure_queue_jobs",
        "Jobs by state.",
        (*_LABELS, "state"),
        [
            ((*label, state), getattr(one.figures, state))
            for label, one in labelled
            if _has_jobs(one)
            for state in STATES
        ],
    )
    yield gauges(
        "pressure_queue_waiting",
        "Operations of this server's clients that wait for a message or for room.",
        (*_LABELS, "role"),
        [
            ((*label, line.value), waiting[one.database, one.name][line])
            for label, one in labelled
            for line in Line
        ],
    )
    yield GaugeMetricFamily(
        "pressure_queues_without_metrics",
        "Queues beyond --metrics-queues, or that --metrics-match leaves out.",
        max(0, len(context.survey.queues) - len(queues)),
    )


def _has_jobs(one: Surveyed) -> bool:
    return one.figures.type not in (b"fifo", b"log") or one.figures.reserved > 0


def _distinct(labels: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the labels, changed if two long names have become equal: Prometheus refuses equal series."""
    seen: dict[tuple[str, str], int] = {}
    result = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        result.append(label if seen[label] == 1 else (label[0], f"{label[1]} #{seen[label]}"))
    return result
