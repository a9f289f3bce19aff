"""The requests of the log clients, and their replies: shared by the sync and the asyncio client. Pure.

A put is a generator: it yields requests and pauses, receives the result of each, or the exception that came
instead, and returns the offset. docs/guides/log-client.md explains the use.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable
from math import inf
from time import monotonic
from typing import Any, NamedTuple

import redis
from redis.exceptions import AuthorizationError

from pressure_server.client.arguments import (
    as_bytes,
    checked_bound,
    checked_number,
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
from pressure_server.errors import StoppingError

# Seconds for which a put is sent again after its connection was lost.
RESUME_FOR = 30.0
_OVERFLOWS = ("block", "error", "overwrite")
_STARTS = ("head", "tail")
# Bytes of randomness in the transaction id of a put that the caller gave none.
_ID_BYTES = 16
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_TOKEN_LENGTH = 128


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


class Pause(NamedTuple):
    """A step of a put: wait so many seconds."""

    seconds: float


Putting = Generator[Request[Any] | Pause, Any, int]


class LogRequests(QueueRequests):
    """The requests for one log. `resume_for` is how long a put is sent again after a lost connection."""

    def __init__(self, name: str | bytes, resume_for: float) -> None:
        super().__init__(name)
        self._resume_for = checked_seconds(resume_for, "resume_for")

    def create(self, bound: int, overflow: str | None, if_not_exists: bool) -> Request[bool]:
        """Create the queue, of the type log. The result is whether it is new."""
        words: list[Word] = ["IF", "NOT", "EXISTS"] if if_not_exists else []
        words += ["BOUND", checked_bound(bound), "TYPE", "log"]
        if overflow is not None:
            if overflow not in _OVERFLOWS:
                raise ValueError(f"overflow must be 'block', 'error', 'overwrite' or None, not {overflow!r}")
            words += ["OVERFLOW", overflow]
        return self._request("CREATE", words, lambda reply: reply != 0)

    def put(
        self,
        message: str | bytes,
        overwrite: bool,
        transaction: str | bytes | None,
        timeout: float | None,
        clock: Callable[[], float] = monotonic,
    ) -> Putting:
        """Return the steps that put a message, once."""
        if overwrite and timeout is not None:
            raise ValueError("a put that overwrites does not wait for room: it has no timeout")
        transaction_id = (
            secrets.token_hex(_ID_BYTES).encode() if transaction is None else _checked_token(transaction)
        )
        # Checked before the first step.
        self._put(as_bytes(message, "a message"), overwrite, transaction_id, timeout)
        return self._putting(as_bytes(message, "a message"), overwrite, transaction_id, timeout, clock)

    def outcome(self, transaction: str | bytes) -> Request[Outcome]:
        """Ask what became of a put."""

        def parse(reply: Any) -> Outcome:
            state = reply[0].decode()
            is_forgotten = state == "forgotten"
            return Outcome(state, None if is_forgotten else reply[1], reply[1] if is_forgotten else None)

        return self._request("OUTCOME", [_checked_token(transaction)], parse)

    def get(self, timeout: float | None) -> Request[bytes]:
        """Take the oldest message. The request raises QueueEmptyError if none comes in time."""

        def parse(reply: Any) -> bytes:
            if reply is None:
                raise QueueEmptyError(self.printable)
            return bytes(reply)

        return self._request("GET", _wait_words(timeout) or ["NOWAIT"], parse, waits=True)

    def at(self, offset: int, count: int | None) -> Request[Any]:
        """Read the message with this offset; with a count, a list of messages from there on."""
        words: list[Word] = [_checked_offset(offset)]
        if count is not None:
            words += ["COUNT", checked_number(count, "a count", least=1)]
        return self._request("AT", words, lambda reply: reply)

    def create_group(self, group: str | bytes, start: str | int) -> Request[None]:
        """Create a group."""
        return self._group("CREATE", [_group_word(group), "FROM", _start_word(start)])

    def delete_group(self, group: str | bytes) -> Request[None]:
        """Delete a group."""
        return self._group("DELETE", [_group_word(group)])

    def seek(self, group: str | bytes, start: str | int) -> Request[None]:
        """Let a group continue elsewhere."""
        return self._group("SEEK", [_group_word(group), "FROM", _start_word(start)])

    def groups(self) -> Request[list[GroupInfo]]:
        """Describe the groups."""

        def parse(reply: Any) -> list[GroupInfo]:
            return [GroupInfo(**described(one)) for one in reply]

        return Request(("PRESSURE.GROUP", "LIST", self._key), parse)

    def _group(self, action: str, words: list[Word]) -> Request[None]:
        return Request(("PRESSURE.GROUP", action, self._key, *words), nothing)

    def _put(
        self, message: bytes, overwrite: bool, transaction: bytes, timeout: float | None
    ) -> Request[int]:
        words: list[Word] = [message, "OFFSET", "TXN", transaction]
        words += ["OVERWRITE"] if overwrite else put_timeout(timeout)
        # A put that cannot wait for room is under the timeout for ordinary replies.
        return self._request("PUT", words, int, waits=not overwrite and (timeout is None or timeout > 0))

    def _putting(
        self,
        message: bytes,
        overwrite: bool,
        transaction: bytes,
        timeout: float | None,
        clock: Callable[[], float],
    ) -> Putting:
        """Put the message. If its connection is lost, ask for the outcome, and put it again if need be."""
        begun = clock()
        request: Request[Any] = self._put(message, overwrite, transaction, timeout)
        give_up, pause = begun + self._resume_for, _FIRST_PAUSE
        while True:
            sent = clock()
            try:
                result = yield request
            except (redis.ConnectionError, redis.TimeoutError, StoppingError) as error:
                now = clock()
                if now - sent > self._resume_for:
                    # The put has waited for room until now.
                    give_up, pause = now + self._resume_for, _FIRST_PAUSE
                if _is_final(error) or now + pause > give_up:
                    raise
                lost = error
            else:
                if not isinstance(result, Outcome):
                    return int(result)
                if result.state == "done":
                    return int(result.offset or 0)
                if result.seconds is not None and clock() - begun >= result.seconds:
                    # It cannot be known whether the put was done: another one could be the second.
                    raise lost
                left = None if timeout is None else max(timeout - (clock() - begun), 0)
                request = self._put(message, overwrite, transaction, left)
                continue
            yield Pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            request = self.outcome(transaction)


class GroupRequests:
    """The requests of one consumer of a group."""

    def __init__(self, log: LogRequests, group: str | bytes, consumer: str | bytes) -> None:
        self._log = log._key
        self._group = _group_word(group)
        self._consumer = _checked_token(consumer)
        # The queue in which the group's messages are reserved.
        self._queue = QueueRequests(self._log + b"+" + self._group)

    def read(self, count: int, timeout: float | None, ttr: float | None) -> Request[list[LogMessage]]:
        """Read the next messages: an empty list if none come in time."""

        def parse(reply: Any) -> list[LogMessage]:
            return [LogMessage(*one) for one in reply or ()]

        words: list[Word] = ["GROUP", self._group, self._consumer]
        words += ["COUNT", checked_number(count, "a count", least=1), *_wait_words(timeout)]
        if ttr is not None:
            words += ["TTR", in_milliseconds(checked_seconds(ttr, "a time to run"))]
        return Request(("PRESSURE.READ", self._log, *words), parse, waits=True)

    def ack(self, messages: Iterable[LogMessage | int]) -> Request[int]:
        """Finish messages; the result is how many."""
        return self._event("ACK", messages)

    def touch(self, messages: Iterable[LogMessage | int]) -> Request[int]:
        """Have the time to run of messages begin again; the result is how many."""
        return self._event("TOUCH", messages)

    def release(self, message: LogMessage | int) -> Request[bool]:
        """Give a message back; the result is whether it was this consumer's."""
        return self._queue._request("RELEASE", [_id_of(message), "TOKEN", self._consumer], bool)

    def _event(self, name: str, messages: Iterable[LogMessage | int]) -> Request[int]:
        ids: list[Word] = [_id_of(one) for one in messages]
        if not ids:
            raise ValueError("name at least one message")
        return self._queue._request(name, [*ids, "TOKEN", self._consumer], int)


