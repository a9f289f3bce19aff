"""A broker of dramatiq: dramatiq.set_broker(PressureBroker("redis://HOST:4000")).

docs/guides/celery.md explains the use.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, local
from typing import Any

from dramatiq import Broker, Consumer, Message, MessageProxy, Middleware
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout

from pressure_server.client.arguments import Word, seconds_word
from pressure_server.client.connections import SERVER_URL, Connections
from pressure_server.client.redis_io import BlockingRedis
from pressure_server.client.replies import Reservation, described
from pressure_server.client.synchronous import run
from pressure_server.client.worker_connection import TEMPORARY_ERRORS, WorkerConnection, call_creating
from pressure_server.errors import QueueDoesNotExistError

_logger = logging.getLogger(__name__)
# Seconds that a reserve waits for a job while jobs are in work: the server reads an acknowledgement after the
# reserve has ended.
_BUSY_WAIT = 0.05
# The priority of a job of an actor without one.
_PRIORITY = 1024


class PressureBroker(Broker):
    """A broker whose queues are in a pressure-server.

    `queue_options` has the options of PRESSURE.CREATE for each queue: {"mails": {"BOUND": 10000}}. `options`
    are passed to redis-py's connections (`password`, `ssl_ca_certs`, …).
    """

    def __init__(
        self,
        url: str = SERVER_URL,
        *,
        middleware: list[Middleware] | None = None,
        queue_options: Mapping[str, Mapping[str, Word]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(middleware)
        self.queues: dict[str, None] = {}
        self._queue_options = queue_options or {}
        self._server = Connections(url, options, BlockingRedis)
        self._url, self._options = url, options
        # In each thread of a worker, the message that has been processed: `ended`.
        self._thread = local()

    def declare_queue(self, queue_name: str) -> None:
        """See dramatiq. The first use of the queue creates it."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Put a message, which is ready after `delay` milliseconds. Raises QueueFullError.

        A message that a worker puts into its queue after another one, such as a retry, needs no room.
        """
        actor = self.actors.get(message.actor_name)
        words: list[Word] = ["PRIORITY", max(0, _PRIORITY + actor.priority if actor else _PRIORITY)]
        if delay:
            words += ["DELAY", seconds_word(delay / 1000, "a delay")]
        ended: MessageProxy | None = getattr(self._thread, "ended", None)
        if ended is not None and ended.queue_name == message.queue_name:
            # If all workers waited for room, there would never be any.
            words.append("OVERFILL")
        self.emit_before("enqueue", message, delay)
        try:
            self.call(message.queue_name, "PRESSURE.PUT", message.queue_name, message.encode(), *words)
        except BaseException:
            if ended is not None:
                ended.fail()  # else dramatiq would acknowledge it, and nothing would be left
            raise
        self.emit_after("enqueue", message, delay)
        return message

    def emit_after(self, signal: str, *args: Any, **options: Any) -> None:
        """See dramatiq."""
        if signal == "process_message":
            self._thread.ended = args[0]
        try:
            super().emit_after(signal, *args, **options)
        finally:
            if signal == "process_message":
                self._thread.ended = None

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        """See dramatiq."""
        self.call(queue_name, "PRESSURE.LENGTH", queue_name)
        with _closed_if_lost():
            return _Consumer(
                WorkerConnection(self._url, **self._options), queue_name, prefetch, timeout / 1000
            )

    def call(self, queue: str, *command: Word) -> Any:
        """Send a command for a queue, which is created if it does not exist."""
        with _closed_if_lost():
            options = self._queue_options.get(queue, {})
            return call_creating(self._call, queue, options, *command)

    def flush(self, queue_name: str) -> None:
        """Delete the messages of a queue that no worker has."""
        self.call(queue_name, "PRESSURE.PURGE", queue_name)

    def flush_all(self) -> None:
        """Delete the messages of all queues that no worker has."""
        for name in self.queues:
            self.flush(name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until the queue has no job that is ready, delayed or in work. Raises QueueJoinTimeout."""
        end = None if timeout is None else time.monotonic() + timeout / 1000
        while True:
            info = described(self.call(queue_name, "PRESSURE.INFO", queue_name))
            if not info["length"] and not info["reserved"]:
                return
            if end is not None and time.monotonic() > end:
                raise QueueJoinTimeout(queue_name)
            time.sleep(_BUSY_WAIT)

    def close(self) -> None:
        """Close the connections."""
        run(self._server.disconnect())

    def _call(self, *words: Word) -> Any:
        return run(self._server.do(*words, waits=True))


class ReservedMessage(MessageProxy):
    """A message, with the id of its job."""

    def __init__(self, message: Message[Any], job: int) -> None:
        super().__init__(message)
        self.job = job


class _Consumer(Consumer):
    """A consumer with a connection of its own: when that ends, the server gives its jobs to other workers."""

    def __init__(self, server: WorkerConnection, queue: str, prefetch: int, timeout: float) -> None:
        self._server, self._queue, self._prefetch, self._timeout = server, queue, prefetch, timeout
        self._reserved: set[int] = set()
        self._has_ended_job = Event()

    def __next__(self) -> ReservedMessage | None:
        """Return the next message; None if none has come in time, or as many as may be are in work."""
        if len(self._reserved) >= self._prefetch:
            self._has_ended_job.wait(self._timeout)
            self._has_ended_job.clear()
            return None
        wait = min(_BUSY_WAIT, self._timeout) if self._reserved else self._timeout
        with _closed_if_lost():
            found = self._server.reserve([self._queue], wait, 0)
        if found is None:
            return None
        job: Reservation = found[1]
        try:
            message = ReservedMessage(Message.decode(job.message), job.id)
        except DecodeError:
            _logger.exception(
                "job %d of queue '%s' is no message of dramatiq: it is buried", job.id, self._queue
            )
            self._server.end("PRESSURE.BURY", self._queue, job.id)
            return None
        self._reserved.add(job.id)
        return message

    def ack(self, message: MessageProxy) -> None:
        """Delete the job."""
        self._end("PRESSURE.ACK", message)

    def nack(self, message: MessageProxy) -> None:
        """Bury the job."""
        self._end("PRESSURE.BURY", message)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give jobs back that have not begun."""
        for message in messages:
            self._end("PRESSURE.RELEASE", message)

    def close(self) -> None:
        """Close the connection: the server gives the jobs in work to other workers."""
        self._server.close()

    def _end(self, command: str, message: MessageProxy) -> None:
        with _closed_if_lost():
            self._server.end(command, self._queue, message.job)
        self._reserved.discard(message.job)
        self._has_ended_job.set()


@contextmanager
def _closed_if_lost() -> Iterator[None]:
    """Raise dramatiq's ConnectionClosed for errors after which its workers connect again."""
    try:
        yield
    except (*TEMPORARY_ERRORS, QueueDoesNotExistError) as error:
        raise ConnectionClosed(error) from error
