"""A private client: a RESP connection inside the process, on which the console executes commands as a user.

So actions of the console have the checks of rights and arguments, the statistics and the guarantees that
commands of Redis clients have.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import hiredis

from handlers.resp import commands
from handlers.resp.parser import Limits
from handlers.resp.session import RespSession
from pressure_server.auth.users import User
from pressure_server.net.handler import Context

_READ = 1 << 16
# Seconds for one command.
_TIMEOUT = 20.0


class PrivateClient:
    """The client's end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._replies = hiredis.Reader()

    async def command(self, *words: bytes) -> Any:
        """Return the reply to a command; an error reply is returned as a hiredis.ReplyError.

        Raise ConnectionError or TimeoutError.
        """
        self._writer.write(hiredis.pack_command(words))  # type: ignore[arg-type] # the stub knows one word only
        async with asyncio.timeout(_TIMEOUT):
            while (reply := self._replies.gets()) is False:
                data = await self._reader.read(_READ)
                if not data:
                    raise ConnectionError("the server has closed the connection")
                self._replies.feed(data)
        return reply


@contextlib.asynccontextmanager
async def private_client(context: Context, user: User, database: int) -> AsyncIterator[PrivateClient]:
    """Yield a client that acts as the user, on the database with this number."""
    commands.load()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    session = RespSession(context, Limits(context.settings.max_message_bytes))
    await asyncio.get_running_loop().connect_accepted_socket(lambda: session.connection, ours)
    session.user = user
    session.name = b"console"
    session.database = await context.broker.database(database)
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        yield PrivateClient(reader, writer)
    finally:
        writer.close()