def _is_final(error: Exception) -> bool:
    """Return whether another connection would fail in the same way."""
    return isinstance(error, redis.AuthenticationError | AuthorizationError)


def _id_of(message: LogMessage | int) -> int:
    number = message.id if isinstance(message, LogMessage) else message
    return checked_number(number, "the id of a message", least=1)


def _wait_words(timeout: float | None) -> list[Word]:
    """Return the words for the time that a get or a read waits; none if it does not."""
    timeout = checked_timeout(timeout)
    if timeout is not None and timeout <= 0:
        return []
    return ["TIMEOUT", timeout_word(inf if timeout is None else timeout)]


def _checked_offset(offset: int) -> int:
    return checked_number(offset, "an offset")


def _start_word(start: str | int) -> Word:
    if isinstance(start, str) and start not in _STARTS:
        raise ValueError(f"a start must be 'head', 'tail' or an offset, not {start!r}")
    return start if isinstance(start, str) else _checked_offset(start)


def _group_word(group: str | bytes) -> bytes:
    return as_bytes(group, "a group's name")


def _checked_token(token: str | bytes) -> bytes:
    """Return a transaction id or the name of a consumer, as the server wants these."""
    word = as_bytes(token, "a transaction id or a consumer's name")
    if not 0 < len(word) <= _TOKEN_LENGTH or any(byte <= ord(" ") or byte > ord("~") for byte in word):
        raise ValueError(
            f"a transaction id or a consumer's name must be 1 to {_TOKEN_LENGTH} printable characters "
            f"without spaces, not {token!r}"
        )
    return word
