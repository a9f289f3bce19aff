"""The clients of the jobs of a queue. docs/guides/job-client.md explains the use.

A reservation belongs to the connection that made it, or to a token.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import fields
from typing import Any, TypeVar

import redis
from redis.exceptions import ResponseError

from pressure_server.client.arguments import (
    Word,
    as_bytes,
    checked_bound,
    checked_choice,
    checked_id,
    checked_number,
    priority_words,
    room_words,
    seconds_word,
    ttr_words,
    wait_words,
)
from pressure_server.client.connections import SERVER_URL, AsyncServerQueue, ServerQueue
from pressure_server.client.redis_io import AsyncRedis, BlockingRedis
from pressure_server.client.replies import (
    JobInfo,
    JobNotReservedError,
    PeekedJob,
    QueueEmptyError,
    Reservation,
    described,
    error_of,
)
from pressure_server.client.synchronous import Synchronous, run, synchronous
from pressure_server.errors import PressureError

Entered = TypeVar("Entered", bound=AbstractAsyncContextManager[Any])

_logger = logging.getLogger(__name__)


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


class AsyncJobQueue(AsyncServerQueue):
    """The jobs of one queue, through the pressure-server at `url`. Tasks may share it.

    `options` are passed to redis-py's connections (`password`, `ssl_ca_certs`, `socket_timeout`, …). Raises
    ValueError for a URL that redis-py cannot parse, TypeError or QueueNameError for an invalid name.

    Times are in seconds. Invalid arguments raise TypeError or ValueError, before anything is sent. Errors of
    the server are PressureErrors; if the connection breaks, redis-py's exceptions are raised. Nothing is
    retried.

    Cancellation: a job that a cancelled `reserve` was given returns to the queue. A cancelled put, and a
    cancelled command of a job, may be done.
    """

    def __init__(self, name: str | bytes, url: str = SERVER_URL, **options: Any) -> None:
        super().__init__(name, url, options)
        self._name = name

    async def create(
        self,
        bound: int = 0,
        max_deliveries: int | None = None,
        dead_letter: str | bytes | None = None,
        unique: str | None = None,
    ) -> None:
        """Create the queue, of the type jobs; a bound of 0 means unbounded.

        A job that returns after `max_deliveries` reservations goes to the queue `dead_letter`; without one it
        is buried. With `unique`, an equal job is not put: "queued" compares with jobs that are ready or
        delayed, "unfinished" also with those that are reserved or buried. Raises QueueAlreadyExistsError.
        """
        words: list[Word] = ["BOUND", checked_bound(bound), "TYPE", "jobs"]
        if max_deliveries is not None:
            words += ["MAX-DELIVERIES", checked_number(max_deliveries, "a limit of deliveries", least=1)]
        if dead_letter is not None:
            words += ["DEAD-LETTER", as_bytes(dead_letter, "a queue's name")]
        if unique is not None:
            words += ["UNIQUE", checked_choice(unique, "unique", "queued", "unfinished", other="None")]
        await self._do("CREATE", *words)

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
        """Put a job, and return its id. The lowest `priority` is reserved first; the default is 1024.

        The job is ready after `delay` seconds. A reservation of it lasts `ttr` seconds: by default 60; for
        ever if it is 0. With `unique`, nothing is put if an equal job is queued: its id is returned. In a
        queue that was created with `unique` this is always so; `unique_by` is then compared instead of the
        message.

        If the queue is full, wait up to `timeout` seconds for room; 0 or less does not wait; without one, the
        queue's overflow setting applies. Raises QueueDoesNotExistError, QueueClosedError or QueueFullError.
        """
        # With a delay, even of 0, the message is a job, whatever the type of the queue was.
        words: list[Word] = [as_bytes(message, "a message"), "DELAY", seconds_word(delay, "a delay")]
        words += priority_words(priority) + ttr_words(ttr)
        if unique:
            words.append("UNIQUE")
        if unique_by is not None:
            words += ["UNIQUE-BY", as_bytes(unique_by, "a name")]
        return int(await self._do("PUT", *words, *room_words(timeout), waits=True))

    def reserve(
        self, timeout: float | None = None, ttr: float | None = None, token: str | bytes | None = None
    ) -> Pending[AsyncJob]:
        """Reserve the best job: the lowest priority, then the oldest. `async with` acknowledges it.

        Wait up to `timeout` seconds for one; None waits for ever, 0 or less does not wait. `ttr` replaces the
        job's own time to run.

        The reservation ends with this process, or with its connection. One with a `token` outlives both: it
        belongs to any client that knows the token (see `resume`), until its time to run is up.

        Raises QueueEmptyError if no job has come in time; QueueClosedError if none can come any more.
        """
        words = [*wait_words(timeout), *ttr_words(ttr)]
        if token is not None:
            words += ["DETACHED", as_bytes(token, "a token")]
        return Pending(self._reserve(words, token))

    async def jobs(self, timeout: float | None = None, ttr: float | None = None) -> AsyncIterator[AsyncJob]:
        """Reserve one job after the other: `async for job in queue.jobs()`.

        The request for the next job acknowledges the one before, unless the body has ended it. If the body
        raises or leaves the loop, its job is released. If another client has reserved the job meanwhile, a
        warning is logged, and the loop goes on.

        The loop ends when no job has come for `timeout` seconds; None waits for ever. `ttr` is as for
        `reserve`. Raises QueueClosedError if no job can come any more.
        """
        words = [*wait_words(timeout), *ttr_words(ttr)]
        job: AsyncJob | None = None
        try:
            with suppress(QueueEmptyError):
                while True:
                    job = await self._next(job, words)
                    yield job
        finally:
            if job is not None:
                await job.__aexit__(GeneratorExit)

    async def resume(self, job_id: int, token: str | bytes) -> AsyncJob:
        """Return the job that was reserved with this token, perhaps by another process.

        Its time to run begins again. Raises JobNotReservedError if the token has no such reservation.
        """
        owner = as_bytes(token, "a token")
        touched = await self._do("TOUCH", checked_id(job_id, "a job"), "TOKEN", owner)
        # The job may end after it has been touched.
        found = await self.peek(job_id) if touched else None
        about = await self.job(job_id) if touched else None
        if found is None or about is None:
            raise JobNotReservedError(self._printable, job_id)
        return AsyncJob(self, Reservation(job_id, found.message, about.reserves), token, None)

    async def peek(self, which: int | str) -> PeekedJob | None:
        """Return a job without reserving it: by its id, or the next one that is ready, delayed or buried."""
        if isinstance(which, str):
            checked_choice(which, "a state", "ready", "delayed", "buried")
        else:
            checked_id(which, "a job")
        reply = await self._do("PEEK", which)
        return reply and PeekedJob(*reply)

    async def job(self, job_id: int) -> JobInfo | None:
        """Return the state and the history of a job; None if there is none with that id."""
        reply = await self._do("JOB", checked_id(job_id, "a job"))
        if reply is None:
            return None
        found = described(reply)
        return JobInfo(**{field.name: found[field.name] for field in fields(JobInfo)})

    async def kick(self, count: int = 1) -> int:
        """Make up to `count` buried jobs ready; if none are buried, delayed jobs. Return how many."""
        return int(await self._do("KICK", checked_number(count, "a count")))

    async def pause(self, seconds: float) -> None:
        """Let nobody reserve jobs for this many seconds. If `seconds` is 0, end the pause."""
        await self._do("PAUSE", seconds_word(seconds, "a pause"))

    async def _reserve(self, words: list[Word], token: str | bytes | None) -> AsyncJob:
        reply, client = await self._connections.do_alone("PRESSURE.RESERVE", self._key, *words)
        return self._reserved(reply, token, client)

    async def _next(self, done: AsyncJob | None, words: list[Word]) -> AsyncJob:
        """Reserve a job, and acknowledge the one before if it is reserved, in one request."""
        if done is None or not await done._end():
            return await self._reserve(words, None)
        client: Any = done._client
        acknowledged, reply = await self._connections.do_together(
            client, ("PRESSURE.ACK", self._key, done.id), ("PRESSURE.RESERVE", self._key, *words)
        )
        if isinstance(acknowledged, ResponseError):
            # Nobody knows the job's state, so both jobs return to the queue.
            await client.disconnect()
            raise error_of(acknowledged)
        if not acknowledged:
            _logger.warning("Acknowledgement failed: %s", JobNotReservedError(self._printable, done.id))
        if isinstance(reply, ResponseError):
            self._connections.give_back(client)
            raise error_of(reply)
        return self._reserved(reply, None, client)

    def _reserved(self, reply: Any, token: str | bytes | None, client: AsyncRedis) -> AsyncJob:
        if reply is None or token is not None:
            # No reservation belongs to this connection.
            self._connections.give_back(client)
        if reply is None:
            raise QueueEmptyError(self._printable)
        return AsyncJob(self, Reservation(*reply[1:4]), token, client if token is None else None)


class AsyncJob:
    """A reserved job: `id`, `message`, `queue`, `token`, and `reserves`, how often it has been reserved.

    As a context manager: at the end of the block the job is acknowledged, or released if the block raises.
    Nothing happens then to a job that the block has ended itself: by `ack`, `release` or `bury`.

    Another task may call `touch`. The methods raise JobNotReservedError if the job has been ended, or its
    time to run is up and another client has reserved it.
    """

    def __init__(
        self,
        queue: AsyncJobQueue,
        reservation: Reservation,
        token: str | bytes | None,
        client: AsyncRedis | None,
    ) -> None:
        self.queue = queue._name
        self.id, self.message, self.reserves = reservation
        self.token = token
        self._jobs = queue
        self._is_reserved = True
        # The client with the connection to which the reservation belongs; None if it belongs to a token.
        self._client = client
        self._disconnect_later = client.deferred_disconnect() if client is not None else None
        self._lock = queue._redis_class.lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of queue '{self._jobs._printable}'>"

    async def ack(self) -> None:
        """Delete the job: it is done. So it is if its time is up, but nobody else has reserved it yet."""
        await self._do("ACK", ends=True)

    async def release(self, priority: int | None = None, delay: float = 0) -> None:
        """Give the job back: it is ready again after `delay` seconds, with this priority if one is given."""
        words: list[Word] = ["DELAY", seconds_word(delay, "a delay")] if delay != 0 else []
        await self._do("RELEASE", *words, *priority_words(priority), ends=True)

    async def bury(self, priority: int | None = None) -> None:
        """Set the job aside until it is kicked."""
        await self._do("BURY", *priority_words(priority), ends=True)

    async def touch(self) -> None:
        """Have the time to run begin again."""
        await self._do("TOUCH", ends=False)

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
            if self._is_reserved and self._client is not None:
                # The job has not been ended. With its connection closed, it returns to the queue.
                self._is_reserved = False
                await self._client.disconnect()

    def __del__(self) -> None:
        # Not after a failed __init__, and silent while the interpreter or the loop ends.
        with suppress(Exception):
            if self._is_reserved and self._disconnect_later is not None:
                self._disconnect_later()

    async def _do(self, name: str, *words: Word, ends: bool) -> None:
        # A command that is cancelled would end the connection, and with it the reservation.
        await self._jobs._redis_class.shielded(self._send(name, *words, ends=ends))

    async def _send(self, name: str, *words: Word, ends: bool) -> None:
        owner: list[Word] = [] if self.token is None else ["TOKEN", as_bytes(self.token, "a token")]
        async with self._lock:
            command = (f"PRESSURE.{name}", self._jobs._key, self.id, *words, *owner)
            is_ours = self._is_reserved and await self._jobs._connections.do_on(self._client, *command) != 0
            if self._is_reserved and (ends or not is_ours):
                self._is_reserved = False
                if self._client is not None:
                    self._jobs._connections.give_back(self._client)
            if not is_ours:
                raise JobNotReservedError(self._jobs._printable, self.id)

    async def _end(self) -> bool:
        """Return whether the job is reserved. Its methods raise JobNotReservedError from now on."""
        async with self._lock:
            is_reserved, self._is_reserved = self._is_reserved, False
            return is_reserved


class _BlockingJobQueue(AsyncJobQueue):
    _redis_class = BlockingRedis


class JobQueue(ServerQueue):
    """The jobs of one queue, through the pressure-server at `url`. Threads may share it.

    AsyncJobQueue explains the options, times and errors.
    """

    def __init__(self, name: str | bytes, url: str = SERVER_URL, **options: Any) -> None:
        super().__init__(_BlockingJobQueue(name, url, **options))

    create = synchronous(AsyncJobQueue.create)
    put = synchronous(AsyncJobQueue.put)
    peek = synchronous(AsyncJobQueue.peek)
    job = synchronous(AsyncJobQueue.job)
    kick = synchronous(AsyncJobQueue.kick)
    pause = synchronous(AsyncJobQueue.pause)

    def reserve(
        self, timeout: float | None = None, ttr: float | None = None, token: str | bytes | None = None
    ) -> Job:
        """Reserve the best job: the lowest priority, then the oldest. `with` acknowledges it.

        Wait up to `timeout` seconds for one; None waits for ever, 0 or less does not wait. `ttr` replaces the
        job's own time to run.

        The reservation ends with this process, or with its connection. One with a `token` outlives both: it
        belongs to any client that knows the token (see `resume`), until its time to run is up.

        Raises QueueEmptyError if no job has come in time; QueueClosedError if none can come any more.
        """
        return Job(run(self._target.reserve(timeout, ttr, token)))

    def jobs(self, timeout: float | None = None, ttr: float | None = None) -> Iterator[Job]:
        """Reserve one job after the other: `for job in queue.jobs()`.

        The request for the next job acknowledges the one before, unless the body has ended it. If the body
        raises or leaves the loop, its job is released. If another client has reserved the job meanwhile, a
        warning is logged, and the loop goes on.

        The loop ends when no job has come for `timeout` seconds; None waits for ever. `ttr` is as for
        `reserve`. Raises QueueClosedError if no job can come any more.
        """
        words = [*wait_words(timeout), *ttr_words(ttr)]
        job: AsyncJob | None = None
        try:
            with suppress(QueueEmptyError):
                while True:
                    job = run(self._target._next(job, words))
                    yield Job(job)
        finally:
            if job is not None:
                run(job.__aexit__(GeneratorExit))

    def resume(self, job_id: int, token: str | bytes) -> Job:
        """Return the job that was reserved with this token, perhaps by another process.

        Its time to run begins again. Raises JobNotReservedError if the token has no such reservation.
        """
        return Job(run(self._target.resume(job_id, token)))


class Job(Synchronous):
    """A reserved job, as AsyncJob explains it. Another thread may call `touch`."""

    def __init__(self, job: AsyncJob) -> None:
        super().__init__(job)
        self.id, self.message, self.reserves = job.id, job.message, job.reserves
        self.queue, self.token = job.queue, job.token

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of queue '{self._target._jobs._printable}'>"

    ack = synchronous(AsyncJob.ack)
    release = synchronous(AsyncJob.release)
    bury = synchronous(AsyncJob.bury)
    touch = synchronous(AsyncJob.touch)
