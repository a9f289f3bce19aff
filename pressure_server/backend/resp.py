"""One connection to the backend: commands out, replies in order to callbacks.

No future, task or coroutine for a command: redis-py's two coroutine switches would cost more than the call.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import struct
import termios
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from pressure_server.errors import BackendError, BackendReplyError, OutcomeUnknownError

# So often in the time for which we are patient it is looked whether what was sent gets through.
_LOOKS = 2

# Characters of an error reply that are told.
_LONGEST_ERROR = 200

Received = Callable[[Any], None]

# Errors that say nothing of what was asked: the same may work a little later.
_PASSING = re.compile(r"(LOADING|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN)\b|ERR max number of clients")


# Errors to a script that has not begun, where waiting or another connection helps.
_PATIENCE = re.compile(r"(LOADING|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|READONLY|NOAUTH)\b")


def asks_for_patience(error: Exception) -> bool:
    """Whether what was asked has not been done, and may be a little later."""
    return bool(_PATIENCE.match(_as_it_came(error)))


def is_buried(error: Exception) -> bool:
    """Whether what was asked has not been done, as its epoch has ended (records.lua)."""
    return _as_it_came(error).startswith("BURIED ")


def _as_it_came(error: Exception) -> str:
    return str(error.__cause__ if isinstance(error, BackendReplyError) else error)


def is_passing(error: Exception) -> bool:
    """Whether the backend's error is about the moment, and not about what it was asked."""
    return bool(_PASSING.match(_as_it_came(error)))


def unsent_bytes(transport: asyncio.WriteTransport) -> int:
    """How much of what was written has not reached the other side, as far as the kernel says."""
    unsent = transport.get_write_buffer_size()
    try:
        in_kernel = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return unsent  # it is for Linux to know
    return unsent + int(struct.unpack("i", in_kernel)[0])


async def reply_to(arguments: Sequence[bytes], ask: Callable[[Received], None]) -> Any:
    """The reply to a command that `ask` sends, with where the reply is to go.

    Raises BackendReplyError for an error reply, whose cause is the error as it came; else BackendError.
    """
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def received(reply: Any) -> None:
        if not future.done():
            future.set_result(reply)

    ask(received)
    reply = await future
    if isinstance(reply, BackendError):
        raise reply
    if isinstance(reply, Exception):
        text = str(reply)
        # What is not Redis may repeat all that it was sent.
        text = text if len(text) <= _LONGEST_ERROR else text[:_LONGEST_ERROR] + "…"
        raise BackendReplyError(f"the backend answered {arguments[0].decode()} with: {text}") from reply
    return reply


class BackendConnection(asyncio.Protocol):
    """From connect to loss. `lost` is called once, after all callbacks, with why.

    Every command is answered through its callback: with the reply, an error reply as an exception, or
    BackendError when the connection went away first.
    """

    def __init__(self, patience: float) -> None:
        """Where nothing has come for `patience` seconds although something was asked, it is broken off."""
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._watching: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._written = 0
        # At the last look: bytes that had left us, and those that had not.
        self._left = self._unsent = 0
        self._transport: asyncio.WriteTransport | None = None
        # Whether commands can be sent.
        self.is_open = False
        self._reader = hiredis.Reader()
        self._callbacks: deque[Received | None] = deque()
        self._refusal: Exception | None = None

    def abort(self, why: Exception | None = None) -> None:
        """Break the connection off at once, for that reason; `lost` follows."""
        if self._transport is not None:
            self._refusal = self._refusal or why
            self._transport.abort()

    def lost(self, why: Exception | None) -> None:
        """The connection has ended."""

    def told(self, news: list[Any]) -> None:
        """The backend says something that was not asked (RESP3)."""

    def close(self) -> None:
        """Close the connection when what has been written is sent; `lost` follows."""
        if self._transport is not None:
            self._transport.close()

    def send(self, received: Received | None, *arguments: bytes) -> None:
        """Send a command. Raises BackendError when there is no connection."""
        if self._transport is None:
            raise BackendError("the connection to the backend was lost")
        if not self._callbacks:
            self._heard = self._loop.time()
            self._unsent = 0
            if self._watching is None:
                self._watching = self._loop.call_later(self._patience / _LOOKS, self._look)
        self._callbacks.append(received)
        data = hiredis.pack_command(arguments)  # type: ignore[arg-type] # its stub says tuple of one
        self._written += len(data)
        self._write(data)

    def _look(self) -> None:
        """Whether it still answers."""
        self._watching = None
        if not self._callbacks or self._transport is None:
            return
        unsent = unsent_bytes(self._transport)
        if self._unsent and self._written - unsent > self._left:
            # The network is slow: what has not reached the backend it cannot answer.
            self._heard = self._loop.time()
        self._left, self._unsent = self._written - unsent, unsent
        left = self._heard + self._patience - self._loop.time()
        if left <= 0:
            self.abort(BackendError(f"it has not answered for {self._patience:g} seconds"))
        else:
            self._watching = self._loop.call_later(min(left, self._patience / _LOOKS), self._look)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def command(self, *arguments: bytes) -> Any:
        """Send a command and wait for its reply.

        Raises BackendReplyError for an error reply, whose cause is the error as it came; else BackendError.
        """
        return await reply_to(arguments, lambda received: self.send(received, *arguments))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is open."""
        self._transport = cast(asyncio.WriteTransport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """asyncio: replies have come."""
        reader, callbacks = self._reader, self._callbacks
        self._heard = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if type(reply) is hiredis.PushNotification:
                    self.told(reply)
                elif not callbacks:
                    # It refuses the connection as such, as where it has too many clients.
                    self._refusal = reply if isinstance(reply, Exception) else None
                    self.close()
                elif (received := callbacks.popleft()) is not None:
                    received(reply)
        except hiredis.ProtocolError as error:
            self.abort(BackendError(f"what came is not of the Redis protocol: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended. What had no reply yet has failed; it may have run."""
        self._transport = None
        self.is_open = False
        callbacks, self._callbacks = self._callbacks, deque()
        if self._watching is not None:
            self._watching.cancel()
        error = OutcomeUnknownError()
        error.__cause__ = self._refusal or exc
        for received in callbacks:
            if received is not None:
                received(error)
        self.lost(self._refusal or exc)
