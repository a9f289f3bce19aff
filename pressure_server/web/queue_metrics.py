"""Metrics of queues: sums over all queues, and figures of single queues, whose number is limited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nlargest
from operator import attrgetter

from prometheus_client.metrics_core import Metric

from pressure_server.auth.users import User
from pressure_server.net.workers import Waiting
from pressure_server.queues.operations.operation import Line
from pressure_server.queues.survey import Survey, Surveyed
from pressure_server.text import Glob, printable
from pressure_server.web.http_requests import STATES
from pressure_server.web.metric_families import counter, counters, gauge, gauges

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
        self._matches = Glob(pattern.encode()).matches
        self._chosen: list[tuple[int, bytes]] = []

    def current(self) -> list[Surveyed]:
        """Return the queues."""
        queues = self._survey.queues
        self._chosen = [key for key in self._chosen if key in queues]
        free = self._most - len(self._chosen)
        if free > 0 and len(queues) > len(self._chosen):
            others = [key for key in queues.keys() - self._chosen if self._matches(key[1])]
            self._chosen += nlargest(free, others, key=lambda key: queues[key].figures.length)
        return [queues[key] for key in self._chosen]


def total_metrics(survey: Survey) -> Iterator[Metric]:
    """Yield the families about all queues together."""
    totals = survey.totals
    yield gauges("queues", "Queues by type.", ("type",), [((name,), n) for name, n in totals.types.items()])
    yield gauge("queues_full", "Queues that have reached their bound or limit of bytes.", totals.full)
    yield gauge("queues_closed", "Queues that are closed.", totals.closed)
    yield gauge("messages", "Messages in all queues.", totals.length)
    yield gauge("message_bytes", "Bytes of the messages in all queues.", totals.bytes)
    yield gauge("oldest_message_age_seconds", "Age of the oldest message of all queues.", totals.oldest)
    text = "Duration of the last round of the survey: how old figures may be."
    yield gauge("survey_round_seconds", text, survey.seconds)
    states = [((state,), getattr(totals, state)) for state in STATES]
    yield gauges("jobs", "Jobs in all queues, by state.", ("state",), states)
    for count, (name, text) in _OF_COUNT.items():
        yield counter(name, f"{text}, since the server started.", survey.counts[count])
    yield counter("survey_rounds", "Complete rounds of the survey of queues.", survey.rounds)


def queue_metrics(
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
        yield gauges(f"queue_{name}", text, _LABELS, [(label, value_of(one)) for label, one in labelled])
    for count, (name, text) in _OF_COUNT.items():
        shown = with_jobs if count in _ONLY_JOBS else labelled
        rows = [(label, getattr(one.figures, count)) for label, one in shown]
        yield counters(f"queue_{name}", f"{text}.", _LABELS, rows)
    states = [((*label, state), getattr(one.figures, state)) for label, one in with_jobs for state in STATES]
    yield gauges("queue_jobs", "Jobs by state.", (*_LABELS, "state"), states)
    lines = [
        ((*label, line.value), waiting[one.database, one.name][line])
        for label, one in labelled
        for line in Line
    ]
    text = "Operations of this server's clients that wait for a message or for room."
    yield gauges("queue_waiting", text, (*_LABELS, "role"), lines)
    text = "Queues beyond --metrics-queues, or that --metrics-match leaves out."
    yield gauge("queues_without_metrics", text, max(0, len(survey.queues) - len(queues)))


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
