"""What a handler is to the core, and how the core finds it.

A package offers a handler as an entry point in the group `pressure_server.handlers`; the entry point's
name is the scheme of the listeners that use it. It must not end in "s": with an "s" behind, it is the same
over TLS.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from time import time
from typing import Protocol, cast

from pressure_server.errors import DrainingError
from pressure_server.net.clients import Clients
from pressure_server.net.connection import Connection
from pressure_server.net.listen import Listen, SettingsError
from pressure_server.queues.broker import Broker

GROUP = "pressure_server.handlers"


@dataclass(frozen=True)
class HandlerSettings:
    """The settings that matter to handlers: the prefix of keys, sizes in bytes, times in seconds."""

    prefix: str
    max_message_bytes: int
    idle_timeout: float
    is_embedded: bool


@dataclass
class Context:
    """What the server gives its handlers."""

    settings: HandlerSettings
    broker: Broker
    clients: Clients
    listening: list[Listen] = field(default_factory=list)
    started: float = field(default_factory=time)
    is_stopping: bool = False
    # What handlers do in the background until the server ends; the loop itself would forget them.
    background: set[asyncio.Task[None]] = field(default_factory=set)

    def check_readiness(self) -> None:
        """Raise DrainingError or BackendError if new clients had better connect elsewhere."""
        if self.is_stopping:
            raise DrainingError()
        self.broker.check_readiness()


class Handler(Protocol):
    """A wire protocol; one is made for each listener."""

    def __init__(self, context: Context, listen: Listen) -> None: ...

    @staticmethod
    def check(listen: Listen) -> None:
        """Raise SettingsError where the listener's options mean nothing to this handler."""

    def connect(self) -> Connection:
        """A connection for a client that has just come."""

    @staticmethod
    def ping(listen: Listen, timeout: float, *, ready: bool) -> None:
        """Ask a server of this protocol whether it is well; or whether it is `ready` for new clients.

        Raises OSError with the reason if not.
        """


def find_handler(name: str) -> type[Handler]:
    """The handler of that name. Raises SettingsError."""
    found = entry_points(group=GROUP)
    if name not in found.names:
        names = ", ".join(sorted(found.names))
        raise SettingsError(f"there is no handler '{name}': there are {names}, and each with an s for TLS")
    return cast(type[Handler], found[name].load())
