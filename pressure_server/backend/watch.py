"""The watch: one connection on which the backend tells when keys change, whoever changes them.

Server-assisted client-side caching (Redis: CLIENT TRACKING): a key that has been read is told of once, when
it changes. Nothing is held by those who wait, and all of them together need this one connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from pressure_server.backend.address import Address
from pressure_server.backend.link import FIRST_PAUSE, LONGEST_PAUSE
from pressure_server.errors import BackendError

logger = logging.getLogger(__name__)

Armed = Callable[[int | None], None]
# Where the backend does not tell, those who wait look so often, in seconds; less often where they are many.
_POLL = 0.1
_POLLS_PER_SECOND = 2000


class Watch:
    """Tells `changed` of each key that has been armed, once, when it changes.

    `lost` is called when all that has been armed is forgotten.
    """

    def __init__(
        self, address: Address, name: str, changed: Callable[[bytes], None], lost: Callable[[], None]
    ) -> None:
        self._address = address
        self._name = name
        self._changed = changed
        self._lost = lost
        self._connection: _Connection | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._number = 0
        self._polling = 0

    @property
    def is_up(self) -> bool:
        """Whether the backend tells."""
        return self._connection is not None

    def start(self) -> None:
        """Connect, and again whenever the connection breaks."""
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Close the connection and stop connecting."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._connection is not None:
            self._connection.close()

    def arm(self, number: int, keys: Sequence[bytes], armed: Armed) -> None:
        """Tell when one of the keys in that database changes.

        `armed` is called with how many of them exist, from when on they are watched; or, where the backend
        cannot tell, with None after a while: time to look.
        """
        connection = self._connection
        if connection is None:
            self._polling += 1
            asyncio.get_running_loop().call_later(
                max(_POLL, self._polling / _POLLS_PER_SECOND), self._poll, armed
            )
            return
        if number != self._number:
            self._number = number
            connection.send(None, b"SELECT", b"%d" % number)
        connection.send(None, b"CLIENT", b"CACHING", b"YES")
        connection.send(lambda reply: armed(reply if isinstance(reply, int) else None), b"EXISTS", *keys)

    def _poll(self, armed: Armed) -> None:
        self._polling -= 1
        armed(None)

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            connection = _Connection(self._changed)
            try:
                await self._address.open(connection)
                if not await self._greet(connection):
                    connection.close()
                    return
            except (BackendError, TimeoutError) as error:
                connection.close()
                logger.debug("the watch on the backend: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause, self._number = FIRST_PAUSE, 0
            self._connection = connection
            self._lost()
            await connection.ended.wait()
            self._connection = None
            self._lost()

    async def _greet(self, connection: _Connection) -> bool:
        """Log in and turn tracking on; False where the backend refuses. Raises BackendError."""
        login: list[bytes] = []
        if self._address.password is not None:
            login = [b"AUTH", (self._address.username or "default").encode(), self._address.password.encode()]
        async with asyncio.timeout(5 * LONGEST_PAUSE):
            for command in (
                [b"HELLO", b"3", *login, b"SETNAME", self._name.encode()],
                [b"CLIENT", b"TRACKING", b"ON", b"OPTIN"],
            ):
                reply = await connection.command(*command)
                if isinstance(reply, BackendError):
                    raise reply
                if isinstance(reply, Exception):
                    logger.warning(
                        "the backend refuses to tell of changes (%s: %s): who waits looks %g times a second",
                        command[0].decode(), reply, 1 / _POLL,
                    )  # fmt: skip
                    return False
        return True


class _Connection(asyncio.Protocol):
    """Commands out, replies in order to callbacks, and pushes to `changed`."""

    def __init__(self, changed: Callable[[bytes], None]) -> None:
        self._changed = changed
        self._transport: asyncio.WriteTransport | None = None
        self._reader = hiredis.Reader()
        self._callbacks: deque[Callable[[Any], None] | None] = deque()
        self._to_send: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()

    def send(self, received: Callable[[Any], None] | None, *arguments: bytes) -> None:
        """Send a command; its reply goes to the callback."""
        if self._transport is None:
            return
        self._callbacks.append(received)
        if not self._to_send:
            self._loop.call_soon(self._flush)
        self._to_send.append(hiredis.pack_command(arguments))  # type: ignore[arg-type] # its stub says tuple of one

    def _flush(self) -> None:
        """Write what has been sent in this turn of the loop: a write costs more than all the rest."""
        to_send, self._to_send = self._to_send, []
        if self._transport is not None:
            self._transport.write(b"".join(to_send))

    async def command(self, *arguments: bytes) -> Any:
        """Send a command and return its reply, an error as an exception."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def received(value: Any) -> None:
            if not reply.done():
                reply.set_result(value)

        self.send(received, *arguments)
        return await reply

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is open."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: replies, or news of keys, have come."""
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                if isinstance(reply, hiredis.PushNotification):
                    self._told(reply)
                elif (received := self._callbacks.popleft()) is not None:
                    received(reply)
        except hiredis.ProtocolError:
            logger.exception("the backend does not speak RESP3: closing the watch's connection to it")
            self.close()

    def _told(self, news: list[Any]) -> None:
        if news[0] != b"invalidate":
            return
        if news[1] is None:
            # Everything was flushed. To connect again is to forget everything.
            self.close()
            return
        for key in news[1]:
            self._changed(key)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended."""
        self._transport = None
        callbacks, self._callbacks = self._callbacks, deque()
        error = BackendError("the watch's connection to the backend was lost")
        for received in callbacks:
            if received is not None:
                received(error)
        self.ended.set()
