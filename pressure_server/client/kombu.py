"""A transport of kombu. Importing this module registers it: Celery(broker="pressure://HOST:4000").

docs/guides/celery.md explains the use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from queue import Empty
from threading import Event
from typing import Any

import redis
from kombu.entity import TRANSIENT_DELIVERY_MODE
from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.utils.json import dumps, loads

from pressure_server.client.arguments import Word, seconds_word
from pressure_server.client.worker_connection import TEMPORARY_ERRORS, WorkerConnection, call_creating
from pressure_server.errors import PressureError, QueueDoesNotExistError

_logger = logging.getLogger(__name__)
# Seconds that a reserve waits for a job. It is short while jobs are in work: the server reads an
# acknowledgement after the reserve has ended.
_IDLE_WAIT, _BUSY_WAIT = 1.0, 0.05
# The options of PRESSURE.CREATE for arguments of a kombu.Queue.
_OPTIONS = {"expires": "TTL", "max_length": "BOUND", "max_length_bytes": "MAX-BYTES"}

# The parts of a message, for JSON.
RawMessage = dict[str, Any]


class QoS(virtual.QoS):
    """The jobs that a channel has reserved, by their delivery tags."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a job."""
        self._end("PRESSURE.ACK", delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a job back, or bury it."""
        self._end("PRESSURE.RELEASE" if requeue else "PRESSURE.BURY", delivery_tag)

    def _end(self, command: str, delivery_tag: str) -> None:
        self.channel.end(command, delivery_tag)
        super().ack(delivery_tag)
        self.channel.has_ended_job.set()


class Channel(virtual.Channel):
    """A channel with a connection of its own: when that ends, the server gives its jobs to other workers."""

    QoS = QoS
    do_restore = False  # the end of the connection returns the jobs
    from_transport_options = (*virtual.Channel.from_transport_options, "visibility_timeout")
    # Seconds after which another worker gets a job; 0 if only the end of the connection returns it.
    visibility_timeout: float = 0

    def __init__(self, connection: Transport, **options: Any) -> None:
        # It may fail; kombu would keep the id that it gives the channel.
        self._server = connection.open_connection()
        super().__init__(connection, **options)
        self.has_ended_job = Event()
        self._options: dict[str, Mapping[str, Word]] = {}
        self._handlers: dict[str, Callable[[RawMessage], None]] = {}

    def exchange_declare(self, exchange: str | None = None, type: str = "direct", **options: Any) -> None:  # noqa: A002
        """See kombu. Raises NotImplementedError for a fanout exchange."""
        if type == "fanout":
            raise NotImplementedError(f"exchange '{exchange}': pressure-server has no fanout exchanges")
        super().exchange_declare(exchange, type, **options)

    def prepare_queue_arguments(self, arguments: Mapping[str, Word], **options: Any) -> dict[str, Word]:
        """Return the options of PRESSURE.CREATE for a kombu.Queue."""
        given = {_OPTIONS[name]: value for name, value in options.items() if name in _OPTIONS and value}
        return {**given, **arguments}

    def basic_publish(self, message: RawMessage, exchange: str, routing_key: str, **options: Any) -> None:
        """See kombu. Raises ChannelError for a message that no queue would get, unless it is transient."""
        # A connection knows only its own bindings. Celery's events are transient, and nobody receives them.
        is_transient = message["properties"].get("delivery_mode") == TRANSIENT_DELIVERY_MODE
        if exchange and not is_transient and not self._lookup(exchange, routing_key):
            text = (
                f"NO_ROUTE - exchange '{exchange}' has no queue for routing key '{routing_key}' on this"
                " connection: declare the queue on it, for instance by declare=[queue]"
            )
            raise ChannelError(text, (60, 40), "Channel.basic_publish", "312")
        super().basic_publish(message, exchange, routing_key, **options)

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[virtual.Message], object],
        consumer_tag: str,
        **options: Any,
    ) -> None:
        """See kombu. With `no_ack`, a message is acknowledged when it is handed over."""

        def hand_over(message: virtual.Message) -> None:
            if no_ack:
                self.end("PRESSURE.ACK", message.delivery_tag)
            callback(message)

        super().basic_consume(queue, no_ack, hand_over, consumer_tag, **options)
        # kombu keeps one for each queue of all channels, but a message must end on the channel that has it.
        self._handlers[queue] = self.connection._callbacks[queue]

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> virtual.Message | None:
        """See kombu. With `no_ack`, the message is acknowledged."""
        message = super().basic_get(queue, no_ack, **options)
        if no_ack and message is not None:
            self.end("PRESSURE.ACK", message.delivery_tag)
        return message

    def drain_events(self, timeout: float | None = None, callback: Callable[..., None] | None = None) -> None:
        """See kombu. If the channel has as many jobs as it may reserve, wait for the end of one instead."""
        if self._consumers and not self.qos.can_consume():
            self.has_ended_job.wait(_IDLE_WAIT if timeout is None else min(timeout, _IDLE_WAIT))
            self.has_ended_job.clear()
        else:
            super().drain_events(timeout, callback)

    def end(self, command: str, delivery_tag: str) -> None:
        """Send a command that ends a reservation."""
        job, _, queue = delivery_tag.partition(" ")
        self._server.end(command, queue, int(job))

    def close(self) -> None:
        """See kombu."""
        super().close()
        self._server.close()

    def _new_queue(self, queue: str, arguments: Mapping[str, Word] | None = None, **_options: Any) -> None:
        self._options.setdefault(queue, arguments or {})
        self._call_creating(queue, "PRESSURE.LENGTH", queue)

    def _call_creating(self, queue: str, *command: Word) -> Any:
        return call_creating(self._server.call, queue, self._options.get(queue, {}), *command)

    def _put(self, queue: str, message: RawMessage, **_options: Any) -> None:
        priority = self._get_message_priority(message, reverse=True)
        words: tuple[Word, ...] = ("PRIORITY", priority, *_delay_words(message))
        if (message.get("headers") or {}).get("retries"):
            words += ("OVERFILL",)  # if all workers of Celery waited for room, there would never be any
        self._call_creating(queue, "PRESSURE.PUT", queue, dumps(message), *words)

    def _get(self, queue: str, timeout: float | None = None) -> RawMessage:
        return self._reserve([queue], timeout or 0)[1]

    def _poll(self, cycle: object, callback: object, timeout: float | None = None) -> None:
        is_busy = len(self.qos._delivered) > len(self.qos._dirty) or len(self.connection.channels) > 1
        wait = _BUSY_WAIT if is_busy else _IDLE_WAIT
        queue, message = self._reserve(self._active_queues, wait if timeout is None else min(wait, timeout))
        self._handlers[queue](message)

    def _reserve(self, queues: list[str], wait: float) -> tuple[str, RawMessage]:
        try:
            found = self._server.reserve(queues, wait, self.visibility_timeout)
        except QueueDoesNotExistError:
            for queue in queues:
                self._new_queue(queue)
            raise Empty from None
        if found is None:
            raise Empty
        queue, job = found
        try:
            message: RawMessage = loads(job.message)
            message["properties"]["delivery_tag"] = f"{job.id} {queue}"
            message["properties"]["delivery_info"]["redelivered"] = job.reserves > 1
            if _delay_words(message):
                message["headers"]["eta"] = None  # it is over, so the worker need not look at its clock
        except (KeyError, TypeError, ValueError):
            _logger.exception("job %d of queue '%s' is no message of kombu: it is buried", job.id, queue)
            self._server.end("PRESSURE.BURY", queue, job.id)
            raise Empty from None
        return queue, message

    def _restore(self, message: virtual.Message) -> None:
        self.end("PRESSURE.RELEASE", message.delivery_tag)

    def _has_queue(self, queue: str, **_options: Any) -> bool:
        return bool(self._server.call("EXISTS", queue))

    def _size(self, queue: str) -> int:
        return int(self._server.call("SCARD", queue))

    def _purge(self, queue: str) -> int:
        return int(self._server.call("PRESSURE.PURGE", queue))

    def _delete(self, queue: str, *_names: object, **_options: Any) -> None:
        self._server.call("DEL", queue)


class Transport(virtual.Transport):
    """The transport for pressure://[USER:PASSWORD@]HOST:PORT/DATABASE."""

    Channel = Channel
    default_port = 4000
    driver_type = driver_name = "pressure"
    polling_interval = None  # a reserve waits
    uses_tls = False
    connection_errors = (*virtual.Transport.connection_errors, *TEMPORARY_ERRORS)
    channel_errors = (*virtual.Transport.channel_errors, PressureError, redis.ResponseError)
    # Errors for which a put is tried again. QueueFullError is raised at once.
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()

    def driver_version(self) -> str:
        """See kombu."""
        return str(redis.__version__)

    def open_connection(self) -> WorkerConnection:
        """Open a connection to the server."""
        to = self.client
        return WorkerConnection(
            "rediss://" if to.ssl or self.uses_tls else "redis://",
            host=to.hostname or "localhost", port=to.port or self.default_port,
            db=int((to.virtual_host or "").strip("/") or 0), username=to.userid, password=to.password,
            socket_connect_timeout=to.connect_timeout, **(to.ssl if isinstance(to.ssl, dict) else {}),
        )  # fmt: skip


class TlsTransport(Transport):
    """The transport for pressures://, which uses TLS."""

    uses_tls = True


def _delay_words(message: RawMessage) -> tuple[Word, ...]:
    """Return the words for the delay of a task of Celery that has an ETA with a time zone."""
    eta = (message.get("headers") or {}).get("eta")
    at = datetime.fromisoformat(eta) if eta else None
    if at is None or at.tzinfo is None:
        return ()
    return ("DELAY", seconds_word(max(0.0, (at - datetime.now(UTC)).total_seconds()), "a delay"))


TRANSPORT_ALIASES.update(pressure=f"{__name__}:Transport", pressures=f"{__name__}:TlsTransport")
