"""The synchronous log client: it sends the requests of log_requests.py with redis-py."""

from __future__ import annotations

from time import sleep
from typing import Any, overload

from pressure_server.client.log_requests import (
    RESUME_FOR,
    GroupInfo,
    GroupRequests,
    LogMessage,
    LogRequests,
    Outcome,
    Pause,
    Putting,
)
from pressure_server.client.requests import SERVER_URL, Request
from pressure_server.client.sync_connections import Connections


class LogQueue:
    """A queue of the type log, through the pressure-server at `url`. Threads may share it.

    Messages are bytes; a str is put as UTF-8. Each has an offset: the number of messages put before it.

    A put is done exactly once, even if its connection is lost: the client then reconnects, for up to
    `resume_for` seconds, and puts the message if the server had not. All other methods send their request
    once. `options` are those of a redis-py connection (`password`, `ssl_ca_certs`, `socket_timeout`, …).

    Times are in seconds. Invalid arguments raise TypeError or ValueError, before anything is sent. Errors of
    the server are PressureErrors; errors of the connection are those of redis-py.
    """

    def __init__(
        self, name: str | bytes, url: str = SERVER_URL, *, resume_for: float = RESUME_FOR, **options: Any
    ) -> None:
        self._requests = LogRequests(name, resume_for)
        self._connections = Connections(url, options)

    def create(self, bound: int = 0, overflow: str | None = None, if_not_exists: bool = False) -> bool:
        """Create the queue; a bound of 0 means unbounded. Return True.

        If the queue is full, a put waits for room if `overflow` is "block", raises QueueFullError if it is
        "error", and drops the oldest message if it is "overwrite"; None leaves this to the server's options.

        Raises QueueAlreadyExistsError; with `if_not_exists`, returns False instead and changes nothing.
        """
        return self._connections.do(self._requests.create(bound, overflow, if_not_exists))

    def put(
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
        return self._run(self._requests.put(message, overwrite, transaction, timeout))

    def outcome(self, transaction: str | bytes) -> Outcome:
        """Return what became of the put with this transaction id."""
        return self._connections.do(self._requests.outcome(transaction))

    def get(self, timeout: float | None = None) -> bytes:
        """Take the oldest message. Wait up to `timeout` seconds for one; None waits for ever.

        Raises QueueDoesNotExistError; QueueEmptyError when the time is up; QueueClosedError if the queue is
        closed and empty; QueueTypeError if groups read the log.
        """
        return self._connections.do(self._requests.get(timeout))

    @overload
    def at(self, offset: int) -> bytes | None: ...

    @overload
    def at(self, offset: int, count: int) -> list[bytes | None]: ...

    def at(self, offset: int, count: int | None = None) -> bytes | list[bytes | None] | None:
        """Return the message with this offset without taking it; None if it has left the log.

        With a count, return a list of the messages from there on, up to 1000 or 1 MiB. Raises
        OffsetAheadError if no message has got this offset yet.
        """
        found: bytes | list[bytes | None] | None = self._connections.do(self._requests.at(offset, count))
        return found

    def length(self) -> int:
        """Return the number of messages. Raises QueueDoesNotExistError."""
        return self._connections.do(self._requests.length())

    def info(self) -> dict[str, Any]:
        """Return the fields of PRESSURE.INFO, with `head_offset` and `tail_offset`, that of the next put."""
        return self._connections.do(self._requests.info())

    def create_group(self, name: str | bytes, start: str | int = "head") -> None:
        """Create a group, which reads the log from its "head", its "tail", or an offset.

        Raises QueueAlreadyExistsError if it exists, OffsetGoneError, OffsetAheadError, or QueueTypeError.
        """
        self._connections.do(self._requests.create_group(name, start))

    def delete_group(self, name: str | bytes) -> None:
        """Delete a group. Messages that no other group has to read leave the log."""
        self._connections.do(self._requests.delete_group(name))

    def seek(self, name: str | bytes, start: str | int) -> None:
        """Let a group continue at the "head", the "tail", or an offset."""
        self._connections.do(self._requests.seek(name, start))

    def groups(self) -> list[GroupInfo]:
        """Describe the groups of the log."""
        return self._connections.do(self._requests.groups())

    def group(self, name: str | bytes, consumer: str | bytes) -> Group:
        """Return an object by which this consumer reads the log in a group. Nothing is sent."""
        return Group(self, GroupRequests(self._requests, name, consumer))

    def disconnect(self) -> None:
        """Close the connections; the next method call opens new ones."""
        self._connections.disconnect()

    def __enter__(self) -> LogQueue:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.disconnect()

    def _run(self, steps: Putting) -> int:
        try:
            step = next(steps)
            while True:
                try:
                    result = self._result_of(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            offset: int = end.value
            return offset

    def _result_of(self, step: Request[Any] | Pause) -> Any:
        if not isinstance(step, Pause):
            return self._connections.do(step)
        sleep(step.seconds)
        return None


class Group:
    """One consumer of a group, which shares the messages of a log with the group's other consumers.

    A message that the consumer has read and not acknowledged is read again, by any consumer of the group,
    when its time to run is up: also after the process of the consumer has ended. Threads may share a Group.
    """

    def __init__(self, log: LogQueue, requests: GroupRequests) -> None:
        self._connections = log._connections
        self._requests = requests

    def read(
        self, count: int = 1, timeout: float | None = None, ttr: float | None = None
    ) -> list[LogMessage]:
        """Read up to `count` messages: those that are there, or the first that comes.

        Wait up to `timeout` seconds for one; None waits for ever, 0 or less does not wait. Return an empty
        list if none has come. The time to run of each message is `ttr` seconds; by default 60.

        Raises GroupDoesNotExistError; QueueClosedError if the log is closed, and nothing is left to read.
        """
        return self._connections.do(self._requests.read(count, timeout, ttr))

    def ack(self, *messages: LogMessage | int) -> int:
        """Finish messages, by themselves or by their ids. Return how many were this consumer's, or nobody's.

        The others are finished already, or another consumer has read them after their time to run.
        """
        return self._connections.do(self._requests.ack(messages))

    def touch(self, *messages: LogMessage | int) -> int:
        """Have the time to run of messages begin again. Return how many were this consumer's."""
        return self._connections.do(self._requests.touch(messages))

    def release(self, message: LogMessage | int) -> bool:
        """Give a message back, to be read next. Return whether it was this consumer's."""
        return self._connections.do(self._requests.release(message))
