"""The native clients of pressure queues in Redis, by redis-py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import cycle
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from pressure_server.client.arguments import as_bytes, checked_bound, checked_timeout
from pressure_server.client.native import (
    CLOSER,
    CONSUMER,
    LIBRARY,
    PRODUCER,
    TAKE,
    QueueCalls,
    RoleKeys,
    function_instead,
    must_be_repeated,
    undoing,
)
from pressure_server.client.redis_io import AsyncRedis, BlockingRedis
from pressure_server.client.replies import QueueEmptyError
from pressure_server.client.synchronous import Synchronous, synchronous
from pressure_server.errors import (
    PressureError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueInUseError,
)
from pressure_server.queues.operations.block_reply import Done, accepts

# The library is loaded at most this often for one call.
_MAX_LOADS = 100
# The channel on which Redis reports changed keys to RESP2 clients.
_CHANGES = "__redis__:invalidate"
# Seconds in line for a role before the client checks whether waiting still makes sense: a Delete does not
# wake clients in line (pressure 0.15), and a client of this library that died in its turn gives nothing back.
_LINE_TIMEOUT = 10.0
_LINE_TIMEOUT_OF_DELETED = 1.0
_PREFIX = "__pressure__"
_REDIS_URL = "redis://127.0.0.1:6379/0"

Result = TypeVar("Result")


class AsyncQueue:
    """A pressure queue in the Redis at `url`, used directly. Tasks may share it.

    Messages are bytes; a str is put as UTF-8. All keys begin with `prefix`. `options` are passed to
    redis-py's connections (`password`, `ssl_ca_certs`, `socket_timeout`, …). Raises ValueError for a URL that
    redis-py cannot parse, TypeError or QueueNameError for an invalid name.

    A `timeout` is in seconds; None waits for ever, 0 or less does not wait. Methods raise TypeError for a
    timeout that is not a number, and ValueError for NaN, before anything is sent. Errors of a queue are
    PressureErrors; for errors of Redis, redis-py's exceptions are raised. Nothing is retried.

    Cancellation: a cancelled method that waits has no effect, and a cancelled get puts its message back. But
    if a put or another change is in flight when it is cancelled, it may be done.
    """

    _redis_class: type[AsyncRedis] = AsyncRedis

    def __init__(
        self, name: str | bytes, url: str = _REDIS_URL, *, prefix: str | bytes = _PREFIX, **options: Any
    ) -> None:
        self._calls = QueueCalls(name, prefix)
        self._redis = self._redis_class(url, options)
        self._patient = self._redis_class(url, options, is_patient=True)

    async def create(self, bound: int = 0) -> None:
        """Create the queue; a bound of 0 means unbounded.

        Raises QueueAlreadyExistsError; QueueInUseError while a client is deleting the queue; TypeError for a
        bound that is no int, ValueError for a negative one.
        """
        await self._call(b"create", b"%d" % checked_bound(bound))

    async def exists(self) -> bool:
        """Return whether the queue exists."""
        return bool(await self._call(b"exists"))

    async def length(self) -> int:
        """Return the number of queued messages. Raises QueueDoesNotExistError."""
        return int(await self._call(b"length"))

    async def closed(self) -> bool:
        """Return whether the queue has been closed, which is for good. Raises QueueDoesNotExistError."""
        info = await self._call(b"info")
        return bool(info[2])

    async def put(self, message: str | bytes, timeout: float | None = None) -> None:
        """Put a message. Wait up to `timeout` seconds for room, and for native producers.

        Raises QueueDoesNotExistError or QueueClosedError; when the time is up, QueueFullError or
        QueueInUseError; TypeError for a message that is neither bytes nor str.
        """
        data = as_bytes(message, "a message")

        async def attempt() -> None:
            if not accepts(await self._call(b"put existing", b"", data)):
                raise QueueFullError(self._calls.printable)

        await self._repeat(attempt, PRODUCER, timeout)

    async def put_nowait(self, message: str | bytes) -> None:
        """Put a message without waiting. Raises the errors of `put`, at once."""
        await self.put(message, timeout=0)

    async def get(self, timeout: float | None = None) -> bytes:
        """Take the oldest message. Wait up to `timeout` seconds for one, and for native consumers.

        Raises QueueDoesNotExistError; QueueClosedError if the queue is closed and empty; when the time is up,
        QueueEmptyError or QueueInUseError.
        """

        async def attempt() -> bytes:
            messages: list[bytes] = await self._call(TAKE, b"1")
            if not messages:
                raise QueueEmptyError(self._calls.printable)
            return messages[0]

        return await self._repeat(attempt, CONSUMER, timeout)

    async def get_nowait(self) -> bytes:
        """Take the oldest message without waiting. Raises the errors of `get`, at once."""
        return await self.get(timeout=0)

    async def close(self, timeout: float | None = None) -> None:
        """Close the queue: queued messages can still be taken, but no more can be put.

        Wait up to `timeout` seconds for native producers. Raises QueueDoesNotExistError; QueueClosedError if
        the queue is closed already; when the time is up, QueueInUseError.
        """

        async def attempt() -> None:
            await self._call(b"close")

        await self._repeat(attempt, CLOSER, timeout)

    async def delete(self) -> None:
        """Delete the queue with all its messages. Clients that wait on it get an error.

        Wait until native clients have finished. Raises QueueDoesNotExistError.
        """
        if await self._call(b"delete") != b"begun":
            return
        try:
            for role in cycle((PRODUCER, CONSUMER)):
                await self._line_up(role, _LINE_TIMEOUT_OF_DELETED)
                with suppress(QueueInUseError):
                    await self._call(b"finish_delete")
                    return
        finally:
            # The parked tokens may belong to a queue that has been created in the meantime: give them back.
            await self._call(b"turn")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield messages, waiting for each, until the queue is closed and empty."""
        while True:
            try:
                message = await self.get()
            except QueueClosedError:
                return
            yield message

    async def disconnect(self) -> None:
        """Close the connections; the next method call opens new ones."""
        await self._redis.disconnect()
        await self._patient.disconnect()

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.disconnect()

    async def _repeat(
        self, attempt: Callable[[], Awaitable[Result]], role: RoleKeys, timeout: float | None
    ) -> Result:
        """Attempt an operation until it succeeds. When the time is up, raise the last attempt's error."""
        timeout = checked_timeout(timeout)
        end = None if timeout is None else monotonic() + timeout
        try:
            return await attempt()
        except (QueueFullError, QueueEmptyError, QueueInUseError) as error:
            if timeout is not None and timeout <= 0:
                raise
            reason: PressureError = error
        async with self._patient.pubsub() as changes:
            await self._listen(changes, role)
            stood_in_line = False
            try:
                while True:
                    while await _changed_keys(changes, 0) != ():
                        pass
                    seen = await self._patient.execute(*self._calls.look_command(role))
                    left = None if end is None else end - monotonic()
                    is_over = left is not None and left <= 0
                    if self._calls.must_line_up(seen):
                        if is_over:
                            raise reason
                        # A native client holds the role, also while it waits for the same message or room.
                        stood_in_line = True
                        await self._line_up(role, _LINE_TIMEOUT if left is None else min(left, _LINE_TIMEOUT))
                        continue
                    try:
                        return await attempt()
                    except (QueueFullError, QueueEmptyError, QueueInUseError) as error:
                        reason = error
                    if is_over:
                        raise reason
                    await self._wait_for_change(changes, role, end)
            except BaseException:
                if stood_in_line:
                    await self._call(b"turn")
                raise

    async def _line_up(self, role: RoleKeys, seconds: float) -> None:
        await self._patient.execute(*self._calls.line_up_command(role, seconds))

    async def _listen(self, changes: Any, role: RoleKeys) -> None:
        """Have a pubsub object of redis-py receive the changes of keys that matter for a role."""
        await changes.execute_command("CLIENT", "ID")
        number = await changes.parse_response()
        await changes.execute_command(*self._calls.tracking_command(number, role))
        await changes.parse_response()
        await changes.subscribe(_CHANGES)
        await changes.parse_response()

    async def _wait_for_change(self, changes: Any, role: RoleKeys, end: float | None) -> None:
        """Wait until a key that matters for a role has changed, the time is up, or a new try is due."""
        keys = self._calls.keys_for(role)
        again = monotonic() + self._calls.retry_interval
        until = again if end is None else min(again, end)
        while True:
            changed = await _changed_keys(changes, max(0.0, until - monotonic()))
            if not changed or not keys.isdisjoint(changed):
                return

    async def _call(self, name: bytes, *arguments: bytes) -> Any:
        """Call the library until it has done the operation, and return the result."""
        try:
            while True:
                found = self._calls.read(await self._reply_to(self._calls.packed(name, *arguments)))
                if isinstance(found, Done):
                    return self._calls.result_of(found)
        except QueueDoesNotExistError:
            # A native client's Delete leaves the keys that only the server and this library use.
            await self._reply_to(self._calls.packed(b"clean"))
            raise

    async def _reply_to(self, call: list[bytes]) -> Any:
        """Send a call. If it is cancelled, wait for its reply, and put back the messages that it took."""

        async def undo(reply: Any) -> None:
            undoing_call = undoing(call, reply)
            while undoing_call is not None and must_be_repeated(await self._send(undoing_call)):
                pass

        return await self._redis.settled(self._send(call), undo)

    async def _send(self, call: list[bytes]) -> Any:
        """Send a call, and load the library if the backend does not have it."""
        function, keys, arguments, loads = LIBRARY.name, self._calls.call_keys, call, _MAX_LOADS
        while True:
            try:
                return await self._redis.execute("FCALL", function, len(keys), *keys, *arguments)
            except ResponseError as error:
                if str(error).startswith("Function not found") and loads:
                    loads -= 1
                    await self._load()
                else:
                    function = function_instead(function, error)
                    arguments = [*arguments, str(error).encode()]

    async def _load(self) -> None:
        try:
            await self._redis.execute("FUNCTION", "LOAD", LIBRARY.text)
        except ResponseError as error:
            if not str(error).endswith("already exists"):
                raise


