"""The asyncio client: it executes the steps of steps.py with redis-py's asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

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
from pressure_server.client.steps import Call, Command, Listen, News, QueueSteps, Result, Step, Steps, undoing
from pressure_server.errors import QueueClosedError


class AsyncQueue:
    """A `Queue` whose methods are coroutines, with the same arguments and errors. Tasks may share it.

    A cancelled method that waits has no effect, and a cancelled get puts its message back. But if a put or
    another change is in flight when it is cancelled, it may be done.
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
        own = settings(options, parse_url(url), Retry(NoBackoff(), 0))
        # Any: redis-py's commands have no usable types.
        self._redis: Any = redis.asyncio.Redis(connection_pool=redis.asyncio.ConnectionPool(**own))
        own["socket_timeout"] = None
        self._patient: Any = redis.asyncio.Redis(connection_pool=redis.asyncio.ConnectionPool(**own))

    async def create(self, bound: int = 0) -> None:
        """Create the queue; see Queue.create."""
        await self._do(self._steps.create(bound))

    async def exists(self) -> bool:
        """Return whether the queue exists."""
        return await self._do(self._steps.exists())

    async def length(self) -> int:
        """Return the number of queued messages; see Queue.length."""
        return await self._do(self._steps.length())

    async def closed(self) -> bool:
        """Return whether the queue has been closed; see Queue.closed."""
        return await self._do(self._steps.closed())

    async def put(self, message: str | bytes, timeout: float | None = None) -> None:
        """Put a message; see Queue.put."""
        await self._do(self._steps.put(message, timeout))

    async def put_nowait(self, message: str | bytes) -> None:
        """Put a message without waiting; see Queue.put_nowait."""
        await self.put(message, timeout=0)

    async def get(self, timeout: float | None = None) -> bytes:
        """Take the oldest message; see Queue.get."""
        return await self._do(self._steps.get(timeout))

    async def get_nowait(self) -> bytes:
        """Take the oldest message without waiting; see Queue.get_nowait."""
        return await self.get(timeout=0)

    async def close(self, timeout: float | None = None) -> None:
        """Close the queue; see Queue.close."""
        await self._do(self._steps.close(timeout))

    async def delete(self) -> None:
        """Delete the queue with all its messages; see Queue.delete."""
        await self._do(self._steps.delete())

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
        await self._redis.connection_pool.disconnect()
        await self._patient.connection_pool.disconnect()

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.disconnect()

    async def _do(self, steps: Steps[Result]) -> Result:
        ears = self._patient.pubsub()
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._answer(step, ears)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            await ears.aclose()

    async def _answer(self, step: Step, ears: Any) -> Any:
        match step:
            case Call():
                call = asyncio.ensure_future(self._call(step))
                try:
                    return await asyncio.shield(call)
                except asyncio.CancelledError:
                    with suppress(redis.RedisError):
                        undo = undoing(step, await call)
                        if undo is not None:
                            await self._call(undo)
                    raise
            case Command(words):
                return await self._patient.execute_command(*words)
            case Listen(prefixes):
                await ears.execute_command("CLIENT", "ID")
                number = await ears.parse_response()
                await ears.execute_command(*tracking(number, prefixes))
                await ears.parse_response()
                await ears.subscribe(CHANGES)
                return await ears.parse_response()
            case News(seconds):
                message = await ears.get_message(timeout=seconds)
                return message["data"] if message else ()

    async def _call(self, call: Call) -> Any:
        """Call the library, and load it if the backend does not have it."""
        function, arguments, loads = LIBRARY.name, call.arguments, MAX_LOADS
        while True:
            try:
                return await self._redis.execute_command(
                    "FCALL", function, len(call.keys), *call.keys, *arguments
                )
            except ResponseError as error:
                if is_unknown_function(error) and loads:
                    loads -= 1
                    await self._load()
                else:
                    function = function_instead(function, error)
                    arguments = [*arguments, str(error).encode()]

    async def _load(self) -> None:
        try:
            await self._redis.execute_command("FUNCTION", "LOAD", LIBRARY.text)
        except ResponseError as error:
            if not str(error).endswith("already exists"):
                raise
