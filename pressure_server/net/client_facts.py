"""Facts about a client, whatever its protocol: what CLIENT LIST and the console show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pressure_server.net.clients import Clients
from pressure_server.net.command_statistics import UNKNOWN
from pressure_server.net.session import Session


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """A client at one moment. `details` are what only its protocol has.

    Addresses are in Redis's format, times in seconds; `idle` is the time since the client sent something.
    `reserved_from` has some of the queues from which it has reserved jobs, by database number and name.
    `command` is the last one executed, empty if none was or it is unknown. `held_bytes` are the client's
    buffers in the server, among them the `unsent_bytes` of replies.
    """

    id: int
    address: str
    local_address: str
    file_descriptor: int
    name: str
    protocol: str
    user: str
    library_name: str
    library_version: str
    age: int
    idle: int
    command: str
    waits_on: tuple[bytes, ...]
    database: int
    unparsed_bytes: int
    unsent_bytes: int
    held_bytes: int
    reserved_jobs: int
    reserved_from: tuple[tuple[int, bytes], ...]
    is_waiting: bool
    is_throttled: bool
    is_monitor: bool
    is_read: bool
    details: Mapping[str, Any]

    @property
    def library(self) -> str:
        """The name and version of the client's library, if it has told them."""
        return f"{self.library_name} {self.library_version}".strip()


# By what clients can be sorted.
SORTS: dict[str, Callable[[Session], Any]] = {
    "id": lambda client: client.id,
    "bytes": lambda client: client.connection.held_bytes(),
    "idle": lambda client: -client.connection.active,
    "protocol": lambda client: client.PROTOCOL,
    "user": lambda client: client.user_name,
    "reserved": lambda client: len(client.reserved_jobs),
}
# Clients that are looked at between two pauses.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """Which clients to select: those that match `filter`, the first `most` of them in the order of `sort`."""

    sort: str
    descending: bool
    filter: str
    most: int


@dataclass(frozen=True, slots=True)
class SelectedClients:
    """Selected clients, each with its value in the order. `matching` clients match the filter."""

    matching: int
    first: list[tuple[Any, ClientFacts]]

    @classmethod
    async def of(cls, clients: Clients, selection: Selection) -> SelectedClients:
        """Select clients, with pauses."""
        value_of, everyone = SORTS[selection.sort], sessions_of(clients)
        found: list[tuple[Any, Session]] = []
        for first in range(0, len(everyone), _AT_ONCE):
            found += [
                (value_of(one), one)
                for one in everyone[first : first + _AT_ONCE]
                if not selection.filter or _matches(one, selection.filter)
            ]
            await asyncio.sleep(0)
        found.sort(key=itemgetter(0), reverse=selection.descending)
        return cls(len(found), [(value, facts_of(one)) for value, one in found[: selection.most]])

    @classmethod
    def merged(cls, several: Sequence[SelectedClients], selection: Selection) -> SelectedClients:
        """Return what is selected from the clients of several processes."""
        found = [one for each in several for one in each.first]
        found.sort(key=itemgetter(0), reverse=selection.descending)
        return cls(sum(each.matching for each in several), found[: selection.most])


def _matches(client: Session, text: str) -> bool:
    words = (
        client.addresses.client,
        client.PROTOCOL,
        client.user_name,
        client.name.decode(),
        client.library_name,
        client.command_statistics.name,
        *(queue.decode("utf-8", "replace") for queue in client.waits_on()),
    )
    return any(text in word for word in words)


def facts_of(client: Session) -> ClientFacts:
    """Return the facts about a client."""
    clients, connection = client.clients, client.connection
    library_name, _, library_version = client.library_name.partition(" ")
    return ClientFacts(
        id=client.id,
        address=client.addresses.client,
        local_address=client.addresses.server,
        file_descriptor=-1 if connection.transport.is_closing() else connection.socket.fileno(),
        name=client.name.decode(),
        protocol=client.PROTOCOL,
        user=client.user_name,
        library_name=library_name,
        library_version=library_version,
        age=max(0, int(clients.now - connection.since)),
        idle=max(0, int(clients.now - connection.active)),
        command="" if client.command_statistics.name == UNKNOWN else client.command_statistics.name,
        waits_on=tuple(client.waits_on()),
        database=client.database.database_number,
        unparsed_bytes=client.unparsed,
        unsent_bytes=connection.transport.get_write_buffer_size(),
        held_bytes=connection.held_bytes(),
        reserved_jobs=len(client.reserved_jobs),
        reserved_from=client.reserved_jobs.queues(),
        is_waiting=client.is_waiting,
        is_throttled=connection.is_throttled,
        is_monitor=client in clients.monitors,
        is_read=connection.is_read,
        details=client.details,
    )


def sessions_of(clients: Clients) -> list[Session]:
    """Return the clients of all protocols, by id."""
    return sorted(clients.connected, key=lambda client: client.id)
