"""The clients of a log, its offsets and its groups. docs/guides/log-client.md explains the use."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from time import monotonic
from typing import Any, overload

import redis
from redis.exceptions import AuthorizationError

from pressure_server.client.arguments import (
    Word,
    as_bytes,
    checked_bound,
    checked_choice,
    checked_id,
    checked_name,
    checked_number,
    checked_seconds,
    room_words,
    seconds_word,
    start_word,
    ttr_words,
    wait_words,
)
from pressure_server.client.connections import SERVER_URL, AsyncServerQueue, Connections, ServerQueue
from pressure_server.client.redis_io import BlockingRedis
from pressure_server.client.replies import (
    GroupInfo,
    LogMessage,
    Outcome,
    QueueEmptyError,
    described,
)
from pressure_server.client.synchronous import Synchronous, synchronous
from pressure_server.errors import BackendError, StoppingError
from pressure_server.queues.names import base_key

# Bytes of randomness in the transaction id of a put that the caller gave none.
_ID_BYTES = 16
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class AsyncLogQueue(AsyncServerQueue):
    """A queue of the type log, through the pressure-server at `url`. Tasks may share it.

    Messages are bytes; a str is put as UTF-8. Each has an offset: the number of messages put before it.

    A put is done exactly once, even if its connection is lost: the client then reconnects, for up to
    `resume_for` seconds, and puts the message if the server had not. All other methods send their request
    once. `options` are passed to redis-py's connections (`password`, `ssl_ca_certs`, `socket_timeout`, …).

    Times are in seconds. Invalid arguments raise TypeError or ValueError, before anything is sent. Errors of
    the server are PressureErrors; if the connection breaks, redis-py's exceptions are raised.

    Cancellation: a cancelled put may be done; a put with the same transaction id is then not done again. The
    messages that a cancelled read was given are read again when their time to run is up.
    """

    def __init__(
        self, name: str | bytes, url: str = SERVER_URL, *, resume_for: float = 30.0, **options: Any
    ) -> None:
        super().__init__(name, url, options)
        self._resume_for = checked_seconds(resume_for, "resume_for")

    async def create(self, bound: int = 0, overflow: str | None = None, if_not_exists: bool = False) -> bool:
        """Create the queue; a bound of 0 means unbounded. Return True.

        If the queue is full, a put waits for room if `overflow` is "block", raises QueueFullError if it is
        "error", and drops the oldest message if it is "overwrite"; None leaves this to the server's options.

        Raises QueueAlreadyExistsError; with `if_not_exists`, returns False instead and changes nothing.
        """
        words: list[Word] = ["IF", "NOT", "EXISTS"] if if_not_exists else []
        words += ["BOUND", checked_bound(bound), "TYPE", "log"]
        if overflow is not None:
            settings = ("block", "error", "overwrite")
            words += ["OVERFLOW", checked_choice(overflow, "overflow", *settings, other="None")]
        return bool(await self._do("CREATE", *words) != 0)

    async def put(
        self,
        message: str | bytes,
        *,
        overwrite: bool = False,
        transaction: str | bytes | None = None,
        timeout: float | None = None,
    ) -> int:
        """Put a message once, and return its offset.

        If the queue is full, drop the oldest message if `overwrite` is true; otherwise wait up to `timeout`
        seconds for room; 0 or less does not wait; without one, the queue's overflow setting applies.

        A put has a transaction id: a random one, or `transaction`. While the server remembers the id, a put
        with the same id puts nothing, and returns the offset of the first one.

        Raises QueueDoesNotExistError, QueueClosedError or QueueFullError. If the server cannot be reached for
        `resume_for` seconds, raises redis-py's error: then `outcome` tells later whether the put was done.
        """
        if overwrite and timeout is not None:
            raise ValueError("a put that overwrites does not wait for room: it has no timeout")
        data = as_bytes(message, "a message")
        name = secrets.token_hex(_ID_BYTES).encode() if transaction is None else checked_name(transaction)
        begun = monotonic()
        give_up, pause, left = begun + self._resume_for, _FIRST_PAUSE, timeout
        lost: Exception | None = None
        while True:
            sent = monotonic()
            try:
                if lost is None:
                    return await self._put_once(data, overwrite, name, left)
                outcome = await self.outcome(name)
            except (redis.AuthenticationError, AuthorizationError):
                raise  # as another connection would
            except BackendError:
                if lost is None:
                    raise
                # The outcome could not be read: the put may be done all the same.
            except (redis.ConnectionError, redis.TimeoutError, StoppingError) as error:
                now = monotonic()
                if lost is None and now - sent > self._resume_for:
                    # The put has waited for room until now.
                    give_up, pause = now + self._resume_for, _FIRST_PAUSE
                lost = error
            else:
                if outcome.state == "done":
                    return int(outcome.offset or 0)
                age = monotonic() - begun
                if outcome.seconds is not None and age >= outcome.seconds:
                    # It cannot be known whether the put was done: another one could be the second.
                    raise lost
                lost = None
                left = None if timeout is None else max(timeout - age, 0)
                continue
            if monotonic() + pause > give_up:
                raise lost
            await self._redis_class.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def outcome(self, transaction: str | bytes) -> Outcome:
        """Return what became of the put with this transaction id."""
        reply = await self._do("OUTCOME", checked_name(transaction))
        state = reply[0].decode()
        is_forgotten = state == "forgotten"
        return Outcome(state, None if is_forgotten else reply[1], reply[1] if is_forgotten else None)

    async def get(self, timeout: float | None = None) -> bytes:
        """Take the oldest message. Wait up to `timeout` seconds for one; None waits for ever.

        Raises QueueDoesNotExistError; QueueEmptyError when the time is up; QueueClosedError if the queue is
        closed and empty; QueueTypeError if groups read the log.
        """
        reply = await self._do("GET", *(wait_words(timeout) or ["NOWAIT"]), waits=True)
        if reply is None:
            raise QueueEmptyError(self._printable)
        return bytes(reply)

    @overload
    async def at(self, offset: int) -> bytes | None: ...

    @overload
    async def at(self, offset: int, count: int) -> list[bytes | None]: ...

    async def at(self, offset: int, count: int | None = None) -> bytes | list[bytes | None] | None:
        """Return the message with this offset without taking it; None if it has left the log.

        With a count, return a list of the messages from there on, up to 1000 or 1 MiB. Raises
        OffsetAheadError if no message has got this offset yet.
        """
        words: list[Word] = [checked_number(offset, "an offset")]
        if count is not None:
            words += ["COUNT", checked_number(count, "a count", least=1)]
        found: bytes | list[bytes | None] | None = await self._do("AT", *words)
        return found

    async def create_group(self, name: str | bytes, start: str | int = "head") -> None:
        """Create a group, which reads the log from its "head", its "tail", or an offset.

        Raises QueueAlreadyExistsError if it exists, OffsetGoneError, OffsetAheadError, or QueueTypeError.
        """
        await self._do_on_group("CREATE", name, "FROM", start_word(start))

    async def delete_group(self, name: str | bytes) -> None:
        """Delete a group. Messages that no other group has to read leave the log."""
        await self._do_on_group("DELETE", name)

    async def seek(self, name: str | bytes, start: str | int) -> None:
        """Let a group continue at the "head", the "tail", or an offset."""
        await self._do_on_group("SEEK", name, "FROM", start_word(start))

    async def groups(self) -> list[GroupInfo]:
        """Describe the groups of the log."""
        reply = await self._connections.do("PRESSURE.GROUP", "LIST", self._key)
        found = [described(one) for one in reply]
        return [GroupInfo(*(one[field] for field in GroupInfo._fields)) for one in found]

    def group(self, name: str | bytes, consumer: str | bytes) -> AsyncGroup:
        """Return an object by which this consumer reads the log in a group. Nothing is sent."""
        return AsyncGroup(self._connections, self._key, name, consumer)

    async def _put_once(self, message: bytes, overwrite: bool, name: bytes, timeout: float | None) -> int:
        words = ["OVERWRITE"] if overwrite else room_words(timeout)
        # A put that cannot wait for room is under the timeout for ordinary replies.
        waits = not overwrite and (timeout is None or timeout > 0)
        return int(await self._do("PUT", message, "OFFSET", "TXN", name, *words, waits=waits))

    async def _do_on_group(self, action: str, name: str | bytes, *words: Word) -> None:
        await self._connections.do(
            "PRESSURE.GROUP", action, self._key, as_bytes(name, "a group's name"), *words
        )


class AsyncGroup:
    """One consumer of a group, which shares the messages of a log with the group's other consumers.

    A message that the consumer has read and not acknowledged is read again, by any consumer of the group,
    when its time to run is up: also after the process of the consumer has ended. Tasks may share it.
    """

    def __init__(
        self, connections: Connections, log: bytes, name: str | bytes, consumer: str | bytes
    ) -> None:
        self._connections = connections
        self._log = log
        self._name = as_bytes(name, "a group's name")
        self._consumer = checked_name(consumer)
        # The queue in which the group's messages are reserved.
        self._queue = log + b"+" + self._name
        base_key(b"", self._queue)

    async def read(
        self, count: int = 1, timeout: float | None = None, ttr: float | None = None
    ) -> list[LogMessage]:
        """Read up to `count` messages: those that are there, or the first that comes.

        Wait up to `timeout` seconds for one; None waits for ever, 0 or less does not wait. Return an empty
        list if none has come. The time to run of each message is `ttr` seconds; by default 60.

        Raises GroupDoesNotExistError; QueueClosedError if the log is closed, and nothing is left to read.
        """
        words: list[Word] = ["GROUP", self._name, self._consumer, "COUNT"]
        words += [checked_number(count, "a count", least=1), *wait_words(timeout), *ttr_words(ttr)]
        reply = await self._connections.do("PRESSURE.READ", self._log, *words, waits=True)
        return [LogMessage(*one) for one in reply or ()]

    async def claim(self, count: int = 1, idle: float = 0, ttr: float | None = None) -> list[LogMessage]:
        """Take over up to `count` messages that others have read, and not touched for `idle` seconds.

        Return an empty list if there are none. The time to run of each is `ttr` seconds; by default 60.
        """
        words: list[Word] = [self._consumer, "COUNT", checked_number(count, "a count", least=1)]
        words += ["IDLE", seconds_word(idle, "idle"), *ttr_words(ttr)]
        reply = await self._connections.do("PRESSURE.CLAIM", self._queue, *words)
        return [LogMessage(*one) for one in reply or ()]

    async def ack(self, *messages: LogMessage | int) -> int:
        """Finish messages, by themselves or by their ids. Return how many were this consumer's, or nobody's.

        The others are finished already, or another consumer has read them after their time to run.
        """
        return int(await self._do("ACK", messages))

    async def touch(self, *messages: LogMessage | int) -> int:
        """Have the time to run of messages begin again. Return how many were this consumer's."""
        return int(await self._do("TOUCH", messages))

    async def release(self, message: LogMessage | int) -> bool:
        """Give a message back, to be read next. Return whether it was this consumer's."""
        return bool(await self._do("RELEASE", [message]))

    async def _do(self, name: str, messages: Iterable[LogMessage | int]) -> Any:
        ids = [checked_id(one.id if isinstance(one, LogMessage) else one, "a message") for one in messages]
        if not ids:
            raise ValueError("name at least one message")
        return await self._connections.do(f"PRESSURE.{name}", self._queue, *ids, "TOKEN", self._consumer)


