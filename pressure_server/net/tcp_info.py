"""Sent: how many bytes of a connection the kernel has taken, and sent. Linux says so for TCP.

A transport that has failed says that nothing is left to be written, whatever it has dropped; and one over TLS
does not say what the transport beneath it still has.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections import deque
from typing import Any, NamedTuple

# In struct tcp_info of linux/tcp.h: tcpi_notsent_bytes, and, since Linux 4.19, tcpi_bytes_sent and
# tcpi_bytes_retrans.
_NOT_SENT_OFFSET = 144
_NOT_SENT = struct.Struct("=I")
_SENT_OFFSET = 200
_SENT = struct.Struct("=QQ")

# The plain text of a full record of TLS, and what a record adds to its plain text. Others are not constant.
_RECORD = 16384
_OVERHEAD_13 = 22
_OVERHEADS_12 = {"GCM": 29, "CHACHA20": 21}


class Sent(NamedTuple):
    """Bytes of a TCP connection, each counted once: those sent, and those that the kernel has taken."""

    sent: int
    taken: int


def bytes_sent(transport: asyncio.Transport) -> int | None:
    """How many bytes were sent over TCP; None where that cannot be known.

    What the kernel has not sent never arrives; of what it has sent nobody can say whether it has been read.
    """
    if transport.get_extra_info("sslcontext") is not None:
        return None
    found = _look(transport.get_extra_info("socket"))
    return found.sent if found is not None else None


def _look(connected: Any) -> Sent | None:
    if sys.platform != "linux" or connected is None or connected.family == socket.AF_UNIX:
        return None
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SENT_OFFSET + _SENT.size)
    if len(info) < _SENT_OFFSET + _SENT.size:
        return None
    sent, sent_again = _SENT.unpack_from(info, _SENT_OFFSET)
    (not_sent,) = _NOT_SENT.unpack_from(info, _NOT_SENT_OFFSET)
    return Sent(sent - sent_again, sent - sent_again + not_sent)


class TlsRecords:
    """How much of what is written over TLS the kernel has taken, counted in plain text.

    Each write becomes records of up to 16 KiB, each with a constant overhead, so the size of all is known.
    """

    __slots__ = ("_base", "_overhead", "_records_end", "_text_end", "_writes", "socket")

    def __init__(self, connected: socket.socket, base: int, overhead: int) -> None:
        """`base` is how many bytes the handshake has sent, or is about to."""
        # A copy: the transport closes its own before it says that the connection is lost.
        self.socket = connected
        self._base = base
        self._overhead = overhead
        self._text_end = 0
        self._records_end = 0
        # Where each write that is not known to be taken began: in the plain text, and in the records.
        self._writes: deque[tuple[int, int]] = deque()

    @classmethod
    def of(cls, transport: asyncio.Transport) -> TlsRecords | None:
        """For a connection over TLS that has just begun; None where records cannot be counted."""
        connected = transport.get_extra_info("socket")
        found = _look(connected)
        name, version, _ = transport.get_extra_info("cipher") or ("", "", 0)
        overhead = _OVERHEAD_13 if version == "TLSv1.3" else None
        if version == "TLSv1.2":
            overhead = next((size for word, size in _OVERHEADS_12.items() if word in name), None)
        if found is None or overhead is None:
            return None
        try:
            copy = socket.socket(fileno=os.dup(connected.fileno()))
        except OSError:  # too many files are open
            return None
        return cls(copy, found.taken + transport.get_write_buffer_size(), overhead)

    def wrote(self, size: int) -> None:
        """So many bytes of plain text were written."""
        self._writes.append((self._text_end, self._records_end))
        self._text_end += size
        self._records_end += size + -(-size // _RECORD) * self._overhead

    def taken(self) -> int:
        """How many bytes of plain text are in records that the kernel has taken completely."""
        found = _look(self.socket)
        if found is None:
            return 0
        text = self._text_in(found.taken)
        if text == self._text_end:
            # What has been sent beside the records, to renew keys, no longer matters.
            self._base = found.taken - self._records_end
        return text

    def taken_at_the_end(self, *, is_broken: bool) -> int:
        """The same when the connection has ended. If it is broken, what was not sent never arrives."""
        found = _look(self.socket)
        self.socket.close()
        if found is None:
            return 0
        return self._text_in(found.sent if is_broken else found.taken)

    def _text_in(self, size: int) -> int:
        size -= self._base
        if size >= self._records_end:
            self._writes.clear()
        if not self._writes:
            # All was taken, though a connection that is broken may not have sent it.
            return self._text_end
        while len(self._writes) > 1 and self._writes[1][1] <= size:
            self._writes.popleft()
        text, records = self._writes[0]
        return text + max(0, size - records) // (_RECORD + self._overhead) * _RECORD
