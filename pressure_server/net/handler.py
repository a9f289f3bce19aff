"""Handlers: the interface that a wire protocol implements, and the lookup of handlers by name.

A handler is an entry point. Its name is the scheme of listener URLs. It must not end in "s": that means TLS.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
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
    """The settings that handlers need; sizes in bytes, times in seconds."""

    prefix: str
    max_message_bytes: int
    idle_timeout: float
    tcp_keepalive: float
    is_embedded: bool
    documentation: str  # where it is, such as "at https://…"


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
        """Raise OSError with the reason if no server answers, or is `ready`, in `timeout` seconds."""


@cache  # a search in all installed packages takes milliseconds
def find_handler(name: str) -> type[Handler]:
    """Return the handler of that name. Raise SettingsError if there is none."""
    offered = entry_points(group=ENTRY_POINT_GROUP)
    if name not in offered.names:
        names = ", ".join(sorted(offered.names))
        raise SettingsError(f"there is no handler '{name}': choose from {names}; append an s for TLS")
    return cast(type[Handler], offered[name].load())


def request_line(listen: ListenerUrl, request: bytes, timeout: float) -> str:
    """Return the first line of the reply to a request; empty if the server closes the connection.

    See `connect` for the time and for errors.
    """
    with connect(listen, timeout) as client, client.makefile("rb") as replies:
        client.sendall(request)
        return replies.readline(_MAX_REPLY).decode("utf-8", "replace").strip()


def connect(listen: ListenerUrl, timeout: float) -> socket.socket:
    """Connect to a listener, with `timeout` seconds for each step. Raise OSError with the reason."""
    try:
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
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise OSError(
            f"{reason_of(error)}: no server listens there; start one, or name its address by --listen"
        ) from error
    except OSError as error:
        raise OSError(reason_of(error)) from error
