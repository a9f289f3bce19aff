"""Jobs: what operations on jobs say to the library, and what it replies (lua/kinds/jobs.lua). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pressure_server.lua.layout import DEFAULT_PRIORITY, DEFAULT_TTR
from pressure_server.queues.operations.flagged import Flagged, Popped

# A reservation that does not end by itself.
NO_DEADLINE = 0.0


def job_to_put(
    message: bytes,
    priority: int = DEFAULT_PRIORITY,
    delay: float = 0,
    ttr: float = DEFAULT_TTR / 1000,
    key: bytes | None = None,
    expire: float = 0,
) -> bytes:
    """Return a message with what makes it a job, for a put with `is_job` (and `has_key`); times in seconds.

    If it is not taken within `expire` seconds, it is dropped; 0: never.
    """
    if key is not None:
        return b"%d %b%b" % (len(key), key, job_to_put(message, priority, delay, ttr, expire=expire))
    expires = b"+%.0f" % (expire * 1000) if expire else b"0"
    return b"%d %.0f %.0f 0 %b %b" % (priority, delay * 1000, ttr * 1000, expires, message)


def word_of(job: int) -> bytes:
    """Return a job's id as the script has it."""
    return b"%013x" % job


def id_of(word: bytes) -> int:
    """Return a job's id from the script's word for it."""
    return int(word, 16)


def attached(token: int) -> bytes:
    """Return the owner of reservations that end with a connection; `token` identifies it in this server."""
    return b"=%d" % token


def detached(token: bytes) -> bytes:
    """Return the owner of reservations that outlive their connection; `token` has no spaces."""
    return b"@" + token


def claim(owner: bytes, ttr: float | None = None) -> bytes:
    """Return the claim of a reservation, for `ttr` seconds instead of the job's own time to run."""
    return owner if ttr is None else b"%b %d" % (owner, round(ttr * 1000))


def owned(job: int, owner: bytes) -> bytes:
    """Return the argument for an event of a job that `owner` has reserved; `job` is its id."""
    return b"%013x %b" % (job, owner)


def owned_between(first: int, last: int, owner: bytes) -> bytes:
    """Return the argument for an event of all jobs between two ids that `owner` has reserved."""
    return b"%013x-%013x %b" % (first, last, owner)


def ids_of(argument: bytes) -> range:
    """Return the ids that an argument of `owned` or `owned_between` names."""
    first, _, last = argument.partition(b" ")[0].partition(b"-")
    return range(int(first, 16), int(last or first, 16) + 1)


def reserved_as(job: int, reserves: int, owner: bytes) -> bytes:
    """Return the argument for an event of the `reserves`th reservation of a job, and no later one.

    So it is no event of another job that has got the same id since the backend lost its last changes.
    """
    return b"%013x %b %d" % (job, owner, reserves)


def released(
    job: int, owner: bytes, priority: int | None = None, delay: float = 0.0, *, is_now: bool = False
) -> bytes:
    """Return the argument for RELEASE: the job keeps its priority if none is given; `delay` in seconds.

    With `is_now`, the queue's retry delay does not apply.
    """
    when = b"now" if is_now else b"%d" % round(delay * 1000)
    return b"%013x %b %b %b" % (job, owner, b"" if priority is None else b"%d" % priority, when)


class ReservedJob(NamedTuple):
    """A job that a client has reserved. `ttr` is how long the reservation lasts, in seconds; 0: no limit.

    If the queue belongs to a group, `offset` says where the log has the job's message.
    """

    id: int
    ttr: float
    reserves: int
    message: bytes
    offset: int | None = None

    @classmethod
    def of(cls, result: bytes) -> ReservedJob:
        """Return the job of one result of RESERVE, RESERVE_JOB or POP."""
        if isinstance(result, Popped):
            return cls(result.job, result.ttr, result.reserves, result)
        job, ttr, flags, reserves, message = result.split(b" ", 4)
        if flags != b"0":
            message = Flagged(message, flags)
        job, _, offset = job.partition(b"@")
        return cls(int(job, 16), int(ttr) / 1000, int(reserves), message, int(offset) if offset else None)


class Pending(NamedTuple):
    """Neighbouring jobs that are reserved together: the first and the last id.

    `offset` is where a log has the first message, if a group reads it; else None. `token` is None if the
    reservations end with a connection. They end in `time_left` milliseconds; -1: never.
    """

    first: int
    last: int
    offset: int | None
    token: bytes | None
    time_left: int
    reserves: int

    @classmethod
    def of(cls, found: list[Any]) -> Pending:
        """Return what an entry of the reply to PENDING describes."""
        first, last, offset, token, time_left, reserves = found
        return cls(
            int(first, 16), int(last, 16), int(offset) if offset else None, token or None, time_left, reserves
        )


@dataclass(frozen=True)
class JobInfo:
    """A job's state and history. Times are in milliseconds; `time_left` is 0 unless delayed or reserved.

    `origin` is the queue from which a dead letter came.
    """

    state: bytes
    priority: int
    age: int
    delay: int
    ttr: int
    time_left: int
    origin: bytes
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int

    @classmethod
    def of(cls, reply: list[Any]) -> JobInfo | None:
        """Return the job that a reply of JOB_INFO describes; None if there is none."""
        return cls(*reply) if reply else None
