"""The hot path to the backend: one pipelined connection, replies handed to callbacks in order.

No future, task or coroutine for a call: redis-py's two coroutine switches would cost more than the call.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from pressure_server.errors import BackendError, BackendReplyError

logger = logging.getLogger(__name__)

Received = Callable[[Any], None]


class Channel(asyncio.Protocol):
    """One connection to one database of the backend, from connect to loss.

    Every call is answered through its callback: with the reply, an error reply as an exception, or
    BackendError when the connection went away first. `lost` is called once, after those.
    """

    def __init__(self, script: bytes, lost: Callable[[Channel, Exception | None], None]) -> None:
        self._script = script
        self._sha = hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()
        self._lost = lost
        self._transport: asyncio.WriteTransport | None = None
        self._reader = hiredis.Reader()
        self._callbacks: deque[Received] = deque()

    def close(self) -> None:
        """Close the connection when what has been written is sent; `lost` follows."""
        if self._transport is not None:
            self._transport.close()

    def send(self, received: Received, *arguments: bytes) -> None:
        """Send a command. Raises BackendError when there is no connection."""
        if self._transport is None:
            raise BackendError("the connection to the backend was lost")
        self._callbacks.append(received)
        self._transport.write(hiredis.pack_command(arguments))  # type: ignore[arg-type] # its stub says tuple of one

    def load_script(self) -> None:
        """Put the batch script into the backend's cache."""
        self.send(lambda _reply: None, b"SCRIPT", b"LOAD", self._script)

    def call_script(self, keys: Sequence[bytes], arguments: Sequence[bytes], received: Received) -> None:
        """Call the batch script on queues. Raises BackendError when there is no connection."""
        words = (b"EVALSHA", self._sha, b"%d" % len(keys), *keys, *arguments)

        def answered(reply: Any) -> None:
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
                # Nothing has run, so it can run now.
                self.load_script()
                self.send(received, *words)
            else:
                received(reply)

        self.send(answered, *words)

    async def command(self, *arguments: bytes) -> Any:
        """Send a command and wait for its reply. Raises BackendError, also for an error reply."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def received(reply: Any) -> None:
            if not future.done():
                future.set_result(reply)

        self.send(received, *arguments)
        reply = await future
        if isinstance(reply, BackendError):
            raise reply
        if isinstance(reply, Exception):
            raise BackendReplyError(f"the backend answered {arguments[0].decode()} with: {reply}")
        return reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is open."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: replies have come."""
        reader, callbacks = self._reader, self._callbacks
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                callbacks.popleft()(reply)
        except hiredis.ProtocolError:
            logger.exception("the backend does not speak RESP: closing the connection to it")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended. What had no reply yet has failed; it may have run."""
        self._transport = None
        callbacks, self._callbacks = self._callbacks, deque()
        error = BackendError(
            "the connection to the backend was lost before it answered: this may or may not have been done"
        )
        for received in callbacks:
            received(error)
        self._lost(self, exc)
