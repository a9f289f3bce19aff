"""What the clients need of redis-py: `AsyncRedis` for tasks, and `BlockingRedis` for threads."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from threading import Lock
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.retry
import redis.connection
import redis.retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from pressure_server.client.arguments import Word

Result = TypeVar("Result")


class AsyncRedis:
    """A client of redis-py with a pool of its own; see _connection_settings. Nothing is retried."""

    def __init__(self, url: str, options: Mapping[str, Any], *, is_patient: bool = False) -> None:
        in_url = redis.asyncio.connection.parse_url(url)
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        settings = _connection_settings(options, in_url, retry, is_patient=is_patient)
        # Any: redis-py's commands have no usable types.
        self._redis: Any = redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(**settings))

    @classmethod
    def alone(cls, url: str, options: Mapping[str, Any]) -> AsyncRedis:
        """Return a patient client for one request at a time, which all go over one connection."""
        return cls(url, options, is_patient=True)

    def execute(self, *words: Word | float) -> Any:
        """Return a coroutine that sends a command, and returns its reply."""
        return self._redis.execute_command(*words)

    async def execute_together(self, commands: Sequence[Sequence[Word]]) -> Any:
        """Send commands in one write, and return the list of replies; errors are among them."""
        return await self._pipeline(commands).execute(raise_on_error=False)

    def pubsub(self) -> Any:
        """Return a PubSub of redis-py, which has a connection of its own."""
        return self._redis.pubsub()

    async def disconnect(self) -> None:
        """Close the connections. The next command opens new ones."""
        await self._redis.connection_pool.disconnect()

    def deferred_disconnect(self) -> Callable[[], None]:
        """Return a function that closes the connections of this event loop, from any thread."""
        loop = asyncio.get_running_loop()

        def disconnect() -> None:
            if not loop.is_closed():
                asyncio.run_coroutine_threadsafe(self.disconnect(), loop)

        return disconnect

    @staticmethod
    def lock() -> AbstractAsyncContextManager[Any]:
        """Return a lock for those that share a client."""
        return asyncio.Lock()

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    @staticmethod
    async def shielded(call: Awaitable[Result]) -> Result:
        """Return the result of a call, which goes on if the task is cancelled."""
        return await asyncio.shield(call)

    @staticmethod
    async def settled(call: Awaitable[Result], undo: Callable[[Result], Awaitable[object]]) -> Result:
        """Return the result of a call. If the task is cancelled, let the call end, and undo its result."""
        task = asyncio.ensure_future(call)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:

            async def end() -> None:
                with suppress(redis.RedisError):
                    await undo(await task)

            ending = asyncio.ensure_future(end())
            # anyio cancels a task again at each turn of the event loop.
            while not ending.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([ending])
            raise

    def _pipeline(self, commands: Sequence[Sequence[Word]]) -> Any:
        pipeline = self._redis.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        return pipeline


class BlockingRedis(AsyncRedis):
    """The same for threads: its coroutines block, and never suspend (synchronous.py)."""

    def __init__(self, url: str, options: Mapping[str, Any], *, is_patient: bool = False) -> None:
        self._redis = open_blocking(url, options, is_patient=is_patient)

    @classmethod
    def alone(cls, url: str, options: Mapping[str, Any]) -> AsyncRedis:
        """See AsyncRedis."""
        return _OneConnection(url, options, is_patient=True)

    async def execute(self, *words: Word | float) -> Any:
        """See AsyncRedis."""
        return self._redis.execute_command(*words)

    def pubsub(self) -> Any:
        """See AsyncRedis."""
        return _Blocking(self._redis.pubsub())

    async def disconnect(self) -> None:
        """See AsyncRedis."""
        self._redis.connection_pool.disconnect()

    def deferred_disconnect(self) -> Any:
        """See AsyncRedis."""
        return self._redis.connection_pool.disconnect

    @staticmethod
    def lock() -> AbstractAsyncContextManager[Any]:
        """See AsyncRedis."""
        return _Blocking(Lock())

    @staticmethod
    async def sleep(seconds: float) -> None:
        """See AsyncRedis."""
        time.sleep(seconds)  # noqa: ASYNC251 # there is no event loop

    @staticmethod
    async def shielded(call: Awaitable[Result]) -> Result:
        """Return the result of a call: nothing cancels one."""
        return await call

    @staticmethod
    async def settled(call: Awaitable[Result], undo: Callable[[Result], Awaitable[object]]) -> Result:
        """Return the result of a call: nothing cancels one."""
        return await call


class _OneConnection(BlockingRedis):
    """A client that keeps its connection. A worker's loop calls it for each job.

    redis-py takes 20 microseconds to take a connection from its pool and to give it back.
    """

    def __init__(self, url: str, options: Mapping[str, Any], *, is_patient: bool = False) -> None:
        super().__init__(url, options, is_patient=is_patient)
        close_in_children(self)

    def abort(self) -> None:
        """Close the connection, also the copy of a forked process: this leaves the other one open."""
        if self._redis.connection is not None:
            self._redis.connection.disconnect()

    async def execute(self, *words: Word | float) -> Any:
        """See AsyncRedis."""
        self._connect()
        return self._redis.execute_command(*words)

    async def execute_together(self, commands: Sequence[Sequence[Word]]) -> Any:
        """See AsyncRedis."""
        connection = self._connect()
        connection.send_packed_command(connection.pack_commands(commands))
        return [_reply_or_error(connection) for _ in commands]

    def _connect(self) -> Any:
        """Return the connection: a new one after a fork, or if the server has closed it."""
        connection = self._redis.connection
        if connection is None or connection.pid != os.getpid():
            self._redis.connection = self._redis.connection_pool.get_connection()
            return self._redis.connection
        try:
            has_ended = connection.can_read()
        except redis.ConnectionError:
            has_ended = True
        if has_ended:
            connection.disconnect()
        return connection


class _Aborted(Protocol):
    def abort(self) -> None: ...


# Those with connections to which reservations belong.
_reserving: WeakSet[_Aborted] = WeakSet()


def close_in_children(client: _Aborted) -> None:
    """Have forked processes abort this client.

    Otherwise the server would keep the jobs of a killed worker until its child processes have ended.
    """
    _reserving.add(client)


def _close_copies() -> None:
    for client in list(_reserving):
        client.abort()


os.register_at_fork(after_in_child=_close_copies)


def _reply_or_error(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


class _Blocking(AbstractAsyncContextManager[Any]):
    """A context manager for threads as one for tasks, with its methods as coroutines. They block."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._target, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            return method(*arguments, **options)

        return call

    async def __aenter__(self) -> Any:
        self._target.__enter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        self._target.__exit__(*exception)


