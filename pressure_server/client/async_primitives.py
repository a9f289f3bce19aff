"""What the asyncio clients do otherwise than the synchronous ones, which have sync_primitives.py."""

from __future__ import annotations

import asyncio
from asyncio import Lock, sleep
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from pressure_server.client.arguments import connection_settings

__all__ = ["Lock", "Pending", "deferred_disconnect", "open_pool", "pending", "settled", "sleep"]

Result = TypeVar("Result")
Entered = TypeVar("Entered", bound=AbstractAsyncContextManager[Any])


# Any: redis-py's commands have no usable types.
def open_pool(url: str, options: Mapping[str, Any], *, is_patient: bool = False) -> Any:
    """Return a client of redis-py with a pool of its own; see connection_settings."""
    settings = connection_settings(options, parse_url(url), Retry(NoBackoff(), 0), is_patient=is_patient)
    return redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(**settings))


async def settled(call: Awaitable[Result], undo: Callable[[Result], Awaitable[object]]) -> Result:
    """Return the result of a call. If the task is cancelled, let the call end, and undo its result."""
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(redis.RedisError):
            await undo(await task)
        raise


def deferred_disconnect(client: Any) -> Callable[[], None]:
    """Return a function that closes the connections of a client of this event loop, from any thread."""
    loop = asyncio.get_running_loop()

    def disconnect() -> None:
        if not loop.is_closed():
            asyncio.run_coroutine_threadsafe(client.connection_pool.disconnect(), loop)

    return disconnect


class Pending(Coroutine[Any, Any, Entered]):
    """A coroutine that is also a context manager for its result, which is one itself."""

    def __init__(self, coroutine: Coroutine[Any, Any, Entered]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Entered]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        """See Coroutine."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """See Coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """See Coroutine."""
        self._coroutine.close()

    async def __aenter__(self) -> Entered:
        self._result = await self._coroutine
        return self._result

    async def __aexit__(self, *exception: Any) -> None:
        await self._result.__aexit__(*exception)


pending = Pending
