"""The outbox: what has been written to a client, and how much of it the operating system has taken.

What operations have taken from queues is in it. The backend keeps that for us until it has been handed over;
what is left when the connection ends goes back.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pressure_server.net.tcp_info import TlsRecords, bytes_sent
from pressure_server.queues.operations.operation import Operation

# Input is discarded in pieces of so many bytes; more pieces than these are in no buffer of a kernel.
_PIECE = 1 << 20
_MOST_DISCARDED = 16


class Outbox:
    """Of one connection, from when it is made."""

    __slots__ = ("_beneath", "_broken_off", "_handed", "_records", "_transport", "_unsent", "written")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written = 0
        self._handed = 0  # of that, what had been handed over when we looked last
        # Where in what is written the replies of operations begin and end, that have taken something.
        self._unsent: list[tuple[int, int, Operation]] = []
        self._broken_off = False
        # Over TLS there is a buffer that cannot be seen: records are counted. If they cannot be, it is taken
        # for empty when the socket can be written to.
        self._records: TlsRecords | None = None
        self._beneath: select.poll | None = None
        if transport.get_extra_info("sslcontext") is not None:
            self._records = TlsRecords.of(transport)
            self._beneath = select.poll()
            self._beneath.register(transport.get_extra_info("socket"), select.POLLOUT)

    @property
    def socket(self) -> Any:
        """The connection's socket, open until `end` if that is ours, else as long as the transport's."""
        return self._records.socket if self._records is not None else self._transport.get_extra_info("socket")

    def write(self, data: bytes) -> None:
        """Send it when the client reads."""
        self.written += len(data)
        if self._records is not None:
            self._records.wrote(len(data))
        self._transport.write(data)

    def expect(self, replies: Sequence[tuple[int, int, Operation]]) -> None:
        """What is written next has replies that bring what was taken: from and to which offset, of whom."""
        written, unsent = self.written, self._unsent
        for start, end, operation in replies:
            unsent.append((written + start, written + end, operation))

    @property
    def size(self) -> int:
        """How many bytes wait to be handed over, as far as can be seen."""
        return self._transport.get_write_buffer_size()

    @property
    def has_messages(self) -> bool:
        """Whether something that was taken has not been handed over yet."""
        return bool(self._unsent)

    def look(self) -> int:
        """Tell what has been handed over that it is delivered, while it is open. Returns `size`."""
        size = self._transport.get_write_buffer_size()
        if not size and self._beneath is None:
            # Nearly always: this is worth a twentieth of a get.
            self._handed = self.written
            unsent, self._unsent = self._unsent, []
            for _, _, operation in unsent:
                operation.acknowledge()
            return 0
        if self._records is not None:
            self._handed = max(self._handed, self._records.taken())
        elif self._beneath is None:
            self._handed = self.written - size
        elif not size and self._beneath.poll(0):
            self._handed = self.written
        done = 0
        for _, end, operation in self._unsent:
            if end > self._handed:
                break
            operation.acknowledge()
            done += 1
        del self._unsent[:done]
        return size

    def break_off(self) -> None:
        """End the connection at once; what has not been handed over never is."""
        if not self._transport.is_closing():
            self.look()
            self._discard_input()
        self._broken_off = True
        self._transport.abort()

    def _discard_input(self) -> None:
        """Read what the client has sent. If it stays unread, the kernel drops what it has not sent yet."""
        number = self.socket.fileno()
        with suppress(OSError):  # that was all
            for _ in range(_MOST_DISCARDED):
                if not os.read(number, _PIECE):
                    break

    def end(self, error: Exception | None) -> None:
        """The connection has ended: what has not been handed over goes back."""
        if self._records is not None:
            taken = self._records.taken_at_the_end(is_broken=error is not None)
            self._handed = max(self._handed, taken)
        elif error is None and self._beneath is None and not self._broken_off:
            self._handed = self.written
        else:
            self._handed = max(self._handed, bytes_sent(self._transport) or 0)
        unsent, self._unsent = self._unsent, []
        for start, end, operation in unsent:
            if end <= self._handed:
                operation.acknowledge()
            else:
                operation.note_handed_over(self._handed - start)
                operation.put_back()
