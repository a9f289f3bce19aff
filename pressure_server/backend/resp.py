"""One connection to the backend: it sends commands, and passes their replies to callbacks in order.

A command has no future, task or coroutine: redis-py's two coroutine switches cost more than the call.
"""

import asyncio
import fcntl
import re
import struct
import termios
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import hiredis

from pressure_server.compiled import mypyc_attr
from pressure_server.errors import BackendError, BackendReplyError, OutcomeUnknownError

# Progress checks per timeout.
_CHECKS_PER_TIMEOUT: Final = 2
# The most characters of an error reply that are shown.
_MAX_ERROR: Final = 200
# Each write to the socket costs the transport as much as hundreds of small words. So words are joined if
# _MANY of them have at most _JOINED bytes; larger ones are sent from where they are.
_MANY: Final = 256
_JOINED: Final = 64 << 10

Received = Callable[[Any], None]


class _Lengths(dict[int, bytes]):
    """What is sent before a word of a length. To format it takes four times as long as to look it up."""

    def __missing__(self, length: int) -> bytes:
        return b"$%d\r\n" % length


LENGTHS: Final = _Lengths({length: b"$%d\r\n" % length for length in range(1024)})
CRLF: Final = b"\r\n"


def joined(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the pieces, with small neighbours joined."""
    for first in range(0, len(pieces), _MANY):
        some = pieces[first : first + _MANY]
        if sum(map(len, some)) <= _JOINED:
            yield b"".join(some)
        else:
            yield from some


def add_packed(pieces: list[bytes], words: Sequence[bytes]) -> None:
    """Append words of a command as pieces that have only to be joined: many small words are one piece."""
    if len(words) <= _MANY:
        for word in words:
            pieces += (LENGTHS[len(word)], word, CRLF)
        return
    for first in range(0, len(words), _MANY):
        some = tuple(words[first : first + _MANY])
        if sum(map(len, some)) <= _JOINED:
            pieces.append(packed(some))
        else:
            for word in some:
                pieces += (LENGTHS[len(word)], word, CRLF)


def packed(words: tuple[bytes, ...]) -> bytes:
    """Return short words as they are sent in a command, without their number."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type] # its stub says tuple of one
    return command[command.index(b"\n") + 1 :]


# Errors that do not concern the command: the same command may work later.
_PASSING: Final = re.compile(
    r"(LOADING|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|ASK|MOVED)\b|ERR max number of clients"
)
# The same, and errors after which a new connection may help.
_RETRYABLE: Final = re.compile(rf"{_PASSING.pattern}|(READONLY|NOAUTH)\b")
# Errors of a node of a cluster that is giving the keys to another one, and then: nothing has been done.
_MOVING: Final = re.compile(r"(TRYAGAIN|ASK)\b")
_REDIRECTION: Final = re.compile(r"MOVED \d+ (.*):(\d{1,5})$")
# Errors of a backend that is out of memory, cannot write to its disk, or lacks replicas.
_NO_WRITES: Final = re.compile(r"(OOM|MISCONF|NOREPLICAS)\b")


def is_retryable(error: Exception) -> bool:
    """Return whether the command has not been done, and may work later or on a new connection."""
    return bool(_RETRYABLE.match(_as_it_came(error)))


def is_moving(error: Exception) -> bool:
    """Return whether the keys are about to be on another node, and the same command works when they are."""
    return bool(_MOVING.match(_as_it_came(error)))


def redirection(error: Exception) -> tuple[str, int] | None:
    """Return the host, empty if it is the same, and the port of the node that the error says has the keys."""
    found = _REDIRECTION.match(_as_it_came(error))
    return (found[1].strip("[]"), int(found[2])) if found else None


def is_refusal_of_writes(error: Exception) -> bool:
    """Return whether the backend accepts no writes, or none that need memory, but may answer reads."""
    return bool(_NO_WRITES.match(_as_it_came(error)))


def is_stale_epoch(error: Exception) -> bool:
    """Return whether the call has not been done because its epoch has ended (records.lua)."""
    return _as_it_came(error).startswith("BURIED ")


def _as_it_came(error: Exception) -> str:
    return str(error.__cause__ if isinstance(error, BackendReplyError) else error)


def is_temporary(error: Exception) -> bool:
    """Return whether the error is temporary, and not about the command."""
    return bool(_PASSING.match(_as_it_came(error)))


def unsent_bytes(transport: asyncio.WriteTransport) -> int:
    """Return how many of the written bytes have not reached the other side, as far as the kernel knows."""
    unsent = transport.get_write_buffer_size()
    try:
        in_kernel = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return unsent  # only Linux knows for sockets
    return unsent + int(struct.unpack("i", in_kernel)[0])


async def wait_for_reply(command: bytes, ask: Callable[[Received], None]) -> Any:
    """Call `ask` with a callback for the reply, and return the reply. Errors name the command.

    Raises BackendReplyError for an error reply, which is its cause; BackendError if there is no reply.
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
        # A service that is not Redis may echo everything that it was sent.
        text = text if len(text) <= _MAX_ERROR else text[:_MAX_ERROR] + "…"
        error = BackendReplyError(f"the backend answered {command.decode()} with: {text}")
        error.__cause__ = reply  # compiled, `raise … from` would leave it out
        raise error
    return reply


@mypyc_attr(allow_interpreted_subclasses=True)
class BackendConnection:
    """A connection, from its opening to its loss: a protocol, as asyncio calls it.

    The callback of a command gets the reply, an error reply as an exception, or a BackendError if the
    connection is lost first. After all callbacks, `ended` is set.
    """

    def __init__(self, answer_timeout: float) -> None:
        """Prepare. If a reply is due and nothing comes for `answer_timeout` seconds, abort the connection."""
        self._answer_timeout = answer_timeout
        self._loop = asyncio.get_running_loop()
        self._watching: asyncio.TimerHandle | None = None
        self._last_received = self._next_check = 0.0
        self._written = 0
        # At the last check: how many bytes had reached the backend, and how many had not.
        self._left = self._unsent = 0
        self._transport: asyncio.WriteTransport | None = None
        self._write: Callable[[bytes], None] | None = None  # writes to the transport
        # Whether commands can be sent.
        self.is_open = False
        self.ended = asyncio.Event()
        self._reader = hiredis.Reader()
        self._callbacks: deque[Received | None] = deque()
        self._refusal: Exception | None = None

    def abort(self, why: Exception | None = None) -> None:
        """Abort the connection for the reason `why`; `connection_lost` follows."""
        if self._transport is not None:
            self._refusal = self._refusal or why
            # Whatever is written from now on gets no reply.
            self.is_open = False
            self._transport.abort()

    def told(self, news: list[Any]) -> None:
        """Handle a push message of the backend (RESP3); for subclasses."""

    def close(self) -> None:
        """Close the connection after all written bytes are sent; `connection_lost` follows."""
        if self._transport is not None:
            self._transport.close()

    def send(self, received: Received | None, *arguments: bytes) -> None:
        """Send a command; `received` gets its reply. Raises BackendError if there is no connection."""
        self.send_packed(received, (hiredis.pack_command(arguments),))  # type: ignore[arg-type] # its stub says tuple of one

    def send_packed(self, received: Received | None, pieces: Sequence[bytes]) -> None:
        """Send a command, given as the pieces of the bytes to send, as `send` does."""
        if self._write is None:
            raise BackendError("the connection to the backend was lost")
        if not self._callbacks:
            self._last_received = self._loop.time()
            self._unsent = 0
            if self._watching is None:
                self._check_within(self._answer_timeout)
        self._callbacks.append(received)
        self._written += sum(map(len, pieces))
        for data in pieces:
            self._write(data)

    def _check_within(self, seconds: float) -> None:
        seconds = min(seconds, self._answer_timeout / _CHECKS_PER_TIMEOUT)
        self._next_check = self._loop.time() + seconds
        self._watching = self._loop.call_later(seconds, self._check_progress)

    def _check_progress(self) -> None:
        """Abort the connection if the backend has been silent for too long."""
        self._watching = None
        if not self._callbacks or self._transport is None:
            return
        now = self._loop.time()
        # While the machine stands still, so may the backend: its silence then proves nothing.
        self._last_received = min(now, self._last_received + max(0.0, now - self._next_check))
        unsent = unsent_bytes(self._transport)
        if self._unsent and self._written - unsent > self._left:
            # The network is slow: the backend cannot answer a command that has not reached it.
            self._last_received = now
        self._left, self._unsent = self._written - unsent, unsent
        left = self._last_received + self._answer_timeout - now
        if left <= 0:
            self.abort(BackendError(f"it has not answered for {self._answer_timeout:g} seconds"))
        else:
            self._check_within(left)

    async def command(self, *arguments: bytes) -> Any:
        """Send a command and return its reply. Raises the errors of `wait_for_reply`."""
        return await wait_for_reply(arguments[0], lambda received: self.send(received, *arguments))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the connection is open (called by asyncio)."""
        self._transport = cast(asyncio.WriteTransport, transport)
        self._write = self._transport.write
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Pass replies to their callbacks (called by asyncio)."""
        reader, callbacks = self._reader, self._callbacks
        self._last_received = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if type(reply) is hiredis.PushNotification:
                    self.told(reply)
                elif not callbacks:
                    # The backend refuses the connection itself, for example because of too many clients.
                    self._refusal = reply if isinstance(reply, Exception) else None
                    self.close()
                elif (received := callbacks.popleft()) is not None:
                    received(reply)
        except hiredis.ProtocolError as error:
            self.abort(BackendError(f"a reply does not follow the Redis protocol: {error}"))

    def eof_received(self) -> None:
        """Close the connection: the backend has closed it (called by asyncio)."""

    def pause_writing(self) -> None:
        """Go on writing: requests are bounded elsewhere (called by asyncio)."""

    def resume_writing(self) -> None:
        """Note that the backend reads again (called by asyncio)."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all commands without a reply; they may have been done (called by asyncio)."""
        self._transport = self._write = None
        self.is_open = False
        callbacks, self._callbacks = self._callbacks, deque()
        if self._watching is not None:
            self._watching.cancel()
        error = OutcomeUnknownError()
        error.__cause__ = self._refusal or exc
        for received in callbacks:
            if received is not None:
                received(error)
        self.ended.set()
