"""A relay between a native client and its Redis, which hears all replies though the client dies."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hiredis
import redis.asyncio

from tests.support.relay import Link, Relay, connected
from tests.support.waiters import packed

Command = list[bytes]


class _NativeLink(Link):
    _relay: NativeRelay

    def __init__(self, relay: Relay, near: socket.socket, far: socket.socket) -> None:
        super().__init__(relay, near, far)
        self._commands, self._answers = hiredis.Reader(), hiredis.Reader()
        self._unanswered: deque[Command] = deque()
        self._silence = asyncio.Event()
        self._silence.set()

    async def run(self) -> None:
        await super().run()
        self._relay.ended.set()

    async def requests(self) -> None:
        with suppress(ConnectionError):
            while data := await self._loop.sock_recv(self.near, 1 << 14):
                await self.request(data)
        await self._hear_the_end()
        self.far.shutdown(socket.SHUT_WR)

    async def request(self, data: bytes) -> None:
        self._commands.feed(data)
        while (command := self._commands.gets()) is not False:
            self._unanswered.append(command)
            self._silence.clear()
            self._relay.asked(command)
        await self.send(self.far, data)

    async def reply(self, data: bytes) -> None:
        self._answers.feed(data)
        while (reply := self._answers.gets()) is not False:
            self._relay.answered(self._unanswered.popleft(), reply)
        if not self._unanswered:
            self._silence.set()
        with suppress(OSError):  # the client may have gone
            await self.send(self.near, data)

    async def _hear_the_end(self) -> None:
        """Return when every command has its reply.

        Redis discards a reply that it has not sent when it sees the end of the connection, and nobody would
        know which message it has popped. So a command that still blocks is ended instead.
        """
        if self._relay.tells_of_the_end:
            async with redis.asyncio.Redis(unix_socket_path=str(self._relay.backend)) as control:
                # Again, if the command has not reached Redis yet.
                while self._unanswered:
                    await control.client_unblock(self._relay.client_id)
        await self._silence.wait()


class NativeRelay(Relay):
    """Listens at the unix socket `path` for one connection, and passes it on to `backend`.

    `asked` is called with each command before Redis gets it, `answered` with a command and its reply before
    the client gets that. `ended` is set when the client has gone and every command has its reply.
    """

    new_link = _NativeLink

    def __init__(
        self,
        path: Path,
        backend: Path,
        asked: Callable[[Command], None],
        answered: Callable[[Command, Any], None],
    ) -> None:
        super().__init__()
        self.path = path
        self.backend = backend
        self.asked = asked
        self.answered = answered
        self.ended = asyncio.Event()
        # Whether Redis is told at once that the client has gone; else it counts as alive while it blocks.
        self.tells_of_the_end = True
        self.client_id = 0
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen()
        self.listen(self._connect, listening)

    async def _connect(self) -> socket.socket:
        connection = await connected(str(self.backend))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, packed("CLIENT", "ID"))
        self.client_id = int((await loop.sock_recv(connection, 100))[1:])
        return connection
