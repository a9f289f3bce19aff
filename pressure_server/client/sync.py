"""The synchronous client: does the steps of steps.py with redis-py, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import NoScriptError
from redis.retry import Retry

from pressure_server.client.connecting import CHANGES, DEFAULT_URL, DIGEST, SCRIPT, settings, tracking
from pressure_server.client.steps import Call, Command, Listen, News, QueueSteps, Result, Step, Steps
from pressure_server.errors import QueueClosedError


class Queue:
    """A pressure queue in the Redis of a URL, used directly. Threads may share it.

    Messages are bytes; a str is put as UTF-8. `prefix` is what the keys begin with; `options` are those of a
    redis-py connection (`password`, `ssl_ca_certs`, `socket_timeout`, …). Each method raises redis-py's
    errors where Redis cannot be reached, beside its own, which are PressureErrors; nothing is tried twice.
    Raises ValueError for a URL that redis-py cannot read, QueueNameError, and TypeError for another name.

    `timeout` is in seconds: None is for ever, 0 or less not at all. Methods raise TypeError for what is no
    number, ValueError for NaN, before anything is sent.
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
        # redis-py does not say what its commands return.
        self._redis: Any = redis.Redis(connection_pool=redis.ConnectionPool(**own))
        own["socket_timeout"] = None
        self._patient: Any = redis.Redis(connection_pool=redis.ConnectionPool(**own))

    def create(self, bound: int = 0) -> None:
        """Create the queue; a bound of 0 is none. Raises QueueAlreadyExistsError, QueueInUseError.

        Raises TypeError, ValueError for a bound that is no int, or negative.
        """
        self._do(self._steps.create(bound))

    def exists(self) -> bool:
        """Whether there is such a queue."""
        return self._do(self._steps.exists())

    def length(self) -> int:
        """How many messages are queued. Raises QueueDoesNotExistError."""
        return self._do(self._steps.length())

    def closed(self) -> bool:
        """Whether it has been closed, for good. Raises QueueDoesNotExistError."""
        return self._do(self._steps.closed())

    def put(self, message: str | bytes, timeout: float | None = None) -> None:
        """Put a message, waiting `timeout` seconds for room, or for a native producer; None is for ever.

        Raises QueueDoesNotExistError, QueueClosedError; QueueFullError, QueueInUseError when the time is up;
        TypeError for a message that is neither bytes nor str.
        """
        self._do(self._steps.put(message, timeout))

    def put_nowait(self, message: str | bytes) -> None:
        """Put a message, or raise at once what `put` raises when its time is up."""
        self.put(message, timeout=0)

    def get(self, timeout: float | None = None) -> bytes:
        """Take the oldest message, waiting up to `timeout` seconds for one; None is for ever.

        Raises QueueDoesNotExistError; QueueClosedError where the queue is closed and empty; QueueEmptyError,
        QueueInUseError when the time is up.
        """
        return self._do(self._steps.get(timeout))

    def get_nowait(self) -> bytes:
        """Take the oldest message, or raise at once what `get` raises when its time is up."""
        return self.get(timeout=0)

    def close(self, timeout: float | None = None) -> None:
        """Close the queue: what is queued can still be taken, and no more be put.

        Waits `timeout` seconds for a native producer; None is for ever. Raises QueueDoesNotExistError,
        QueueClosedError; QueueInUseError when the time is up.
        """
        self._do(self._steps.close(timeout))

    def delete(self) -> None:
        """Delete the queue and what is queued; who waits on it is told. Raises QueueDoesNotExistError.

        Waits for native clients that are at work to finish.
        """
        self._do(self._steps.delete())

    def __iter__(self) -> Iterator[bytes]:
        """Take messages, waiting for each, until the queue is closed and empty."""
        while True:
            try:
                message = self.get()
            except QueueClosedError:
                return
            yield message

    def disconnect(self) -> None:
        """Close the connections; the next use opens new ones."""
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
            case Call(base, arguments):
                try:
                    return self._redis.execute_command("EVALSHA", DIGEST, 1, base, *arguments)
                except NoScriptError:
                    return self._redis.execute_command("EVAL", SCRIPT, 1, base, *arguments)
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
