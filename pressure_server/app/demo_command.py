"""`pressure-server demo`: a producer and two workers of each protocol, so that the console shows something.

The workers take fewer messages than the producer puts, and catch up when it has ended.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread

import click

from pressure_server.app.option_types import Seconds
from pressure_server.app.options import shared_options
from pressure_server.net.handler import connect
from pressure_server.net.listener import ListenerUrl
from pressure_server.text import reason_of

# Messages a second of the producer, and of each worker while the producer puts.
_PUTS, _TAKES = 20.0, 8.0
_WORKERS = 2
# Seconds for a connection, or a reply.
_TIMEOUT = 10.0
_MAX_LINE = 1000


class _Client(ABC):
    """A connection to a listener, and the lines of its replies."""

    def __init__(self, where: ListenerUrl) -> None:
        self._socket = connect(where, _TIMEOUT)
        self._replies = self._socket.makefile("rb")

    def ask(self, request: bytes, *expected: bytes) -> bytes:
        """Send a request, and return the first line of the reply, which begins with one of `expected`.

        Raise OSError for any other reply.
        """
        self._socket.sendall(request + b"\r\n")
        line = self.line()
        if not line.startswith(expected):
            raise OSError(line.decode("utf-8", "backslashreplace") or "the server closed the connection")
        return line

    def line(self) -> bytes:
        """Return the next line of a reply; empty if the server has closed the connection."""
        return self._replies.readline(_MAX_LINE).rstrip()

    @abstractmethod
    def put(self, message: bytes) -> None:
        """Put a message into the queue `demo-PROTOCOL`."""

    @abstractmethod
    def take(self) -> bool:
        """Take a message, for which it waits a second. Return whether there was one."""

    def close(self) -> None:
        self._replies.close()
        self._socket.close()


class _RespClient(_Client):
    def put(self, message: bytes) -> None:
        self.ask(b"SADD demo-resp " + message, b":")

    def take(self) -> bool:
        if self.ask(b"BLPOP demo-resp 1", b"*") == b"*-1":
            return False
        for _ in range(4):  # the lengths and the values of the queue's name and of the message
            self.line()
        return True


class _MemcachedClient(_Client):
    def put(self, message: bytes) -> None:
        self.ask(b"set demo-memcached 0 0 %d\r\n%b" % (len(message), message), b"STORED")

    def take(self) -> bool:
        if self.ask(b"get demo-memcached/t=1000", b"VALUE", b"END") == b"END":
            return False
        self.line()
        self.line()  # END
        return True


class _BeanstalkClient(_Client):
    def __init__(self, where: ListenerUrl) -> None:
        super().__init__(where)
        self.ask(b"use demo-beanstalk", b"USING")
        self.ask(b"watch demo-beanstalk", b"WATCHING")
        self.ask(b"ignore default", b"WATCHING")  # its jobs are not the demo's

    def put(self, message: bytes) -> None:
        self.ask(b"put 1024 0 60 %d\r\n%b" % (len(message), message), b"INSERTED")

    def take(self) -> bool:
        reserved = self.ask(b"reserve-with-timeout 1", b"RESERVED", b"TIMED_OUT").split()
        if len(reserved) == 1:
            return False
        self.line()
        self.ask(b"delete " + reserved[1], b"DELETED")
        return True


# By the name of the handler.
_CLIENTS: dict[str, Callable[[ListenerUrl], _Client]] = {
    "resp": _RespClient,
    "memcached": _MemcachedClient,
    "beanstalk": _BeanstalkClient,
}


@dataclass
class _Demo:
    """The clients of one listener, each in a thread of its own. `error` is the first that one of them had.

    Producers put until `stop_putting`, which an error also sets. A worker ends when it finds no message after
    `stop_if_empty`.
    """

    where: ListenerUrl
    stop_putting: Event
    stop_if_empty: Event
    put: int = 0
    taken: int = 0
    error: OSError | None = None

    def __post_init__(self) -> None:
        self._lock = Lock()
        self.producer = self._start(self._produce)
        self.workers = [self._start(self._work) for _ in range(_WORKERS)]

    def _start(self, work: Callable[[_Client], None]) -> Thread:
        thread = Thread(target=self._run, args=(work,), daemon=True)
        thread.start()
        return thread

    def _run(self, work: Callable[[_Client], None]) -> None:
        try:
            with closing(_CLIENTS[self.where.handler](self.where)) as client:
                work(client)
        except OSError as error:
            with self._lock:
                self.error = self.error or error
            self.stop_putting.set()

    def _produce(self, client: _Client) -> None:
        while not self.stop_putting.wait(1 / _PUTS):
            client.put(b"message-%d" % (self.put + 1))
            self.put += 1

    def _work(self, client: _Client) -> None:
        while True:
            ends_if_empty = self.stop_if_empty.is_set()
            if client.take():
                with self._lock:
                    self.taken += 1
                self.stop_if_empty.wait(1 / _TAKES)  # the work on the message; none at the end
            elif ends_if_empty:
                return


@click.command(
    "demo",
    short_help="Put and take messages for a minute, to see them in the console.",
    params=shared_options("config", "listen"),
)
@click.option(
    "--time",
    "duration",
    type=Seconds(),
    default=60.0,
    show_default="1m",
    help="For how long messages are put.",
)
def demo_command(listen: tuple[ListenerUrl, ...], duration: float) -> None:
    """Put and take messages of a running server, by the protocol of each --listen address.

    A producer and two workers of each protocol use the queue demo-PROTOCOL. The producer is faster, so the
    queue grows; at the end the workers take what is left. Ctrl-C ends the demo earlier, in the same way.

    Exit status: 0, or 1 if a client received an error.
    """
    stop_putting, stop_if_empty = Event(), Event()
    demos = [
        _Demo(where, stop_putting, stop_if_empty)
        for where in listen
        if where.handler in _CLIENTS and ("mode", "kv") not in where.options
    ]
    if not demos:
        raise click.ClickException("no --listen address has queues")
    with suppress(KeyboardInterrupt):
        stop_putting.wait(duration)
    stop_putting.set()
    for one in demos:
        one.producer.join()
    stop_if_empty.set()
    for one in demos:
        for worker in one.workers:
            worker.join()
        click.echo(f"{one.where}: {one.put} messages put into demo-{one.where.handler}, {one.taken} taken")
    for one in demos:
        if one.error:
            raise click.ClickException(f"{one.where}: {reason_of(one.error)}")
