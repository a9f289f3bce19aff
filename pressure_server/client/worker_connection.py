"""The connection of a worker that reserves jobs, for the libraries that kombu.py and dramatiq.py adapt.

An acknowledgement leaves together with the next request. The kernel sends it after 0.2 seconds if there is
none by then, and when the process ends.
"""

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from ssl import SSLSocket
from threading import RLock
from typing import Any

import redis
from redis.exceptions import ResponseError

from pressure_server.client.arguments import Word, seconds_word
from pressure_server.client.redis_io import close_in_children, open_blocking
from pressure_server.client.replies import JobNotReservedError, Reservation, error_of
from pressure_server.errors import (
    BackendError,
    PressureError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueInUseError,
    StoppingError,
    WaitLimitError,
)

# After these errors, a worker connects again.
TEMPORARY_ERRORS = (
    redis.ConnectionError, redis.TimeoutError, OSError,
    BackendError, QueueInUseError, StoppingError, WaitLimitError,
)  # fmt: skip

_logger = logging.getLogger(__name__)
_MORE = getattr(socket, "MSG_MORE", 0)  # Linux has it


def call_creating(call: Callable[..., Any], queue: str, options: Mapping[str, Word], *command: Word) -> Any:
    """Call a command. If its queue does not exist, create it with these options, and call again."""
    try:
        return call(*command)
    except QueueDoesNotExistError:
        words = [word for option in options.items() for word in option]
        call("PRESSURE.CREATE", queue, "IF", "NOT", "EXISTS", "TYPE", "JOBS", *words)
        return call(*command)


class WorkerConnection:
    """A connection that reserves jobs, and ends them. One thread calls; any thread may end jobs meanwhile.

    It is closed after an error of the connection, and after an error reply to `end`: its jobs return.
    """

    def __init__(self, url: str, **options: Any) -> None:
        # Any: redis-py's connections have no usable types. The client closes them when it is deleted.
        self._client: Any = open_blocking(url, options, is_patient=True)
        self._connection: Any = self._client.connection_pool.get_connection()
        self._lock = RLock()  # a signal handler may end jobs, too
        # What the replies that have not been read belong to: a job and its queue, or None for a call.
        self._expected: deque[tuple[int, str] | None] = deque()
        self._is_open = True
        close_in_children(self)

    def call(self, *words: Word) -> Any:
        """Send a command, and return its reply. Raises PressureError, or an exception of redis-py."""
        self._send(words, None, 0)
        self._read_ends()
        self._expected.popleft()
        try:
            return self._connection.read_response()
        except ResponseError as error:
            raise error_of(error) from None
        except BaseException:
            self.abort()
            raise

    def reserve(self, queues: Sequence[str], wait: float, ttr: float) -> tuple[str, Reservation] | None:
        """Reserve the best job of the queues, and return its queue, too; None if there is none in time.

        Raises QueueDoesNotExistError.
        """
        words = ("TIMEOUT", seconds_word(wait, "a timeout")) if wait > 0 else ()
        try:
            found = self.call("PRESSURE.RESERVE", *queues, *words, "TTR", seconds_word(ttr, "a time to run"))
        except QueueClosedError:
            time.sleep(wait)  # the server replies at once
            return None
        return found and (found[0].decode(), Reservation(*found[1:]))

    def end(self, command: str, queue: str, job: int) -> None:
        """Send PRESSURE.ACK, RELEASE or BURY for a job that this connection has reserved. Wait for nothing.

        A later `call` or `close` logs a warning if the job was not reserved here any more.
        """
        self._send((command, queue, job), (job, queue), _MORE)

    def close(self) -> None:
        """Read the replies to `end`, and close the connection."""
        try:
            if self._is_open:
                self._read_ends()
        except (PressureError, *TEMPORARY_ERRORS) as error:
            _logger.warning("acknowledgements may be lost, so their jobs may be done again: %s", error)
        self.abort()

    def abort(self) -> None:
        """Close the connection, also the copy of a forked process: this leaves the other one open."""
        self._is_open = False
        self._connection.disconnect()

    def _send(self, words: tuple[Word, ...], job: tuple[int, str] | None, flags: int) -> None:
        with self._lock:
            if not self._is_open:
                raise redis.ConnectionError("the connection on which the job was reserved has ended")
            try:
                # redis-py itself has no way to pass flags.
                to = self._connection._sock
                data = b"".join(self._connection.pack_command(*words))
                to.sendall(data, 0 if isinstance(to, SSLSocket) else flags)
            except BaseException:
                self.abort()
                raise
            self._expected.append(job)

    def _read_ends(self) -> None:
        while self._expected and (job := self._expected[0]) is not None:
            self._expected.popleft()
            try:
                is_ended = self._connection.read_response()
            except BaseException as error:
                # Nobody knows whether the job has been ended.
                self.abort()
                if isinstance(error, ResponseError):
                    raise error_of(error) from None
                raise
            if not is_ended:
                _logger.warning("%s: it may be done again", JobNotReservedError(job[1], job[0]))
