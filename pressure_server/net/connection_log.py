"""The life of connections, for `--log-level debug`: when they open and close, and how many commands came."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any, ClassVar, Protocol

from pressure_server.auth.peer_address import Addresses

logger = logging.getLogger(__name__)


class LoggedClient(Protocol):
    """A client, as the log describes it."""

    PROTOCOL: ClassVar[str]

    @property
    def id(self) -> int:
        """The number of the client's connection."""

    @property
    def addresses(self) -> Addresses:
        """The addresses of the client's connection."""

    @property
    def user_name(self) -> str:
        """The name of the client's user."""

    def count_of(self, command: Any) -> int:
        """Return the number of commands for which a parsed request stands."""


class ConnectionLog:
    """The log of connections. It observes their commands to count them."""

    def __init__(self) -> None:
        # By connection: when it was opened, and how many commands it has sent.
        self._open: dict[LoggedClient, tuple[float, int]] = {}

    @classmethod
    def if_enabled(cls) -> ConnectionLog | None:
        """Return a log of connections; None if the level of the log is above debug."""
        return cls() if logger.isEnabledFor(logging.DEBUG) else None

    def opened(self, client: LoggedClient) -> None:
        """Log a new connection."""
        self._open[client] = perf_counter(), 0
        address = client.addresses.shown
        logger.debug(
            "connection %d from %s opened (%s)",
            client.id,
            address,
            client.PROTOCOL,
            extra={"client": address},
        )

    def received(self, client: LoggedClient, commands: Sequence[Any]) -> None:
        """See clients.Observer."""
        if client in self._open:
            since, count = self._open[client]
            self._open[client] = since, count + sum(map(client.count_of, commands))

    def closed(self, client: LoggedClient, reason: str) -> None:
        """Log that a connection has ended, if it was opened."""
        if client not in self._open:
            return
        since, count = self._open.pop(client)
        address, seconds = client.addresses.shown, perf_counter() - since
        logger.debug(
            "connection %d from %s closed after %.3f seconds and %d commands: %s",
            client.id,
            address,
            seconds,
            count,
            reason,
            extra={"client": address, "user": client.user_name, "duration": round(seconds, 6)},
        )
