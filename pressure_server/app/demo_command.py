"""`pressure-server demo`: a producer and two workers of each protocol, so that the console shows something.

The workers take fewer messages than the producer puts, and catch up when it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import NamedTuple

import click

from pressure_server.app.option_types import Seconds
from pressure_server.app.options import shared_options
from pressure_server.net.handler import connect
from pressure_server.net.listener import ListenerUrl
from pressure_server.text import reason_of

# Messages a second of the producer, and of each worker while the producer puts.
_PUTS, _TAKES = 20.0, 8.0
_WORKERS = 2
# Seconds between two looks at the clock.
_LOOK = 0.2
# Seconds for a connection, or a reply.
_TIMEOUT = 10.0
_MAX_LINE = 1000


class _Client:
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

    def close(self) -> None:
        self._replies.close()
        self._socket.close()


class _Protocol(NamedTuple):
    """How a client of a protocol puts a message into the queue `demo-PROTOCOL`, and takes one.

    `take` waits for a second, and returns whether there was a message.
    """

    put: Callable[[_Client, bytes], object]
    take: Callable[[_Client], bool]


def _resp_take(client: _Client) -> bool:
    if client.ask(b"BLPOP demo-resp 1", b"*") == b"*-1":
        return False
    for _ in range(4):  # the lengths and the values of the queue's name and of the message
        client.line()
    return True


def _memcached_take(client: _Client) -> bool:
    if client.ask(b"get demo-memcached/t=1000", b"VALUE", b"END") == b"END":
        return False
    client.line()
    client.line()  # END
    return True


def _beanstalk_put(client: _Client, message: bytes) -> None:
    client.ask(b"use demo-beanstalk", b"USING")
    client.ask(b"put 1024 0 60 %d\r\n%b" % (len(message), message), b"INSERTED")


def _beanstalk_take(client: _Client) -> bool:
    client.ask(b"watch demo-beanstalk", b"WATCHING")
    client.ask(b"ignore default", b"WATCHING")  # its jobs are not the demo's
    reserved = client.ask(b"reserve-with-timeout 1", b"RESERVED", b"TIMED_OUT").split()
    if len(reserved) == 1:
        return False
    client.line()
    client.ask(b"delete " + reserved[1], b"DELETED")
    return True


# By the name of the handler.
_PROTOCOLS = {
    "resp": _Protocol(
        lambda client, message: client.ask(b"SADD demo-resp " + message, b":"),
        _resp_take,
    ),
    "memcached": _Protocol(
        lambda client, message: client.ask(
            b"set demo-memcached 0 0 %d\r\n%b" % (len(message), message), b"STORED"
        ),
        _memcached_take,
    ),
    "beanstalk": _Protocol(_beanstalk_put, _beanstalk_take),
}


class _Phase(NamedTuple):
    """Events that end a demo: first the producers stop, then each worker that finds no message."""

    stop_putting: threading.Event
    stop_if_empty: threading.Event


class _Demo:
    """The clients of one listener, each in a thread of its own. `error` is the first that one of them had."""

    def __init__(self, where: ListenerUrl, phase: _Phase) -> None:
        self.where = where
        self.put = 0
        self.taken = 0
        self.error: OSError | None = None
        self._protocol = _PROTOCOLS[where.handler]
        self._phase = phase
        self._lock = threading.Lock()
        self.producer = self._start(self._produce)
        self.workers = [self._start(self._work) for _ in range(_WORKERS)]

    def _start(self, work: Callable[[_Client], None]) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        thread.start()
        return thread

    def _run(self, work: Callable[[_Client], None]) -> None:
        try:
            with closing(_Client(self.where)) as client:
                work(client)
        except OSError as error:
            with self._lock:
                self.error = self.error or error

    def _produce(self, client: _Client) -> None:
        while not self._phase.stop_putting.wait(1 / _PUTS):
            self._protocol.put(client, b"message-%d" % (self.put + 1))
            self.put += 1

    def _work(self, client: _Client) -> None:
        is_last = False
        while not is_last:
            ends_if_empty = self._phase.stop_if_empty.is_set()
            if self._protocol.take(client):
                with self._lock:
                    self.taken += 1
                self._phase.stop_if_empty.wait(1 / _TAKES)  # the work on the message; none at the end
            else:
                is_last = ends_if_empty


def _has_queues(where: ListenerUrl) -> bool:
    return where.handler in _PROTOCOLS and ("mode", "kv") not in where.options


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
    phase = _Phase(threading.Event(), threading.Event())
    demos = [_Demo(where, phase) for where in listen if _has_queues(where)]
    if not demos:
        raise click.ClickException("no --listen address has queues")
    end = time.monotonic() + duration
    with suppress(KeyboardInterrupt):
        while time.monotonic() < end and not any(demo.error for demo in demos):
            time.sleep(_LOOK)
    phase.stop_putting.set()
    for demo in demos:
        demo.producer.join()
    phase.stop_if_empty.set()
    for demo in demos:
        for worker in demo.workers:
            worker.join()
        click.echo(
            f"{demo.where}: {demo.put} messages put into demo-{demo.where.handler}, {demo.taken} taken"
        )
    for demo in demos:
        if demo.error:
            raise click.ClickException(f"{demo.where}: {reason_of(demo.error)}")
