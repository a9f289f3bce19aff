"""Requests to a pressure-server, and their replies: shared by the clients of jobs and of logs. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redis.exceptions import ResponseError

from pressure_server.client.arguments import as_bytes, checked_timeout, in_milliseconds
from pressure_server.errors import (
    BackendError,
    DeniedError,
    GroupDoesNotExistError,
    OffsetAheadError,
    OffsetGoneError,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueInUseError,
    QueueTypeError,
    StoppingError,
    TransactionIdError,
    WaitLimitError,
)
from pressure_server.queues.names import base_key
from pressure_server.text import printable

# The address of a server that runs with the defaults.
SERVER_URL = "redis://127.0.0.1:4000"
# A longer timeout waits for ever: the server would refuse it.
_LONGEST_WAIT = float(1 << 32)
_ERRORS: dict[str, type[PressureError]] = {
    kind.code: kind
    for kind in (
        BackendError,
        DeniedError,
        GroupDoesNotExistError,
        OffsetAheadError,
        OffsetGoneError,
        QueueAlreadyExistsError,
        QueueClosedError,
        QueueDoesNotExistError,
        QueueFullError,
        QueueInUseError,
        QueueTypeError,
        StoppingError,
        TransactionIdError,
        WaitLimitError,
    )
}

Word = bytes | str | int
Result = TypeVar("Result")


@dataclass(frozen=True)
class Request(Generic[Result]):
    """A command, and the function that parses its reply. If it `waits`, the server may reply late."""

    words: tuple[Word, ...]
    parse: Callable[[Any], Result]
    waits: bool = False


class QueueRequests:
    """The requests that queues of all types have. Invalid arguments raise TypeError or ValueError.

    An invalid name raises TypeError or QueueNameError.
    """

    def __init__(self, name: str | bytes) -> None:
        self.name = name
        self._key = as_bytes(name, "a queue's name")
        base_key(b"", self._key)

    @property
    def printable(self) -> str:
        """The queue's name for texts."""
        return printable(self._key)

    def length(self) -> Request[int]:
        """Count the messages."""
        return self._request("LENGTH", [], int)

    def info(self) -> Request[dict[str, Any]]:
        """Describe the queue."""
        return self._request("INFO", [], described)

    def _request(
        self, name: str, words: list[Word], parse: Callable[[Any], Result], *, waits: bool = False
    ) -> Request[Result]:
        return Request((f"PRESSURE.{name}", self._key, *words), parse, waits)


def exception_for(reply: ResponseError) -> Exception:
    """Return the PressureError for an error reply; redis-py's exception if it has one of its own for it."""
    if type(reply) is not ResponseError:
        return reply
    code, _, text = str(reply).partition(" ")
    kind = _ERRORS.get(code)
    # redis-py removes the code ERR. The server's text is kept, so the constructors are not called.
    return kind.__new__(kind, text) if kind else PressureError(str(reply))


def put_timeout(timeout: float | None) -> list[Word]:
    """Return the words for the time that a put waits for room; none if the queue's setting applies."""
    timeout = checked_timeout(timeout)
    if timeout is None:
        return []
    return ["NOWAIT"] if timeout <= 0 else ["TIMEOUT", timeout_word(timeout)]


def timeout_word(timeout: float) -> bytes:
    """Return a timeout above 0 as the server reads it: it waits for ever for 0 seconds."""
    return b"0" if timeout > _LONGEST_WAIT else in_milliseconds(timeout)


def nothing(_reply: Any) -> None:
    """Parse a reply that says only that the request has been done."""


def described(reply: list[Any]) -> dict[str, Any]:
    """Return a description, in RESP2 a list of names and values, with texts as str."""
    texts = [part.decode(errors="backslashreplace") if isinstance(part, bytes) else part for part in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))
