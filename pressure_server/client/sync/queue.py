# Generated from ../aio/queue.py by `make sync-client`. Edit that file, not this one.
"""The native synchronous client of pressure queues in Redis, by redis-py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from pressure_server.client.arguments import as_bytes, checked_bound, checked_timeout
from pressure_server.client.native import (
    CHANGES,
    CLOSER,
    CONSUMER,
    LIBRARY,
    LINE_TIMEOUT,
    LINE_TIMEOUT_OF_DELETED,
    MAX_LOADS,
    PRODUCER,
    TAKE,
    QueueCalls,
    RoleKeys,
    function_instead,
    is_unknown_function,
    must_be_repeated,
    undoing,
)
from pressure_server.client.replies import QueueEmptyError
from pressure_server.client.sync_primitives import open_pool, settled
from pressure_server.errors import (
    PressureError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueInUseError,
)
from pressure_server.queues.operations.block_reply import Done, accepts

Result = TypeVar("Result")


class Queue:
    """A pressure queue in the Redis at `url`, used directly. Threads may share it.

    Messages are bytes; a str is put as UTF-8. All keys begin with `prefix`. `options` are passed to
    redis-py's connections (`password`, `ssl_ca_certs`, `socket_timeout`, …). Raises ValueError for a URL that
    redis-py cannot parse, TypeError or QueueNameError for an invalid name.

    A `timeout` is in seconds; None waits for ever, 0 or less does not wait. Methods raise TypeError for a
    timeout that is not a number, and ValueError for NaN, before anything is sent. Errors of a queue are
    PressureErrors; for errors of Redis, redis-py's exceptions are raised. Nothing is retried.
    """

    def __init__(
        self,
        name: str | bytes,
        url: str = "redis://127.0.0.1:6379/0",
        *,
        prefix: str | bytes = "__pressure__",
        **options: Any,
    ) -> None:
        self._calls = QueueCalls(name, prefix)
        self._redis = open_pool(url, options)
        self._patient = open_pool(url, options, is_patient=True)

    def create(self, bound: int = 0) -> None:
        """Create the queue; a bound of 0 means unbounded.

        Raises QueueAlreadyExistsError; QueueInUseError while a client is deleting the queue; TypeError for a
        bound that is no int, ValueError for a negative one.
        """
        self._call(b"create", b"%d" % checked_bound(bound))

    def exists(self) -> bool:
        """Return whether the queue exists."""
        return bool(self._call(b"exists"))

    def length(self) -> int:
        """Return the number of queued messages. Raises QueueDoesNotExistError."""
        return int(self._call(b"length"))

    def closed(self) -> bool:
        """Return whether the queue has been closed, which is for good. Raises QueueDoesNotExistError."""
        info = self._call(b"info")
        return bool(info[2])

    def put(self, message: str | bytes, timeout: float | None = None) -> None:
        """Put a message. Wait up to `timeout` seconds for room, and for native producers.

        Raises QueueDoesNotExistError or QueueClosedError; when the time is up, QueueFullError or
        QueueInUseError; TypeError for a message that is neither bytes nor str.
        """
        data = as_bytes(message, "a message")

        def attempt() -> None:
            if not accepts(self._call(b"put existing", b"", data)):
                raise QueueFullError(self._calls.printable)

        self._repeat(attempt, PRODUCER, timeout)

    def put_nowait(self, message: str | bytes) -> None:
        """Put a message without waiting. Raises the errors of `put`, at once."""
        self.put(message, timeout=0)

    def get(self, timeout: float | None = None) -> bytes:
        """Take the oldest message. Wait up to `timeout` seconds for one, and for native consumers.

        Raises QueueDoesNotExistError; QueueClosedError if the queue is closed and empty; when the time is up,
        QueueEmptyError or QueueInUseError.
        """

        def attempt() -> bytes:
            messages: list[bytes] = self._call(TAKE, b"1")
            if not messages:
                raise QueueEmptyError(self._calls.printable)
            return messages[0]

        return self._repeat(attempt, CONSUMER, timeout)

    def get_nowait(self) -> bytes:
        """Take the oldest message without waiting. Raises the errors of `get`, at once."""
        return self.get(timeout=0)

    def close(self, timeout: float | None = None) -> None:
        """Close the queue: queued messages can still be taken, but no more can be put.

        Wait up to `timeout` seconds for native producers. Raises QueueDoesNotExistError; QueueClosedError if
        the queue is closed already; when the time is up, QueueInUseError.
        """

        def attempt() -> None:
            self._call(b"close")

        self._repeat(attempt, CLOSER, timeout)

    def delete(self) -> None:
        """Delete the queue with all its messages. Clients that wait on it get an error.

        Wait until native clients have finished. Raises QueueDoesNotExistError.
        """
        if self._call(b"delete") != b"begun":
            return
        try:
            for role in cycle((PRODUCER, CONSUMER)):
                self._line_up(role, LINE_TIMEOUT_OF_DELETED)
                with suppress(QueueInUseError):
                    self._call(b"finish_delete")
                    return
        finally:
            # The parked tokens may belong to a queue that has been created in the meantime: give them back.
            self._call(b"turn")

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

    def _repeat(self, attempt: Callable[[], Result], role: RoleKeys, timeout: float | None) -> Result:
        """Attempt an operation until it succeeds. When the time is up, raise the last attempt's error."""
        timeout = checked_timeout(timeout)
        end = None if timeout is None else monotonic() + timeout
        try:
            return attempt()
        except (QueueFullError, QueueEmptyError, QueueInUseError) as error:
            if timeout is not None and timeout <= 0:
                raise
            reason: PressureError = error
        with self._patient.pubsub() as changes:
            self._listen(changes, role)
            stood_in_line = False
            try:
                while True:
                    self._catch_up(changes)
                    seen = self._patient.execute_command(*self._calls.look_command(role))
                    left = None if end is None else end - monotonic()
                    is_over = left is not None and left <= 0
                    if self._calls.must_line_up(seen):
                        if is_over:
                            raise reason
                        # A native client holds the role, also while it waits for the same message or room.
                        stood_in_line = True
                        self._line_up(role, LINE_TIMEOUT if left is None else min(left, LINE_TIMEOUT))
                        continue
                    try:
                        return attempt()
                    except (QueueFullError, QueueEmptyError, QueueInUseError) as error:
                        reason = error
                    if is_over:
                        raise reason
                    self._wait_for_change(changes, role, end)
            except BaseException:
                if stood_in_line:
                    self._call(b"turn")
                raise

    def _line_up(self, role: RoleKeys, seconds: float) -> None:
        self._patient.execute_command(*self._calls.line_up_command(role, seconds))

    def _listen(self, changes: Any, role: RoleKeys) -> None:
        """Have a pubsub object of redis-py receive the changes of keys that matter for a role."""
        changes.execute_command("CLIENT", "ID")
        number = changes.parse_response()
        changes.execute_command(*self._calls.tracking_command(number, role))
        changes.parse_response()
        changes.subscribe(CHANGES)
        changes.parse_response()

    def _catch_up(self, changes: Any) -> None:
        while _changed_keys(changes, 0) != ():
            pass

    def _wait_for_change(self, changes: Any, role: RoleKeys, end: float | None) -> None:
        """Wait until a key that matters for a role has changed, the time is up, or a new try is due."""
        keys = self._calls.keys_for(role)
        again = monotonic() + self._calls.retry_interval
        until = again if end is None else min(again, end)
        while True:
            changed = _changed_keys(changes, max(0.0, until - monotonic()))
            if not changed or not keys.isdisjoint(changed):
                return

    def _call(self, name: bytes, *arguments: bytes) -> Any:
        """Call the library until it has done the operation, and return the result."""
        try:
            while True:
                found = self._calls.read(self._reply_to(self._calls.packed(name, *arguments)))
                if isinstance(found, Done):
                    return self._calls.result_of(found)
        except QueueDoesNotExistError:
            # A native client's Delete leaves the keys that only the server and this library use.
            self._reply_to(self._calls.packed(b"clean"))
            raise

    def _reply_to(self, call: list[bytes]) -> Any:
        """Send a call. If it is cancelled, wait for its reply, and put back the messages that it took."""

        def undo(reply: Any) -> None:
            undoing_call = undoing(call, reply)
            while undoing_call is not None and must_be_repeated(self._send(undoing_call)):
                pass

        return settled(self._send(call), undo)

    def _send(self, call: list[bytes]) -> Any:
        """Send a call, and load the library if the backend does not have it."""
        function, keys, arguments, loads = LIBRARY.name, self._calls.call_keys, call, MAX_LOADS
        while True:
            try:
                return self._redis.execute_command("FCALL", function, len(keys), *keys, *arguments)
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


def _changed_keys(changes: Any, seconds: float) -> Any:
    """Wait up to `seconds` for a change.

    Return the list of changed keys; None if all may have changed, () if none has changed in time.
    """
    message = changes.get_message(timeout=seconds)
    return message["data"] if message else ()