async def _changed_keys(changes: Any, seconds: float) -> Any:
    """Wait up to `seconds` for a change.

    Return the list of changed keys; None if all may have changed, () if none has changed in time.
    """
    message = await changes.get_message(timeout=seconds)
    return message["data"] if message else ()


class _BlockingQueue(AsyncQueue):
    _redis_class = BlockingRedis


class Queue(Synchronous):
    """A pressure queue in the Redis at `url`, used directly. Threads may share it.

    It has the methods of AsyncQueue, which explains the arguments, times and errors.
    """

    def __init__(
        self, name: str | bytes, url: str = _REDIS_URL, *, prefix: str | bytes = _PREFIX, **options: Any
    ) -> None:
        super().__init__(_BlockingQueue(name, url, prefix=prefix, **options))

    create = synchronous(AsyncQueue.create)
    exists = synchronous(AsyncQueue.exists)
    length = synchronous(AsyncQueue.length)
    closed = synchronous(AsyncQueue.closed)
    put = synchronous(AsyncQueue.put)
    put_nowait = synchronous(AsyncQueue.put_nowait)
    get = synchronous(AsyncQueue.get)
    get_nowait = synchronous(AsyncQueue.get_nowait)
    close = synchronous(AsyncQueue.close)
    delete = synchronous(AsyncQueue.delete)
    disconnect = synchronous(AsyncQueue.disconnect)

    def __iter__(self) -> Iterator[bytes]:
        """Yield messages, waiting for each, until the queue is closed and empty."""
        while True:
            try:
                message = self.get()
            except QueueClosedError:
                return
            yield message