def open_blocking(url: str, options: Mapping[str, Any], *, is_patient: bool = False) -> Any:
    """Return redis-py's client for threads with a pool of its own; see _connection_settings."""
    in_url = redis.connection.parse_url(url)  # type: ignore[no-untyped-call] # it has none
    retry = redis.retry.Retry(NoBackoff(), 0)
    settings = _connection_settings(options, in_url, retry, is_patient=is_patient)
    return redis.Redis.from_pool(redis.ConnectionPool(**settings))


def _connection_settings(
    options: Mapping[str, Any], in_url: Mapping[str, Any], retry: Any, *, is_patient: bool
) -> dict[str, Any]:
    """Return the arguments for a connection pool of redis-py.

    Precedence: what the client needs, then the URL, then `options`. `retry` is a Retry of redis-py that
    retries nothing. A patient connection waits for a reply as long as it takes.
    """
    settings = {
        **options,
        **in_url,
        "decode_responses": False,
        # In RESP2, reports of changed keys are ordinary messages; in RESP3, redis-py handles them itself.
        "protocol": 2,
        # A command that was sent may have been done.
        "retry": retry,
        # Each waiting thread or task has a connection; redis-py would refuse the 101st.
        "max_connections": 1 << 31,
    }
    if is_patient:
        settings["socket_timeout"] = None
        if "path" not in settings:
            # TCP finds out if the server's machine is gone; redis-py asks it to from its version 8 on.
            settings.setdefault("socket_keepalive", True)
    return settings
