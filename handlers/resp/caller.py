"""What a command sees of the client that has sent it: its connection, or in a transaction a stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pressure_server.queues.operations.options import DEFAULT, Options

if TYPE_CHECKING:
    from handlers.resp.connection import RespConnection
    from pressure_server.net.connection import Encode
    from pressure_server.queues.database import Database
    from pressure_server.queues.operations.operation import Verb
    from pressure_server.queues.operations.wait import Wait
    from pressure_server.queues.transaction import Transaction


class Caller(Protocol):
    """Where a command's reply goes, and what it does on the queues that it names."""

    @property
    def connection(self) -> RespConnection:
        """The client's connection, for what is about that, or about the server."""

    @property
    def database(self) -> Database | Transaction:
        """What the command does there is done alone, or with what else is in the transaction."""

    def reply(self, data: bytes) -> None:
        """See Connection.reply."""

    def submit(
        self,
        verb: Verb,
        name: bytes,
        messages: list[bytes],
        size: int,
        encode: Encode,
        *,
        commands: int = 1,
        wait: Wait | None = None,
        options: Options = DEFAULT,
    ) -> None:
        """See Connection.submit."""
