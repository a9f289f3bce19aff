"""Handlers: the interface that a wire protocol implements, and the lookup of handlers by name.

A package offers a handler as an entry point in the group `pressure_server.handlers`. The entry point's name
is the scheme of listener URLs. It must not end in "s", because an appended "s" means TLS.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from time import time
from typing import Protocol, cast

from pressure_server.errors import DrainingError
from pressure_server.net.clients import Clients
from pressure_server.net.connection import Connection
from pressure_server.net.listener import ListenerUrl, SettingsError
from pressure_server.net.workers import Workers
from pressure_server.queues.broker import Broker
from pressure_server.queues.survey import Survey
from pressure_server.text import reason_of

ENTRY_POINT_GROUP = "pressure_server.handlers"

_MAX_REPLY = 1000


@dataclass(frozen=True)
class HandlerSettings:
    """The settings that handlers need; sizes in bytes, times in seconds.

    `documentation` says where the documentation is, such as "at https://…".
    """

    prefix: str
    max_message_bytes: int
    idle_timeout: float
    tcp_keepalive: float
    is_embedded: bool
    documentation: str


@dataclass
class Context:
    """The server's objects and state that handlers use."""

    settings: HandlerSettings
    broker: Broker
    clients: Clients
    workers: Workers
    listening: list[ListenerUrl] = field(default_factory=list)
    started: float = field(default_factory=time)
    is_stopping: bool = False
    # No new jobs from beanstalk clients (SIGUSR1).
    is_draining: bool = False
    # The survey of queues, if the server has an HTTP listener.
    survey: Survey | None = None
    # Background tasks of handlers. The event loop holds only weak references to tasks.
    background: set[asyncio.Task[None]] = field(default_factory=set)

    # Raises PressureError if no process accepts clients.
    check_workers: Callable[[], None] = lambda: None

    def check_readiness(self) -> None:
        """Raise DrainingError or BackendError if the server is not ready for new clients."""
        if self.is_stopping:
            raise DrainingError()
        self.check_workers()
        self.broker.check_readiness()


class Handler(Protocol):
    """A wire protocol. The server creates one handler for each listener."""

    def __init__(self, context: Context, listen: ListenerUrl) -> None: ...

    @staticmethod
    def check(listen: ListenerUrl) -> None:
        """Raise SettingsError if the handler does not support the options of the listener."""

    def connect(self) -> Connection:
        """Return the connection object for a new client."""

    @staticmethod
    def ping(listen: ListenerUrl, timeout: float, *, ready: bool) -> None:
        """Check that a server of this protocol answers, or that it is `ready` for new clients.

        Raise OSError with the reason if not. `timeout` is in seconds.
        """


def find_handler(name: str) -> type[Handler]:
    """Return the handler of that name. Raise SettingsError if there is none."""
    found = _offered()
    if name not in found.names:
        names = ", ".join(sorted(found.names))
        raise SettingsError(f"there is no handler '{name}': choose from {names}; append an s for TLS")
    return cast(type[Handler], found[name].load())


@cache
def _offered() -> EntryPoints:
    """Return the handlers of all installed packages, whose search takes milliseconds."""
    return entry_points(group=ENTRY_POINT_GROUP)


def request_line(listen: ListenerUrl, request: bytes, timeout: float) -> str:
    """Send the request and return the first line of the reply; empty if the server closes the connection.

    `timeout` is in seconds. Raise OSError if the connection fails.
    """
    with connect(listen, timeout) as client, client.makefile("rb") as replies:
        client.sendall(request)
        return replies.readline(_MAX_REPLY).decode("utf-8", "replace").strip()


def connect(listen: ListenerUrl, timeout: float) -> socket.socket:
    """Connect to a listener. `timeout` is in seconds, for each step.

    Raise OSError, whose text has the reason, if it fails.
    """
    try:
        return _connect(listen, timeout)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise OSError(
            f"{reason_of(error)}: no server listens there; start one, or name its address by --listen"
        ) from error
    except OSError as error:
        raise OSError(reason_of(error)) from error


def _connect(listen: ListenerUrl, timeout: float) -> socket.socket:
    if listen.path:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(timeout)
        client.connect(listen.path)
    else:
        client = socket.create_connection((listen.host, listen.port), timeout)
    if not listen.tls:
        return client
    # Do not verify: nothing secret is sent, and certificates rarely name the address listened on.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(client)
