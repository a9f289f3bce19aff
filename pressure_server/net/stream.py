"""A client's byte stream: what is written, whether it can still deliver messages, and the memory it takes.

Commands and the order of their replies are the business of its sub-class, Connection.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pressure_server.auth.peer_address import Addresses
from pressure_server.errors import PressureError
from pressure_server.net.clients import Clients
from pressure_server.net.outbox import Outbox
from pressure_server.queues.operations.operation import Operation

# The memory account leaves out connections that hold no more than this, in bytes. It is also the number of
# written bytes after which the unsent bytes are counted again.
LEAST_COUNTED = 4096
# A reply of this size is counted as soon as it is written, even if it is the first one.
_LARGE = 64 << 10
# Seconds in which a client whose connection the server closes may read the last reply, and close its side.
LAST_WORDS = 1.0
# Why a connection ended, for the log.
CLIENT_CLOSED = "the client closed it"


class ClientStream(asyncio.Protocol, ABC):
    """The byte stream to one client, from `open` on."""

    __slots__ = (
        "_closing",
        "_counted",
        "_drains",
        "_evicted",
        "_has_hung_up",
        "_has_read_end",
        "_has_waited",
        "_is_throttled",
        "_next_count",
        "_outbox",
        "_reading",
        "_unsent_bytes",
        "_waits",
        "addresses",
        "clients",
        "close_reason",
        "has_disconnected",
        "has_left",
        "is_muted",
        "transport",
    )

    transport: asyncio.Transport
    addresses: Addresses
    _outbox: Outbox

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.close_reason = ""  # for the log, if the server closes the connection
        self._unsent_bytes = 0  # written, and in memory until the socket has taken everything
        self._next_count = LEAST_COUNTED  # count unsent bytes after this many have been written
        self._counted = 0  # bytes in the memory account
        self._is_throttled = False  # until the memory account has room
        self._evicted = False  # the memory account no longer counts this connection
        self._reading = True
        self._closing = False
        self._drains = False  # the server stops: do not wait for the client
        self._has_waited = False  # since the command that runs alone began
        self._has_hung_up = False  # the server's side is closed, and the client's is not yet
        # What waits for this client, each with the queues on which it waits.
        self._waits: dict[object, Sequence[bytes]] = {}
        # Whether the client has closed its side; whether all that it sent before has been read; and whether
        # it has left: it reads no more, or the outbox could not tell. Once a reply with messages cannot be
        # delivered, the stream is muted: later replies are dropped, as the client could not tell which
        # command they answer.
        self.has_disconnected = False
        self._has_read_end = False
        self.has_left = False
        self.is_muted = False

    @abstractmethod
    def buffered_bytes(self) -> int:
        """Return the bytes of requests and replies in memory, without those that are written and unsent."""

    @abstractmethod
    def proceed(self) -> None:
        """Go on with the client's commands, as far as its stream allows."""

    @abstractmethod
    def abandon_waits(self) -> None:
        """End the command that waits, and those after it: the client has closed its side."""

    @property
    @abstractmethod
    def can_proceed(self) -> bool:
        """See memory.AccountedConnection."""

    @abstractmethod
    def evict(self, why: PressureError) -> None:
        """See memory.AccountedConnection."""

    def throttle(self) -> None:
        """See memory.AccountedConnection."""
        self._is_throttled = True
        self.pause_reading()

    def resume(self) -> None:
        """See memory.AccountedConnection."""
        self._is_throttled = False
        self.proceed()

    def open(self, transport: asyncio.Transport) -> None:
        """Use this transport."""
        self.transport = transport
        self.addresses = Addresses.of(transport)
        self._outbox = Outbox(transport)

    @property
    def socket(self) -> Any:
        """See disconnects.Watched."""
        return self._outbox.socket

    def begin_wait(self, waiter: object, queues: Sequence[bytes]) -> None:
        """Stop reading until `end_wait` of this waiter, because the client waits for something.

        `queues` are those on which it waits. A client that has closed its side waits for nothing: its
        connection is closed.
        """
        self._waits[waiter] = queues
        self._has_waited = True
        if len(self._waits) == 1 and not self.transport.is_closing():
            self.pause_reading()
            if self.has_disconnected:
                self.abandon_waits()

    def end_wait(self, waiter: object) -> None:
        """End a wait, whatever its result."""
        self._waits.pop(waiter, None)  # a connection that has ended has none

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for something."""
        return bool(self._waits)

    @property
    def is_throttled(self) -> bool:
        """Whether the client waits until the memory account has room."""
        return self._is_throttled

    @property
    def is_read(self) -> bool:
        """Whether the server reads from the client at present."""
        return self._reading

    def waits_on(self) -> list[bytes]:
        """Return the queues on which the client waits, each once."""
        return list(dict.fromkeys(queue for queues in self._waits.values() for queue in queues))

    def client_disconnected(self, *, entirely: bool) -> None:
        """See disconnects.Watched. Commands already received are still done.

        If the client has certainly left, it gets none of the messages that they take.
        """
        self.has_disconnected = True
        self.has_left = entirely or not self._outbox.require_acknowledgements()
        if self._waits:
            self.abandon_waits()

    def can_deliver(self) -> bool:
        """Return whether the client may still be there to take a message.

        Every reply with messages is checked by this rule just before it is written. If the answer is no, the
        messages are put back and the stream is muted.
        """
        self.clients.disconnects.refresh()
        if self.has_left:
            self.is_muted = True
        return not (self.is_muted or self.transport.is_closing())

    def write(self, data: bytes, taken: Sequence[tuple[int, int, Operation]] = ()) -> None:
        """Write replies. `taken` are those in `data` that bring messages: see Outbox.expect."""
        if taken:
            if not self.can_deliver():
                for _, _, operation in taken:
                    operation.put_back()
                return
            self._outbox.register_replies(taken)
            self.clients.deliveries.watch(self)
        if self.is_muted or self.transport.is_closing():
            return
        outbox = self._outbox
        outbox.write(data)
        if outbox.written > self._next_count:
            self._next_count = outbox.written + LEAST_COUNTED
            self.clients.deliveries.watch(self)
            if len(data) > _LARGE:
                # A reply without messages may be as large as the limit, if its client reads it.
                self._count_unsent(len(data) if taken else 0)

    def acknowledge_sent(self) -> bool:
        """Acknowledge the messages that the socket has taken; return whether it has taken everything."""
        if self.transport.is_closing():
            return True  # connection_lost knows more
        outbox = self._outbox
        unsent = outbox.update_delivered()
        if outbox.is_reset:
            self._closing = True
            self.close_reason = self.close_reason or CLIENT_CLOSED
            outbox.abandon()
            return True
        if unsent or self._unsent_bytes:
            self._count_unsent()
        if outbox.has_messages:
            return False
        if self._closing:
            self.proceed()
        return not unsent

    def _count_unsent(self, written: int = 0) -> None:
        """Count the bytes that the socket has not taken. Python frees a buffer only when it is empty.

        `written` is the size of the buffer that was written last, of which the socket may have taken a part.
        """
        size = self.transport.get_write_buffer_size()
        kept = max(size, self._unsent_bytes, written) if size else 0
        if kept != self._unsent_bytes:
            self._unsent_bytes = kept
            self.recount()

    def held_bytes(self) -> int:
        """Return the bytes that are buffered for the client, as the memory account counts them."""
        # Undelivered messages count twice: the message, and its reply.
        return self.buffered_bytes() + (2 if self._outbox.has_messages else 1) * self._unsent_bytes

    def recount(self) -> None:
        """Tell the memory account how many bytes are buffered for the client."""
        size = self.held_bytes()
        counted = size if size > LEAST_COUNTED else 0
        if counted != self._counted and not self._evicted:
            self._counted = counted
            self.clients.memory.update(self, counted)

    def pause_reading(self) -> None:
        """Stop reading from the client, if it is read."""
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client again, if it is not read."""
        if not self._reading and not self._has_read_end:
            self._reading = True
            self.transport.resume_reading()

    def hang_up(self) -> None:
        """Close the connection when the client has closed its side, or after a second.

        If a socket is closed while the client sends, the kernel drops replies that are still on their way.
        """
        if self._has_read_end:
            # The end of the stream makes the client's kernel acknowledge the replies at once.
            if not self._outbox.has_messages:
                self.transport.close()
            elif not self._has_hung_up:
                self._has_hung_up = True
                self.transport.write_eof()
        elif self._drains or not self.transport.can_write_eof():
            self.transport.close()
        elif not self._has_hung_up:
            self._has_hung_up = True
            self.transport.write_eof()
            self.resume_reading()
            asyncio.get_running_loop().call_later(LAST_WORDS, self.transport.close)

    def break_off(self) -> None:
        """End the connection at once. Unsent replies are dropped, and unread requests are not executed."""
        self._closing = True
        self._outbox.break_off()
