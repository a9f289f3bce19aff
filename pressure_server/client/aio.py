"""The asyncio client: does the steps of steps.py with redis-py, and waits as a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError

from pressure_server.client.connecting import CHANGES, DEFAULT_URL, DIGEST, SCRIPT, settings, tracking
from pressure_server.client.steps import Call, Command, Listen, News, QueueSteps, Result, Step, Steps, undoing
from pressure_server.errors import QueueClosedError


class AsyncQueue:
    """A `Queue` whose methods are coroutines. Tasks may share it; it takes and raises what a `Queue` does.

    Where a method that waits is cancelled, it does not happen; a put that is under way then may.
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
        # redis-py does not say what its commands return.
        self._redis: Any = redis.asyncio.Redis(connection_pool=redis.asyncio.ConnectionPool(**own))
        own["socket_timeout"] = None
        self._patient: Any = redis.asyncio.Redis(connection_pool=redis.asyncio.ConnectionPool(**own))

    async def create(self, bound: int = 0) -> None:
        """As Queue.create."""
        await self._do(self._steps.create(bound))

    async def exists(self) -> bool:
        """As Queue.exists."""
        return await self._do(self._steps.exists())

    async def length(self) -> int:
        """As Queue.length."""
        return await self._do(self._steps.length())

    async def closed(self) -> bool:
        """As Queue.closed."""
        return await self._do(self._steps.closed())

    async def put(self, message: str | bytes, timeout: float | None = None) -> None:
        """As Queue.put."""
        await self._do(self._steps.put(message, timeout))

    async def put_nowait(self, message: str | bytes) -> None:
        """As Queue.put_nowait."""
        await self.put(message, timeout=0)

    async def get(self, timeout: float | None = None) -> bytes:
        """As Queue.get."""
        return await self._do(self._steps.get(timeout))

    async def get_nowait(self) -> bytes:
        """As Queue.get_nowait."""
        return await self.get(timeout=0)

    async def close(self, timeout: float | None = None) -> None:
        """As Queue.close."""
        await self._do(self._steps.close(timeout))

    async def delete(self) -> None:
        """As Queue.delete."""
        await self._do(self._steps.delete())

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Take messages, waiting for each, until the queue is closed and empty."""
        while True:
            try:
                message = await self.get()
            except QueueClosedError:
                return
            yield message

    async def disconnect(self) -> None:
        """Close the connections; the next use opens new ones."""
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
        try:
            return await self._redis.execute_command("EVALSHA", DIGEST, 1, call.base, *call.arguments)
        except NoScriptError:
            return await self._redis.execute_command("EVAL", SCRIPT, 1, call.base, *call.arguments)
