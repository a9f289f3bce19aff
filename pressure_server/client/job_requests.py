"""The requests of the job clients, and their replies: shared by the sync and the asyncio client. Pure.

A reservation belongs to the connection that made it (or to a token), so each client decides on which
connection it sends a request. docs/guides/job-client.md explains the use.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from typing import Any, NamedTuple, NoReturn

from pressure_server.client.arguments import (
    as_bytes,
    checked_bound,
    checked_number,
    checked_priority,
    checked_seconds,
    checked_timeout,
    in_milliseconds,
)
from pressure_server.client.requests import (
    QueueRequests,
    Request,
    Word,
    described,
    nothing,
    put_timeout,
    timeout_word,
)
from pressure_server.client.steps import QueueEmptyError
from pressure_server.errors import PressureError

_STATES = ("ready", "delayed", "buried")
_UNIQUE = ("queued", "unfinished")


class JobNotReservedError(PressureError):
    """The job has been ended, or its time to run is up: it may be done again, or have been done elsewhere."""

    code = "NOTRESERVED"

    def __init__(self, queue: str, job: int) -> None:
        super().__init__(
            f"job {job} of queue '{queue}' is not reserved here: it has been ended, or its time to run is up"
        )


class PeekedJob(NamedTuple):
    """A job that has been looked at."""

    id: int
    message: bytes


@dataclass(frozen=True)
class JobInfo:
    """A job as PRESSURE.JOB describes it: `state` is ready, delayed, reserved or buried.

    Times are in milliseconds; `time_left_ms` is 0 unless the job is delayed or reserved. The last five say
    how often each event happened to the job.
    """

    state: str
    priority: int
    age_ms: int
    delay_ms: int
    ttr_ms: int
    time_left_ms: int
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int


class Reserved(NamedTuple):
    """A job that has just been reserved; `reserves` is how often it has been, this time included."""

    id: int
    message: bytes
    reserves: int


class JobRequests(QueueRequests):
    """The requests for the jobs of one queue."""

    def create(
        self, bound: int, max_deliveries: int | None, dead_letter: str | bytes | None, unique: str | None
    ) -> Request[None]:
        """Create the queue, of the type jobs."""
        words: list[Word] = ["BOUND", checked_bound(bound), "TYPE", "jobs"]
        if max_deliveries is not None:
            most = checked_number(max_deliveries, "a limit of deliveries", least=1)
            words += ["MAX-DELIVERIES", most]
        if dead_letter is not None:
            words += ["DEAD-LETTER", as_bytes(dead_letter, "a queue's name")]
        if unique is not None:
            if unique not in _UNIQUE:
                raise ValueError(f"unique must be 'queued', 'unfinished' or None, not {unique!r}")
            words += ["UNIQUE", unique]
        return self._request("CREATE", words, nothing)

    def put(
        self,
        message: str | bytes,
        priority: int | None,
        delay: float,
        ttr: float | None,
        unique: bool,
        unique_by: str | bytes | None,
        timeout: float | None,
    ) -> Request[int]:
        """Put a job; the result is its id. Without a timeout, the queue's overflow setting applies."""
        # With a delay, even of 0, the message is a job, whatever the type of the queue was.
        words: list[Word] = [as_bytes(message, "a message"), "DELAY", _seconds(delay, "a delay")]
        if priority is not None:
            words += ["PRIORITY", checked_priority(priority)]
        if ttr is not None:
            words += ["TTR", _seconds(ttr, "a time to run")]
        if unique:
            words.append("UNIQUE")
        if unique_by is not None:
            words += ["UNIQUE-BY", as_bytes(unique_by, "a name")]
        return self._request("PUT", words + put_timeout(timeout), int, waits=True)

    def reserve(
        self, timeout: float | None, ttr: float | None, token: str | bytes | None
    ) -> Request[Reserved]:
        """Reserve the best job. The request raises QueueEmptyError if none comes in time."""

        def parse(reply: Any) -> Reserved:
            if reply is None:
                raise QueueEmptyError(self.printable)
            return Reserved(*reply[1:4])

        words: list[Word] = []
        timeout = checked_timeout(timeout)
        if timeout is None or timeout > 0:
            words += ["TIMEOUT", timeout_word(inf if timeout is None else timeout)]
        if ttr is not None:
            words += ["TTR", _seconds(ttr, "a time to run")]
        if token is not None:
            words += ["DETACHED", as_bytes(token, "a token")]
        return self._request("RESERVE", words, parse, waits=True)

    def peek(self, which: int | str) -> Request[PeekedJob | None]:
        """Look at a job, by its id, or at the next one in a state."""
        if isinstance(which, str) and which not in _STATES:
            raise ValueError(f"a state must be 'ready', 'delayed' or 'buried', not {which!r}")
        word = which if isinstance(which, str) else _checked_id(which)
        return self._request("PEEK", [word], lambda reply: reply and PeekedJob(*reply))

    def job(self, job_id: int) -> Request[JobInfo | None]:
        """Describe a job."""

        def parse(reply: Any) -> JobInfo | None:
            if reply is None:
                return None
            found = described(reply)
            return JobInfo(**{field.name: found[field.name] for field in fields(JobInfo)})

        return self._request("JOB", [_checked_id(job_id)], parse)

    def kick(self, count: int) -> Request[int]:
        """Kick jobs; the result is how many."""
        return self._request("KICK", [checked_number(count, "a count")], int)

    def pause(self, seconds: float) -> Request[None]:
        """Pause the queue."""
        return self._request("PAUSE", [_seconds(seconds, "a pause")], nothing)

    def ack(self, job_id: int, token: str | bytes | None) -> Request[None]:
        """Delete a job that is done. This and the next three raise JobNotReservedError if it is not ours."""
        return self._event("ACK", job_id, token)

    def touch(self, job_id: int, token: str | bytes | None) -> Request[None]:
        """Have the time to run begin again."""
        return self._event("TOUCH", job_id, token)

    def release(
        self, job_id: int, token: str | bytes | None, priority: int | None, delay: float
    ) -> Request[None]:
        """Give a job back."""
        words: list[Word] = ["DELAY", _seconds(delay, "a delay")] if delay != 0 else []
        return self._event("RELEASE", job_id, token, words + _priority(priority))

    def bury(self, job_id: int, token: str | bytes | None, priority: int | None) -> Request[None]:
        """Set a job aside."""
        return self._event("BURY", job_id, token, _priority(priority))

    def resumed(self, job_id: int, found: PeekedJob | None, about: JobInfo | None) -> Reserved:
        """Return the job that has been touched and then looked at. It may have ended in between."""
        if found is None or about is None:
            self.refuse(job_id)
        return Reserved(job_id, found.message, about.reserves)

    def refuse(self, job_id: int) -> NoReturn:
        """Raise JobNotReservedError."""
        raise JobNotReservedError(self.printable, job_id)

    def _event(
        self, name: str, job_id: int, token: str | bytes | None, words: list[Word] | None = None
    ) -> Request[None]:
        def parse(reply: Any) -> None:
            if reply == 0:
                self.refuse(job_id)

        owner: list[Word] = [] if token is None else ["TOKEN", as_bytes(token, "a token")]
        return self._request(name, [_checked_id(job_id), *(words or ()), *owner], parse)


class ReservedJob:
    """What Job and AsyncJob have in common: what is known of the job, and whether it is still reserved."""

    def __init__(self, requests: JobRequests, reserved: Reserved, token: str | bytes | None) -> None:
        self.queue = requests.name
        self.id, self.message, self.reserves = reserved
        self.token = token
        self._requests = requests
        self._is_reserved = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of queue '{self._requests.printable}'>"

    def _check(self) -> None:
        """Raise JobNotReservedError if the job has been ended."""
        if not self._is_reserved:
            self._requests.refuse(self.id)


def _checked_id(job_id: int) -> int:
    return checked_number(job_id, "the id of a job", least=1)


def _seconds(seconds: float, what: str) -> bytes:
    return in_milliseconds(checked_seconds(seconds, what))


def _priority(priority: int | None) -> list[Word]:
    return [] if priority is None else ["PRIORITY", checked_priority(priority)]
