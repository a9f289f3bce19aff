"""The synchronous job client: it sends the requests of job_requests.py with redis-py."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import Any

import redis

from pressure_server.client.job_requests import (
    JobInfo,
    JobNotReservedError,
    JobRequests,
    PeekedJob,
    Reserved,
    ReservedJob,
)
from pressure_server.client.requests import SERVER_URL, Request
from pressure_server.client.sync_connections import Connections
from pressure_server.errors import PressureError


class JobQueue:
    """The jobs of one queue, through the pressure-server at `url`. Threads may share it.

    `options` are those of a redis-py connection (`password`, `ssl_ca_certs`, `socket_timeout`, …). Raises
    ValueError for a URL that redis-py cannot parse, TypeError or QueueNameError for an invalid name.

    Times are in seconds. Invalid arguments raise TypeError or ValueError, before anything is sent. Errors of
    the server are PressureErrors; errors of the connection are those of redis-py. Nothing is retried.
    """

    def __init__(self, name: str | bytes, url: str = SERVER_URL, **options: Any) -> None:
        self._requests = JobRequests(name)
        self._connections = Connections(url, options)

    def create(
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
        self._connections.do(self._requests.create(bound, max_deliveries, dead_letter, unique))

    def put(
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
        return self._connections.do(
            self._requests.put(message, priority, delay, ttr, unique, unique_by, timeout)
        )

    def reserve(
        self, timeout: float | None = None, ttr: float | None = None, token: str | bytes | None = None
    ) -> Job:
        """Reserve the best job: the lowest priority, then the oldest. `with` acknowledges it; see Job.

        Wait up to `timeout` seconds for one; None waits for ever, 0 or less does not wait. `ttr` replaces the
        job's own time to run.

        The reservation ends with this process, or with its connection. One with a `token` outlives both: it
        belongs to any client that knows the token (see `resume`), until its time to run is up.

        Raises QueueEmptyError if no job has come in time; QueueClosedError if none can come any more.
        """
        request = self._requests.reserve(timeout, ttr, token)
        if token is not None:
            return Job(self, self._connections.do(request), token, None)
        reserved, client = self._connections.do_alone(request)
        return Job(self, reserved, None, client)

    def resume(self, job_id: int, token: str | bytes) -> Job:
        """Return the job that was reserved with this token, perhaps by another process.

        Its time to run begins again. Raises JobNotReservedError if the token has no such reservation.
        """
        self._connections.do(self._requests.touch(job_id, token))
        reserved = self._requests.resumed(job_id, self.peek(job_id), self.job(job_id))
        return Job(self, reserved, token, None)

    def peek(self, which: int | str) -> PeekedJob | None:
        """Return a job without reserving it: by its id, or the next one that is ready, delayed or buried."""
        return self._connections.do(self._requests.peek(which))

    def job(self, job_id: int) -> JobInfo | None:
        """Return the state and the history of a job; None if there is none with that id."""
        return self._connections.do(self._requests.job(job_id))

    def kick(self, count: int = 1) -> int:
        """Make up to `count` buried jobs ready; if none are buried, delayed jobs. Return how many."""
        return self._connections.do(self._requests.kick(count))

    def pause(self, seconds: float) -> None:
        """Have nobody reserve jobs for so many seconds; 0 ends the pause."""
        self._connections.do(self._requests.pause(seconds))

    def length(self) -> int:
        """Return the number of jobs that are ready or delayed. Raises QueueDoesNotExistError."""
        return self._connections.do(self._requests.length())

    def info(self) -> dict[str, Any]:
        """Return the fields of PRESSURE.INFO. Raises QueueDoesNotExistError."""
        return self._connections.do(self._requests.info())

    def disconnect(self) -> None:
        """Close the connections: jobs that are reserved, except by a token, return to the queue.

        The next method call opens new connections.
        """
        self._connections.disconnect()

    def __enter__(self) -> JobQueue:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.disconnect()


class Job(ReservedJob):
    """A reserved job: `id`, `message`, `queue`, `token`, and `reserves`, how often it has been reserved.

    As a context manager: at the end of the block the job is acknowledged, or released if the block raises.
    Nothing happens then to a job that the block has ended itself: by `ack`, `release` or `bury`.

    Another thread may call `touch`. The methods raise JobNotReservedError if the job has been ended, or its
    time to run is up and another client has reserved it.
    """

    def __init__(
        self, queue: JobQueue, reserved: Reserved, token: str | bytes | None, client: Any | None
    ) -> None:
        super().__init__(queue._requests, reserved, token)
        self._jobs = queue
        # The client with the connection to which the reservation belongs; None if it belongs to a token.
        self._client = client
        self._lock = Lock()

    def ack(self) -> None:
        """Delete the job: it is done. So it is if its time is up, but nobody else has reserved it yet."""
        self._happen(self._requests.ack(self.id, self.token), ends=True)

    def release(self, priority: int | None = None, delay: float = 0) -> None:
        """Give the job back: it is ready again after `delay` seconds, with this priority if one is given."""
        self._happen(self._requests.release(self.id, self.token, priority, delay), ends=True)

    def bury(self, priority: int | None = None) -> None:
        """Set the job aside until it is kicked."""
        self._happen(self._requests.bury(self.id, self.token, priority), ends=True)

    def touch(self) -> None:
        """Have the time to run begin again."""
        self._happen(self._requests.touch(self.id, self.token), ends=False)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        try:
            if self._is_reserved and kind is None:
                self.ack()
            elif self._is_reserved:
                # The block's error is raised. If the release fails, the end of the connection releases it.
                with suppress(PressureError, redis.RedisError):
                    self.release()
        finally:
            self._give_up()

    def __del__(self) -> None:
        # Not after a failed __init__, and silent while the interpreter ends.
        with suppress(Exception):
            self._give_up()

    def _happen(self, request: Request[None], *, ends: bool) -> None:
        with self._lock:
            self._check()
            try:
                self._jobs._connections.do_on(self._client, request)
            except JobNotReservedError:
                self._end()
                raise
            if ends:
                self._end()

    def _end(self) -> None:
        self._is_reserved = False
        if self._client is not None:
            self._jobs._connections.give_back(self._client)

    def _give_up(self) -> None:
        """Close the connection of a job that has not been ended: the job returns to the queue."""
        if self._is_reserved and self._client is not None:
            self._is_reserved = False
            self._client.connection_pool.disconnect()
