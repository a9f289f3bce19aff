"""A client's connection: its socket, whether it can deliver messages, and the memory that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from pressure_server.auth.peer_address import Addresses
from pressure_server.compiled import mypyc_attr
from pressure_server.errors import PressureError
from pressure_server.net.clients import Clients
from pressure_server.net.connection_state import CLIENT_SIDE, SERVER_SIDE, ClientSide, Event, ServerSide
from pressure_server.net.outbox import Outbox
from pressure_server.queues.operations.operation import Operation

if TYPE_CHECKING:
    from pressure_server.net.session import Session

# The memory account leaves out connections that hold no more than this, in bytes. It is also the number of
# written bytes after which the unsent bytes are counted again.
LEAST_COUNTED: Final = 4096
# A reply of this size is counted as soon as it is written, even if it is the first one.
_LARGE: Final = 64 << 10
# Seconds after which a client may have vanished. The clients' clock moves once a second, so by it a client
# that has been silent for more than this has been silent for at least a second.
_SILENT: Final = 1.5
# Seconds in which a client whose connection the server closes may read the last reply, and close its side.
_CLOSE_TIMEOUT: Final = 1.0
# Why a connection ended, for the log.
CLIENT_CLOSED: Final = "the client closed it"
_IDLE: Final = "it was idle (--idle-timeout)"
# The protocol of a transport whose connection has ended.
_NO_PROTOCOL: Final = asyncio.Protocol()
# Names for each request: Python 3.11 takes long to find a member of an enumeration.
OPEN: Final = ServerSide.OPEN
_CLIENT_OPEN: Final = ClientSide.OPEN
_MUTED: Final = ClientSide.MUTED
# The states in which the memory account does not count a connection. Calls in flight may still report to it.
_UNCOUNTED: Final = (ServerSide.EVICTED, ServerSide.BROKEN_OFF, ServerSide.CLOSED)


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection:
    """The connection of one client: a protocol, as asyncio calls it."""

    __slots__ = (
        "_client_side", "_outbox", "_unsent_bytes", "active", "addresses", "clients", "close_reason",
        "counted", "id", "is_read", "server_side", "session", "since", "transport", "waited",
    )  # fmt: skip
    # For mypyc: `connection_lost` deletes it.
    __deletable__ = ("session",)

    addresses: Addresses
    transport: asyncio.Transport
    _outbox: Outbox

    def __init__(self, clients: Clients, session: Session) -> None:
        self.clients = clients
        self.session = session
        self.id = next(clients.ids)
        self.since = clients.now  # when the client connected, by the loop's clock
        self.active = 0.0  # when the last command came
        self.waited = 0.0  # when its last wait ended
        self.close_reason = ""  # for the log, if the server closes the connection
        self.counted = 0  # bytes in the memory account
        self._unsent_bytes = 0  # written, and in memory until the socket has taken everything
        self.is_read = True
        self.server_side = OPEN
        self._client_side = ClientSide.OPEN

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: a client has connected."""
        # Not before: if a TLS handshake fails, nobody would break this cycle of references.
        self.session.connection = self
        self.transport = cast(asyncio.Transport, transport)
        self._outbox = Outbox(self.transport)
        self.addresses = Addresses.of(transport)
        if refusal := self.clients.admit(self.session):
            self._moves(Event.END)
            self.transport.write(refusal)
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: the client has sent these bytes."""
        if self.server_side is OPEN or self.server_side.takes_commands:
            self.active = self.clients.now
            self.session.received(data)

    def eof_received(self) -> bool:
        """Called by asyncio: the client has closed its side. Return whether replies are still to come."""
        self.clients.disconnects.poll()
        if not self.has_disconnected:  # this system does not report it
            self.client_disconnected(entirely=False)
        self.acknowledge_sent()
        if self.has_left or self.server_side is ServerSide.HUNG_UP or self.transport.is_closing():
            return False
        is_busy = self.session.is_busy
        if not (is_busy or self._outbox.unaccepted):
            return False
        self._client_moves(Event.READ_END)
        self.close_reason = self.close_reason or CLIENT_CLOSED
        if is_busy and self.server_side.takes_commands:
            self.session.finish()
        else:
            self._moves(Event.END)
            asyncio.get_running_loop().call_soon(self.session.proceed)
        return True

    def pause_writing(self) -> None:
        """Called by asyncio: the client reads its replies too slowly."""
        self._moves(Event.UNREAD)
        self.pause_reading()
        self.clients.deliveries.watch(self)

    def resume_writing(self) -> None:
        """Called by asyncio: the client has read enough replies."""
        self._moves(Event.READ)
        self.session.proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: the connection has ended. Messages that were not delivered are put back."""
        if exc is not None and not self.close_reason:
            self.close_reason = f"it was lost ({exc})"
        closed = CLIENT_CLOSED if self.server_side.takes_commands else "the server closed it"
        is_broken_off = self.server_side is ServerSide.BROKEN_OFF
        self._moves(Event.CLOSE)
        self.clients.remove(self.session, self.close_reason or closed)
        self._outbox.end(exc, is_broken_off=is_broken_off)
        self.session.ended()
        # The session and the transport refer to the connection: without these lines, only the garbage
        # collector would free them and their messages.
        self.transport.set_protocol(_NO_PROTOCOL)
        del self.session

    @property
    def socket(self) -> Any:
        """The connection's socket."""
        return self._outbox.socket

    def client_disconnected(self, *, entirely: bool) -> None:
        """Note that the client has closed its side: `entirely` if it certainly reads no more. Called once."""
        has_left = entirely or not self._outbox.require_acknowledgements()
        self._client_moves(Event.LEAVE if has_left else Event.HALF_CLOSE)
        if self.session.is_waiting:
            self.session.abandon_waits()

    def _moves(self, event: Event) -> bool:
        """Let an event change the state of the server's side. Return whether it does."""
        before = self.server_side
        self.server_side = SERVER_SIDE[before].get(event, before)
        return self.server_side is not before

    def _client_moves(self, event: Event) -> None:
        """Let an event change the state of the client's side."""
        self._client_side = CLIENT_SIDE[self._client_side].get(event, self._client_side)

    @property
    def has_disconnected(self) -> bool:
        """Whether the client has closed its side."""
        return self._client_side is not ClientSide.OPEN

    @property
    def has_left(self) -> bool:
        """Whether the client reads no more, as far as the system can tell."""
        return self._client_side in (ClientSide.LEFT, ClientSide.MUTED)

    @property
    def is_stopping(self) -> bool:
        """Whether the connection ends because the server stops."""
        return self.server_side in (ServerSide.STOPPING, ServerSide.STOPPING_IDLE)

    @property
    def is_throttled(self) -> bool:
        """Whether commands wait because the memory account has no room."""
        return self.server_side in (ServerSide.THROTTLED, ServerSide.THROTTLED_UNREAD)

    def can_deliver(self) -> bool:
        """Return whether the client may still be there to take a message.

        This is asked just before a reply with messages is written. If the client has left, later replies are
        dropped, too: it could not tell which command they answer.
        """
        self.clients.disconnects.refresh()
        if self._client_side is not _CLIENT_OPEN and self.has_left:
            self._client_moves(Event.NOT_DELIVERED)
            return False
        return not self.transport.is_closing()

    def write(self, data: bytes, taken: Sequence[tuple[int, int, Operation]] = ()) -> None:
        """Write replies. `taken` are those in `data` that bring messages: see Outbox.write."""
        outbox = self._outbox
        if taken:
            if not self.can_deliver():
                for _, _, operation in taken:
                    operation.put_back()
                return
            self.clients.deliveries.watch(self)
        elif self._client_side is _MUTED or self.transport.is_closing():
            return
        outbox.write(data, taken, is_silent=bool(taken) and self.clients.now - self.active > _SILENT)
        if outbox.written - outbox.accepted > LEAST_COUNTED:
            self.clients.deliveries.watch(self)
            if len(data) > _LARGE:
                # A reply without messages may be as large as the limit, if its client reads it.
                self._count_unsent(len(data) if taken else 0)

    def acknowledge_sent(self) -> bool:
        """Acknowledge the messages that the socket has taken; return whether it has taken everything."""
        outbox = self._outbox
        if self.transport.is_closing():
            return True  # connection_lost knows more
        unsent = outbox.update_delivered()
        if outbox.is_reset:
            self._moves(Event.END)
            self.close_reason = self.close_reason or CLIENT_CLOSED
            self.transport.abort()
            return True
        if unsent or self._unsent_bytes:
            self._count_unsent()
        if outbox.unaccepted:
            return False
        if self.server_side is not OPEN and not self.server_side.takes_commands:
            self.session.proceed()
        return not unsent

    def _count_unsent(self, written: int = 0) -> None:
        """Count the bytes that the socket has not taken. Python frees a buffer only when it is empty.

        `written` is the size of the last buffer, of which the socket may have taken a part.
        """
        size = self.transport.get_write_buffer_size()
        kept = max(size, self._unsent_bytes, written) if size else 0
        if kept != self._unsent_bytes:
            self._unsent_bytes = kept
            self.recount()

    def held_bytes(self) -> int:
        """Return the bytes that are buffered for the client, as the memory account counts them."""
        if self.server_side is ServerSide.CLOSED:
            return 0
        # Undelivered messages count twice: the message, and its reply.
        return self.session.buffered_bytes() + (2 if self._outbox.unaccepted else 1) * self._unsent_bytes

    def recount(self) -> None:
        """Tell the memory account how many bytes are buffered for the client."""
        if self.server_side in _UNCOUNTED:
            return
        size = self.held_bytes()
        counted = size if size > LEAST_COUNTED else 0
        if counted != self.counted:
            self.counted = counted
            self.clients.recount(self)

    @property
    def can_proceed(self) -> bool:
        """Whether the connection could proceed if it had a turn: it waits for nothing else."""
        return self.server_side in (OPEN, ServerSide.THROTTLED) and self.session.may_proceed

    @property
    def is_receiving(self) -> bool:
        """Whether a part of a request has come, and the rest has not."""
        return self.session.unparsed > 0

    def throttle(self) -> None:
        """Stop reading and executing commands until `resume`: the memory account has no room."""
        self._moves(Event.THROTTLE)
        self.pause_reading()

    def resume(self) -> None:
        """Resume reading and executing commands."""
        self._moves(Event.RESUME)
        self.session.proceed()

    def evict(self, why: PressureError) -> None:
        """Free the buffers, and close. A client that does not read its replies gets no error."""
        self.close_reason = f"evicted: {why}"
        self._moves(Event.EVICT)
        self.acknowledge_sent()
        self.session.give_up()
        if self.transport.get_write_buffer_size():
            self.break_off()
            return
        self.write(self.session.error_reply(why))
        if self.session.is_busy:
            self.transport.close()
        else:
            # A client that still sends must be read: at a close, its kernel would drop the reply unread.
            self.resume_reading()
        asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, self.break_off)

    def pause_reading(self) -> None:
        """Stop reading from the client, if it is read."""
        if self.is_read:
            self.is_read = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client again, if it is not read."""
        if not self.is_read and self._client_side is not ClientSide.READ_TO_END:
            self.is_read = True
            self.transport.resume_reading()

    def close_if_idle(self) -> None:
        """Close, unless the client works on what it has reserved, or waits for a reply that it reads."""
        if self.session.reserved_jobs.any_at(self.clients.now):
            return
        if self.transport.get_write_buffer_size():
            self.break_off(_IDLE)
        elif not self.session.is_busy:
            self.session.close_when_replied(_IDLE)

    def drain(self) -> None:
        """End the connection, because the server stops: see Session.stop."""
        if self._moves(Event.STOP_BUSY if self.session.is_answering else Event.STOP):
            self.close_reason = "the server stops"
            self.pause_reading()
            self.session.stop()

    def stop_receiving(self, reason: str = "") -> None:
        """Receive no further command: the connection will be closed, for the reason if one is given."""
        self._moves(Event.END)
        self.close_reason = reason or self.close_reason

    def close_when_sent(self) -> None:
        """Close the connection when the client has taken its messages, and has closed its side or is slow.

        If a socket is closed while the client sends, the kernel drops replies that are still on their way.
        """
        if self.server_side is ServerSide.EVICTED:
            return  # `evict` ends the connection
        if self._outbox.unaccepted:
            # The end of the stream makes the client's kernel acknowledge the replies at once. Then
            # `acknowledge_sent` leads here again.
            if self._client_side is ClientSide.READ_TO_END and self._moves(Event.HANG_UP):
                self.transport.write_eof()
        elif (
            self._client_side is ClientSide.READ_TO_END
            or self.server_side is ServerSide.STOPPING_IDLE
            or not self.transport.can_write_eof()
        ):
            self.transport.close()
        elif self._moves(Event.HANG_UP):
            self.transport.write_eof()
            self.resume_reading()
            asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, self.transport.close)

    def break_off(self, reason: str = "") -> None:
        """End the connection at once. Unsent replies are dropped, and unread requests are not executed."""
        if self._moves(Event.BREAK_OFF):
            self.close_reason = reason or self.close_reason
            self.session.give_up()
            self._outbox.break_off()
