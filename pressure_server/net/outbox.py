"""The outbox: the bytes written to a client, and how many of them the kernel has accepted.

The backend keeps the messages in replies until then. See docs/internals/deliveries.md for the kinds of
evidence, and for clients that have closed their side or are silent.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pressure_server.net.tcp_info import TlsRecords, counts_of
from pressure_server.queues.operations.operation import Operation

if TYPE_CHECKING:
    from pressure_server.net.connection import Connection

# Unread input is discarded in pieces of this many bytes. No kernel buffer holds more pieces than this.
_PIECE: Final = 1 << 20
_MAX_DISCARDED: Final = 16
# Milliseconds after which a connection ends whose client has closed its side and acknowledges nothing.
_ACKNOWLEDGED_WITHIN: Final = 60_000

# Seconds between checks of connections with slow clients: the minimum, and the time per connection.
_PAUSE: Final = 0.01
_PAUSE_FOR_EACH: Final = 20e-6


class _Evidence(Enum):
    """What tells which bytes the kernel has accepted."""

    BUFFER = "bytes that are not in the transport's buffer"
    ACKNOWLEDGED = "bytes that the client's kernel has acknowledged: the client has closed its side"
    # The buffer of TLS does not tell its size.
    RECORDS = "bytes of complete TLS records"
    WRITABLE = "all if the socket is writable: the records of this kind of TLS cannot be counted"


# A name for each request: Python 3.11 takes long to find a member of an enumeration.
_BUFFER: Final = _Evidence.BUFFER


class Outbox:
    """The outbox of one connection, created when the client connects."""

    __slots__ = (
        "_confirmed_from", "_evidence", "_records", "accepted", "is_reset", "transport", "unaccepted",
        "written",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.written = 0
        self.accepted = 0  # bytes of `written` that the kernel had accepted at the last check
        # Replies with messages that the kernel has not accepted: the offsets in the written bytes at which
        # they begin and end, and their operations.
        self.unaccepted: list[tuple[int, int, Operation]] = []
        self.is_reset = False  # the client's kernel has refused some
        # Until the client's kernel has acknowledged this many of the written bytes, only those that it has
        # acknowledged count as accepted.
        self._confirmed_from = 0
        self._evidence = _Evidence.BUFFER
        self._records: TlsRecords | None = None
        if transport.get_extra_info("sslcontext") is not None:
            self._records = TlsRecords.of(transport)
            self._evidence = _Evidence.WRITABLE if self._records is None else _Evidence.RECORDS

    @property
    def socket(self) -> Any:
        """The connection's socket: over TLS a copy that stays open until `end`, else the transport's."""
        return self._records.socket if self._records is not None else self.transport.get_extra_info("socket")

    def write(
        self, data: bytes, taken: Sequence[tuple[int, int, Operation]] = (), *, is_silent: bool = False
    ) -> None:
        """Write replies to the transport, which sends them when the client reads.

        `taken` are those in `data` that bring messages: where they start and end, and their operations. If
        the client `is_silent`, its kernel must acknowledge them, if the system can tell, and unless it is so
        slow that earlier replies are not acknowledged.
        """
        for start, end, operation in taken:
            self.unaccepted.append((self.written + start, self.written + end, operation))
        self.written += len(data)
        if is_silent and self._evidence in (_Evidence.BUFFER, _Evidence.RECORDS):
            found = counts_of(self.socket)
            if found is not None and found.acknowledged >= found.taken:
                self._confirmed_from = self.written
        if self._records is not None:
            self._records.wrote(len(data))
        self.transport.write(data)

    def require_acknowledgements(self) -> bool:
        """Count bytes as accepted only when the client, which has closed its side, has acknowledged them.

        Return False if that cannot be known.
        """
        connected = self.socket
        if self._evidence is _Evidence.ACKNOWLEDGED:
            return True
        if self._evidence is not _Evidence.BUFFER or connected is None:
            return False
        if connected.family == socket.AF_UNIX:
            return True  # a write fails if the client has closed altogether
        if counts_of(connected) is None:
            return False
        self._evidence = _Evidence.ACKNOWLEDGED
        if sys.platform == "linux":
            with suppress(OSError):  # the connection has ended meanwhile
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _ACKNOWLEDGED_WITHIN)
        return True

    def update_delivered(self) -> int:
        """Mark operations as delivered whose replies the kernel has accepted. Set `is_reset` after a reset.

        Return the bytes in the transport's buffer, without those in the TLS buffer.
        """
        size = self.transport.get_write_buffer_size()
        if self._confirmed_from and not self._is_confirmed():
            pass
        elif not size and self._evidence is _BUFFER:
            # The common case. This fast path saves a twentieth of the cost of a get.
            self.accepted = self.written
            unsent, self.unaccepted = self.unaccepted, []
            for _, _, operation in unsent:
                operation.acknowledge()
            return 0
        elif self._records is not None:
            self.accepted = max(self.accepted, self._records.taken())
        elif self._evidence is _Evidence.ACKNOWLEDGED:
            self._count_acknowledged()
        elif self._evidence is _BUFFER:
            self.accepted = self.written - size
        elif not size:
            poll = select.poll()
            poll.register(self.socket, select.POLLOUT)
            if poll.poll(0):
                self.accepted = self.written
        done = 0
        for _, end, operation in self.unaccepted:
            if end > self.accepted:
                break
            operation.acknowledge()
            done += 1
        del self.unaccepted[:done]
        return size

    def _is_confirmed(self) -> bool:
        """Count what the kernel of a silent client has acknowledged. Return whether that is enough."""
        self._count_acknowledged()
        if self.accepted >= self._confirmed_from:
            self._confirmed_from = 0
        return not self._confirmed_from

    def _count_acknowledged(self) -> None:
        found = counts_of(self.socket)
        if found is not None:
            acknowledged = found.acknowledged
            if self._records is not None:
                acknowledged = self._records.text_in(acknowledged)
            self.accepted = max(self.accepted, min(acknowledged, self.written))
            self.is_reset = found.is_closed and self.accepted < self.written

    def break_off(self) -> None:
        """End the connection at once. Replies that the kernel has not accepted are not sent any more."""
        if not self.transport.is_closing():
            # The kernel still delivers what it has accepted.
            self._confirmed_from = 0
            connected = self.socket
            if connected is not None and self._evidence is _BUFFER:
                # Let the kernel accept no more: a transport that is aborted in a callback may write once more
                # before it reports its end. The client would get a message that is put back, too.
                number, family, kind = connected.fileno(), connected.family, connected.type
                with suppress(OSError), socket.fromfd(number, family, kind) as copy:
                    copy.shutdown(socket.SHUT_WR)
            self.update_delivered()
            if connected is not None:
                self._discard_input(connected.fileno())
        self.transport.abort()

    @staticmethod
    def _discard_input(number: int) -> None:
        """Discard unread input. If a socket is closed with unread input, the kernel drops unsent output."""
        with suppress(OSError):  # BlockingIOError after the last piece
            for _ in range(_MAX_DISCARDED):
                if not os.read(number, _PIECE):
                    break

    def end(self, error: Exception | None, *, is_broken_off: bool = False) -> None:
        """Put back the messages that the kernel has not accepted, after the end of the connection.

        `error` is the reason if it is broken; it `is_broken_off` if the server has dropped unsent replies.
        """
        is_lost = error is not None or self.is_reset
        is_unconfirmed = self._confirmed_from and is_lost and not self._is_confirmed()
        if self._records is not None:
            taken = self._records.taken_at_the_end(is_broken=error is not None)
            if not is_unconfirmed:
                self.accepted = max(self.accepted, taken)
        elif is_unconfirmed or self._evidence is _Evidence.WRITABLE:
            pass
        elif is_lost and self._evidence is _Evidence.ACKNOWLEDGED:
            self._count_acknowledged()
        elif error is None and not is_broken_off:
            self.accepted = self.written
        elif (found := counts_of(self.socket)) is not None:
            # Unsent bytes never arrive. Sent bytes may or may not have been read.
            self.accepted = max(self.accepted, found.sent)
        unsent, self.unaccepted = self.unaccepted, []
        for start, end, operation in unsent:
            if end <= self.accepted:
                operation.acknowledge()
            else:
                operation.note_handed_over(self.accepted - start)
                operation.put_back()


class Deliveries:
    """The connections with written replies that the socket may not have accepted yet."""

    def __init__(self) -> None:
        self._fresh: dict[Connection, None] = {}
        self._slow: dict[Connection, None] = {}
        self._loop = asyncio.get_running_loop()
        self._is_looking = False

    def watch(self, connection: Connection) -> None:
        """Check the connection in the loop's next iteration, and regularly until everything is sent."""
        if not self._fresh:
            self._loop.call_soon(self._look_at_fresh)
        self._fresh[connection] = None

    def _look_at_fresh(self) -> None:
        fresh, self._fresh = self._fresh, {}
        self._slow |= {connection: None for connection in fresh if not connection.acknowledge_sent()}
        if self._slow and not self._is_looking:
            self._is_looking = True
            self._look_later()

    def _look_later(self) -> None:
        self._loop.call_later(max(_PAUSE, _PAUSE_FOR_EACH * len(self._slow)), self._look_at_slow)

    def _look_at_slow(self) -> None:
        self._slow = {connection: None for connection in self._slow if not connection.acknowledge_sent()}
        self._is_looking = bool(self._slow)
        if self._is_looking:
            self._look_later()
