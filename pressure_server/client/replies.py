"""What the replies of a pressure-server mean: results and errors."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from pressure_server import errors
from pressure_server.errors import PressureError

_ERRORS: dict[str, type[PressureError]] = {
    kind.code: kind
    for kind in (
        errors.BackendError,
        errors.DeniedError,
        errors.GroupDoesNotExistError,
        errors.OffsetAheadError,
        errors.OffsetGoneError,
        errors.QueueAlreadyExistsError,
        errors.QueueClosedError,
        errors.QueueDoesNotExistError,
        errors.QueueFullError,
        errors.QueueInUseError,
        errors.QueueTypeError,
        errors.StoppingError,
        errors.TransactionIdError,
        errors.WaitLimitError,
    )
}


class QueueEmptyError(PressureError):
    """The queue has no message, and the get does not wait or its time is up."""

    code = "EMPTY"

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue '{queue}' is empty: wait for a message, or try again")


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

    Times are in milliseconds; `time_left_ms` is 0 unless the job is delayed or reserved. `origin` is the
    queue from which a dead letter came. The last five say how often each event happened to the job.
    """

    state: str
    priority: int
    age_ms: int
    delay_ms: int
    ttr_ms: int
    time_left_ms: int
    origin: str
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int


class Reservation(NamedTuple):
    """A job that has just been reserved; `reserves` is how often it has been, this time included."""

    id: int
    message: bytes
    reserves: int


class Outcome(NamedTuple):
    """What became of a put with a transaction id.

    `state` is "done", with the `offset` of the message; "unknown": it has not been done; or "forgotten": it
    has not been done if it was sent less than `seconds` ago, otherwise nobody knows.
    """

    state: str
    offset: int | None
    seconds: int | None


class LogMessage(NamedTuple):
    """A message that a group has read; `deliveries` is how often, this time included."""

    id: int
    message: bytes
    deliveries: int
    offset: int


class GroupInfo(NamedTuple):
    """A group of a log: the `offset` of its first unfinished message, and how many nobody has got (`lag`).

    `pending` messages have been read and not acknowledged; `missed` ones were dropped from the log before the
    group came to them.
    """

    name: str
    offset: int
    lag: int
    pending: int
    buried: int
    missed: int


def error_of(reply: ResponseError) -> Exception:
    """Return the PressureError for an error reply; redis-py's exception if it has one of its own for it."""
    if type(reply) is not ResponseError:
        return reply
    code, _, text = str(reply).partition(" ")
    kind = _ERRORS.get(code)
    # redis-py removes the code ERR. The server's text is kept, so the constructors are not called.
    return kind.__new__(kind, text) if kind else PressureError(str(reply))


def described(reply: list[Any]) -> dict[str, Any]:
    """Return a description, in RESP2 a list of names and values, with texts as str."""
    texts = [part.decode(errors="backslashreplace") if isinstance(part, bytes) else part for part in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))
