"""Facts about a client, whatever its protocol: what CLIENT LIST and the console show."""

from __future__ import annotations

from dataclasses import dataclass

from pressure_server.net.clients import Clients
from pressure_server.net.command_table import UNKNOWN
from pressure_server.net.session import Session


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """A client at one moment.

    Addresses are in Redis's format. `age` and `idle` are in seconds; `idle` is the time since the client sent
    something. `command` is the command that was executed last, empty if there is none or it is unknown.
    `waits_on` are the queues on which the client waits. `held_bytes` are its buffers in the server, among
    them the `unsent_bytes` of replies.
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
    is_waiting: bool
    is_throttled: bool
    is_monitor: bool
    is_read: bool

    @property
    def library(self) -> str:
        """The name and version of the client's library, if it has told them."""
        return f"{self.library_name} {self.library_version}".strip()


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
        is_waiting=client.is_waiting,
        is_throttled=connection.is_throttled,
        is_monitor=client in clients.monitors,
        is_read=connection.is_read,
    )


def sessions_of(clients: Clients) -> list[Session]:
    """Return the clients of all protocols, by id."""
    found = [client for client in clients.connected if isinstance(client, Session)]
    return sorted(found, key=lambda client: client.id)
