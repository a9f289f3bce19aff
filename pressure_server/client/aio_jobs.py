"""The asyncio job client: it sends the requests of job_requests.py with redis-py's asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any

import redis.asyncio

from pressure_server.client.aio_connections import AsyncConnections
from pressure_server.client.job_requests import (
    JobInfo,
    JobNotReservedError,
    JobRequests,
    PeekedJob,
    Reserved,
    ReservedJob,
)
from pressure_server.client.requests import SERVER_URL, Request
from pressure_server.errors import PressureError


class AsyncJobQueue:
    """A `JobQueue` whose methods are coroutines, with the same arguments and errors. Tasks may share it.

    A job that a cancelled `reserve` was given returns to the queue. A cancelled put may be done.
    """

    def __init__(self, name: str | bytes, url: str = SERVER_URL, **options: Any) -> None:
        self._requests = JobRequests(name)
        self._connections = AsyncConnections(url, options)

    async def create(
        self,
        bound: int = 0,
        max_deliveries: int | None = None,
        dead_letter: str | bytes | None = None,
        unique: str | None = None,
    ) -> None:
        """Create the queue; see JobQueue.create."""
        await self._connections.do(self._requests.create(bound, max_deliveries, dead_letter, unique))

    async def put(
        self,
        message: str | bytes,
        *,
        priority: int | None = None,
        delay: float = 0,
        ttr: float | None = None,
        unique: bool = False,
        unique_by: str | bytes | None = None,
        timeout: float | None = None,
    ) -> int:
        """Put a job, and return its id; see JobQueue.put."""
        return await self._connections.do(
            self._requests.put(message, priority, delay, ttr, unique, unique_by, timeout)
        )

    def reserve(
        self, timeout: float | None = None, ttr: float | None = None, token: str | bytes | None = None
    ) -> ComingJob:
        """Reserve the best job, by `async with` or `await`; see JobQueue.reserve."""
        return ComingJob(self._reserve(self._requests.reserve(timeout, ttr, token), token))

    async def resume(self, job_id: int, token: str | bytes) -> AsyncJob:
        """Return the job that was reserved with this token; see JobQueue.resume."""
        await self._connections.do(self._requests.touch(job_id, token))
        reserved = self._requests.resumed(job_id, await self.peek(job_id), await self.job(job_id))
        return AsyncJob(self, reserved, token, None)

    async def peek(self, which: int | str) -> PeekedJob | None:
        """Return a job without reserving it; see JobQueue.peek."""
        return await self._connections.do(self._requests.peek(which))

    async def job(self, job_id: int) -> JobInfo | None:
        """Return the state and the history of a job; see JobQueue.job."""
        return await self._connections.do(self._requests.job(job_id))

    async def kick(self, count: int = 1) -> int:
        """Make up to `count` buried jobs ready; see JobQueue.kick."""
        return await self._connections.do(self._requests.kick(count))

    async def pause(self, seconds: float) -> None:
        """Have nobody reserve jobs for so many seconds; 0 ends the pause."""
        await self._connections.do(self._requests.pause(seconds))

    async def length(self) -> int:
        """Return the number of jobs that are ready or delayed; see JobQueue.length."""
        return await self._connections.do(self._requests.length())

    async def info(self) -> dict[str, Any]:
        """Return the fields of PRESSURE.INFO; see JobQueue.info."""
        return await self._connections.do(self._requests.info())

    async def disconnect(self) -> None:
        """Close the connections; see JobQueue.disconnect."""
        await self._connections.disconnect()

    async def __aenter__(self) -> AsyncJobQueue:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.disconnect()

    async def _reserve(self, request: Request[Reserved], token: str | bytes | None) -> AsyncJob:
        if token is not None:
            return AsyncJob(self, await self._connections.do(request), token, None)
        reserved, client = await self._connections.do_alone(request)
        return AsyncJob(self, reserved, None, client)


class AsyncJob(ReservedJob):
    """A reserved job whose methods are coroutines; see Job."""

    def __init__(
        self, queue: AsyncJobQueue, reserved: Reserved, token: str | bytes | None, client: Any | None
    ) -> None:
        super().__init__(queue._requests, reserved, token)
        self._jobs = queue
        # The client with the connection to which the reservation belongs; None if it belongs to a token.
        self._client = client
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    async def ack(self) -> None:
        """Delete the job: it is done; see Job.ack."""
        await self._happen(self._requests.ack(self.id, self.token), ends=True)

    async def release(self, priority: int | None = None, delay: float = 0) -> None:
        """Give the job back; see Job.release."""
        await self._happen(self._requests.release(self.id, self.token, priority, delay), ends=True)

    async def bury(self, priority: int | None = None) -> None:
        """Set the job aside until it is kicked."""
        await self._happen(self._requests.bury(self.id, self.token, priority), ends=True)

    async def touch(self) -> None:
        """Have the time to run begin again."""
        await self._happen(self._requests.touch(self.id, self.token), ends=False)

    async def __aenter__(self) -> AsyncJob:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        try:
            if self._is_reserved and kind is None:
                await self.ack()
            elif self._is_reserved:
                # The block's error is raised. If the release fails, the end of the connection releases it.
                with suppress(PressureError, redis.RedisError):
                    await self.release()
        finally:
            await self._give_up()

    def __del__(self) -> None:
        # Not after a failed __init__, and silent while the interpreter or the loop ends.
        with suppress(Exception):
            if self._is_reserved and self._client is not None and not self._loop.is_closed():
                disconnecting = self._client.connection_pool.disconnect()
                asyncio.run_coroutine_threadsafe(disconnecting, self._loop)

    async def _happen(self, request: Request[None], *, ends: bool) -> None:
        async with self._lock:
            self._check()
            try:
                await self._jobs._connections.do_on(self._client, request)
            except JobNotReservedError:
                self._end()
                raise
            if ends:
                self._end()

    def _end(self) -> None:
        self._is_reserved = False
        if self._client is not None:
            self._jobs._connections.give_back(self._client)

    async def _give_up(self) -> None:
        """Close the connection of a job that has not been ended: the job returns to the queue."""
        if self._is_reserved and self._client is not None:
            self._is_reserved = False
            await self._client.connection_pool.disconnect()


class ComingJob(Coroutine[Any, Any, AsyncJob]):
    """A job that will be reserved: a coroutine, and a context manager for the job."""

    def __init__(self, reserving: Coroutine[Any, Any, AsyncJob]) -> None:
        self._reserving = reserving

    def __await__(self) -> Generator[Any, Any, AsyncJob]:
        return self._reserving.__await__()

    def send(self, value: Any) -> Any:
        """See Coroutine."""
        return self._reserving.send(value)

    def throw(self, *error: Any) -> Any:
        """See Coroutine."""
        return self._reserving.throw(*error)

    def close(self) -> None:
        """See Coroutine."""
        self._reserving.close()

    async def __aenter__(self) -> AsyncJob:
        self._job = await self._reserving
        return self._job

    async def __aexit__(self, *exception: Any) -> None:
        await self._job.__aexit__(*exception)