class _BlockingLogQueue(AsyncLogQueue):
    _redis_class = BlockingRedis


class LogQueue(ServerQueue):
    """A queue of the type log, through the pressure-server at `url`. Threads may share it.

    AsyncLogQueue explains the options, times and errors, and how a put is done exactly once.
    """

    def __init__(
        self, name: str | bytes, url: str = SERVER_URL, *, resume_for: float = 30.0, **options: Any
    ) -> None:
        super().__init__(_BlockingLogQueue(name, url, resume_for=resume_for, **options))

    create = synchronous(AsyncLogQueue.create)
    put = synchronous(AsyncLogQueue.put)
    outcome = synchronous(AsyncLogQueue.outcome)
    get = synchronous(AsyncLogQueue.get)
    at = synchronous(AsyncLogQueue.at)
    create_group = synchronous(AsyncLogQueue.create_group)
    delete_group = synchronous(AsyncLogQueue.delete_group)
    seek = synchronous(AsyncLogQueue.seek)
    groups = synchronous(AsyncLogQueue.groups)

    def group(self, name: str | bytes, consumer: str | bytes) -> Group:
        """Return an object by which this consumer reads the log in a group. Nothing is sent."""
        return Group(self._target.group(name, consumer))


class Group(Synchronous):
    """One consumer of a group, as AsyncGroup explains it. Threads may share it."""

    read = synchronous(AsyncGroup.read)
    claim = synchronous(AsyncGroup.claim)
    ack = synchronous(AsyncGroup.ack)
    touch = synchronous(AsyncGroup.touch)
    release = synchronous(AsyncGroup.release)
