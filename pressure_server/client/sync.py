"""The synchronous client: it executes the steps of steps.py with redis-py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import ResponseError
from redis.retry import Retry

from pressure_server.client.connecting import (
    CHANGES,
    DEFAULT_URL,
    LIBRARY,
    MAX_LOADS,
    function_instead,
    is_unknown_function,
    settings,
    tracking,
)
from pressure_server.client.steps import Call, Command, Listen, News, QueueSteps, Result, Step, Steps
from pressure_server.errors import QueueClosedError


class Queue:
    """A pressure queue in the Redis at `url`, used directly. Threads may share it.

    Messages are bytes; a str is put as UTF-8. All keys begin with `prefix`. `options` are those of a redis-py
    connection (`password`, `ssl_ca_certs`, `socket_timeout`, …). Raises ValueError for a URL that redis-py
    cannot parse, TypeError or QueueNameError for an invalid name.

    A `timeout` is in seconds; None waits for ever, 0 or less does not wait. Methods raise TypeError for a
    timeout that is not a number, and ValueError for NaN, before anything is sent. Errors of a queue are
    PressureErrors; errors of Redis are those of redis-py. Nothing is retried.
    """

    def __init__(
        self,
        name: str | bytes,
        url: str = DEFAULT_URL,
        *,
        prefix: str | bytes = "__pressure__",
        **options: Any,
    ) -> None:
        self._steps = QueueSteps(name, prefix)
        own = settings(options, parse_url(url), Retry(NoBackoff(), 0))  # type: ignore[no-untyped-call] # it has none
        # Any: redis-py's commands have no usable types.
        self._redis: Any = redis.Redis(connection_pool=redis.ConnectionPool(**own))
        own["socket_timeout"] = None
        self._patient: Any = redis.Redis(connection_pool=redis.ConnectionPool(**own))

    def create(self, bound: int = 0) -> None:
        """Create the queue; a bound of 0 means unbounded.

        Raises QueueAlreadyExistsError; QueueInUseError while a client is deleting the queue; TypeError for a
        bound that is no int, ValueError for a negative one.
        """
        self._do(self._steps.create(bound))

    def exists(self) -> bool:
        """Return whether the queue exists."""
        return self._do(self._steps.exists())

    def length(self) -> int:
        """Return the number of queued messages. Raises QueueDoesNotExistError."""
        return self._do(self._steps.length())

    def closed(self) -> bool:
        """Return whether the queue has been closed, which is for good. Raises QueueDoesNotExistError."""
        return self._do(self._steps.closed())

    def put(self, message: str | bytes, timeout: float | None = None) -> None:
        """Put a message. Wait up to `timeout` seconds for room, and for native producers.

        Raises QueueDoesNotExistError or QueueClosedError; when the time is up, QueueFullError or
        QueueInUseError; TypeError for a message that is neither bytes nor str.
        """
        self._do(self._steps.put(message, timeout))

    def put_nowait(self, message: str | bytes) -> None:
        """Put a message without waiting. Raises the errors of `put`, at once."""
        self.put(message, timeout=0)

    def get(self, timeout: float | None = None) -> bytes:
        """Take the oldest message. Wait up to `timeout` seconds for one, and for native consumers.

        Raises QueueDoesNotExistError; QueueClosedError if the queue is closed and empty; when the time is up,
        QueueEmptyError or QueueInUseError.
        """
        return self._do(self._steps.get(timeout))

    def get_nowait(self) -> bytes:
        """Take the oldest message without waiting. Raises the errors of `get`, at once."""
        return self.get(timeout=0)

    def close(self, timeout: float | None = None) -> None:
        """Close the queue: queued messages can still be taken, but no more can be put.

        Wait up to `timeout` seconds for native producers. Raises QueueDoesNotExistError; QueueClosedError if
        the queue is closed already; when the time is up, QueueInUseError.
        """
        self._do(self._steps.close(timeout))

    def delete(self) -> None:
        """Delete the queue with all its messages. Clients that wait on it get an error.

        Wait until native clients have finished. Raises QueueDoesNotExistError.
        """
        self._do(self._steps.delete())

    def __iter__(self) -> Iterator[bytes]:
        """Yield messages, waiting for each, until the queue is closed and empty."""
        while True:
            try:
                message = self.get()
            except QueueClosedError:
                return
            yield message

    def disconnect(self) -> None:
        """Close the connections; the next method call opens new ones."""
        self._redis.connection_pool.disconnect()
        self._patient.connection_pool.disconnect()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.disconnect()

    def _do(self, steps: Steps[Result]) -> Result:
        ears = self._patient.pubsub()
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._answer(step, ears)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            ears.close()

    def _answer(self, step: Step, ears: Any) -> Any:
        match step:
            case Call():
                return self._call(step)
            case Command(words):
                return self._patient.execute_command(*words)
            case Listen(prefixes):
                ears.execute_command("CLIENT", "ID")
                number = ears.parse_response()
                ears.execute_command(*tracking(number, prefixes))
                ears.parse_response()
                ears.subscribe(CHANGES)
                return ears.parse_response()
            case News(seconds):
                message = ears.get_message(timeout=seconds)
                return message["data"] if message else ()

    def _call(self, call: Call) -> Any:
        """Call the library, and load it if the backend does not have it."""
        function, arguments, loads = LIBRARY.name, call.arguments, MAX_LOADS
        while True:
            try:
                return self._redis.execute_command("FCALL", function, len(call.keys), *call.keys, *arguments)
            except ResponseError as error:
                if is_unknown_function(error) and loads:
                    loads -= 1
                    self._load()
                else:
                    function = function_instead(function, error)
                    arguments = [*arguments, str(error).encode()]

    def _load(self) -> None:
        try:
            self._redis.execute_command("FUNCTION", "LOAD", LIBRARY.text)
        except ResponseError as error:
            if not str(error).endswith("already exists"):
                raise
