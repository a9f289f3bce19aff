"""A relay between one native client and its Redis: who kills the client knows what Redis has answered it.

It passes every command and every reply on, and tells of each before it does. When the client is gone, Redis
is heard to the end: a message that was on its way to a dead client is not forgotten.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import hiredis
import redis.asyncio

from tests.support.waiters import packed

Command = list[bytes]


class Relay:
    """Listens at `path` for one connection.

    `asked` is called with each command before Redis gets it, `answered` with a command and its reply before
    the client gets that. `ended` is set when the client has gone and nothing is unanswered.
    """

    def __init__(
        self,
        path: Path,
        backend: Path,
        asked: Callable[[Command], None],
        answered: Callable[[Command, Any], None],
    ) -> None:
        self.path = path
        self.ended = asyncio.Event()
        # Whether Redis learns at once that the client has gone; else it holds it for alive while it blocks.
        self.tells_of_the_end = True
        self._backend = backend
        self._asked = asked
        self._answered = answered
        self._unanswered: deque[Command] = deque()
        self._silence = asyncio.Event()
        self._silence.set()
        self._client = _Side(self._from_client, self._client_gone)
        self._redis = _Side(self._from_redis, self.ended.set)
        self._identity = 0
        self._ending: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen. The connection to Redis is there before the client's."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._redis, str(self._backend))
        identified: asyncio.Future[int] = loop.create_future()
        self._redis.received = lambda replies, _: identified.set_result(replies[0])
        self._redis.send(packed("CLIENT", "ID"))
        self._identity = await identified
        self._redis.received = self._from_redis
        self._server = await loop.create_unix_server(lambda: self._client, str(self.path))

    def _from_client(self, commands: list[Command], data: bytes) -> None:
        for command in commands:
            self._unanswered.append(command)
            self._silence.clear()
            self._asked(command)
        self._redis.send(data)

    def _from_redis(self, replies: list[Any], data: bytes) -> None:
        for reply in replies:
            self._answered(self._unanswered.popleft(), reply)
        if not self._unanswered:
            self._silence.set()
        self._client.send(data)

    def _client_gone(self) -> None:
        self._server.close()
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        """Close when all is answered.

        Not at once: Redis throws a reply away that it has not sent when it sees the connection closed, and
        nobody would know what it has popped. A command that still blocks is made to end instead.
        """
        if self.tells_of_the_end:
            async with redis.asyncio.Redis(unix_socket_path=str(self._backend)) as control:
                # Again, where the command has not reached Redis yet.
                while self._unanswered:
                    await control.client_unblock(self._identity)
        await self._silence.wait()
        self._redis.close()


class _Side(asyncio.Protocol):
    """One of the two connections: what comes is given to `received`, whole values and the bytes they are."""

    def __init__(self, received: Callable[[list[Any], bytes], None], gone: Callable[[], Any]) -> None:
        self.received = received
        self._gone = gone
        self._reader = hiredis.Reader()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        values = []
        while (value := self._reader.gets()) is not False:
            values.append(value)
        self.received(values, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._gone()

    def send(self, data: bytes) -> None:
        """Send, unless it is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
