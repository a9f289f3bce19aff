"""A relay between a native client and its backend that reads all replies, even after the client has died."""

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
        self._commands, self._replies = hiredis.Reader(), hiredis.Reader()
        self._unanswered: deque[Command] = deque()
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    async def run(self) -> None:
        await super().run()
        self._relay.ended.set()

    async def requests(self) -> None:
        with suppress(ConnectionError):
            while data := await self._loop.sock_recv(self.near, 1 << 14):
                await self.request(data)
        await self._wait_for_replies()
        self.far.shutdown(socket.SHUT_WR)

    async def request(self, data: bytes) -> None:
        self._commands.feed(data)
        while (command := self._commands.gets()) is not False:
            self._unanswered.append(command)
            self._all_answered.clear()
            self._relay.on_command(command)
        await self.send(self.far, data)

    async def reply(self, data: bytes) -> None:
        self._replies.feed(data)
        while (reply := self._replies.gets()) is not False:
            self._relay.on_reply(self._unanswered.popleft(), reply)
        if not self._unanswered:
            self._all_answered.set()
        with suppress(OSError):  # the client may have gone
            await self.send(self.near, data)

    async def _wait_for_replies(self) -> None:
        """Return when every command has its reply.

        The connection to Redis stays open until then: at its end Redis discards unsent replies, and with them
        the message that a BRPOP has taken.
        """
        if self._relay.unblocks_at_end:
            async with redis.asyncio.Redis(unix_socket_path=str(self._relay.backend)) as control:
                # CLIENT UNBLOCK has no effect before the blocking command has reached Redis.
                while self._unanswered:
                    await control.client_unblock(self._relay.client_id)
        await self._all_answered.wait()


class NativeRelay(Relay):
    """A relay from the unix socket `path` to the unix socket `backend`, for one connection.

    `on_command` is called with each command before Redis gets it, `on_reply` with a command and its reply
    before the client gets the reply. `ended` is set after the client has gone and all replies have come.
    """

    new_link = _NativeLink

    def __init__(
        self,
        path: Path,
        backend: Path,
        on_command: Callable[[Command], None],
        on_reply: Callable[[Command, Any], None],
    ) -> None:
        super().__init__()
        self.path = path
        self.backend = backend
        self.on_command = on_command
        self.on_reply = on_reply
        self.ended = asyncio.Event()
        # Whether a command that blocks is ended after the client has gone. If not, it blocks on.
        self.unblocks_at_end = True
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
