"""TCP info: how many bytes of a TCP connection were accepted, sent and acknowledged. Linux only.

Transports do not tell: one that has failed reports an empty buffer, and TLS not the buffer of the one below.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections import deque
from typing import Any, NamedTuple

# Offsets in struct tcp_info of linux/tcp.h: tcpi_bytes_acked; tcpi_notsent_bytes; tcpi_bytes_sent and
# tcpi_bytes_retrans, since Linux 4.19. The first byte is the state.
_ACKED_OFFSET = 120
_ACKED = struct.Struct("=Q")
_NOT_SENT_OFFSET = 144
_NOT_SENT = struct.Struct("=I")
_SENT_OFFSET = 200
_SENT = struct.Struct("=QQ")
_CLOSED = 7  # TCP_CLOSE

# Bytes of plaintext in a full TLS record, and bytes that a record adds to its plaintext. Cipher suites that
# are not listed have no constant overhead.
_RECORD = 16384
_OVERHEAD_13 = 22
_OVERHEADS_12 = {"GCM": 29, "CHACHA20": 21}


class TcpCounts(NamedTuple):
    """Bytes of a TCP connection: those sent, those the kernel has accepted, those the peer has acknowledged.

    Retransmissions are not counted. `is_closed` is whether both sides have closed, or one has sent a reset.
    """

    sent: int
    taken: int
    acknowledged: int
    is_closed: bool


def bytes_sent(transport: asyncio.Transport) -> int | None:
    """Return how many bytes the kernel has sent over TCP; None with TLS or if the system cannot tell."""
    if transport.get_extra_info("sslcontext") is not None:
        return None
    found = counts_of(transport.get_extra_info("socket"))
    return found.sent if found is not None else None


def counts_of(connected: Any) -> TcpCounts | None:
    """Return the counts of a TCP socket; None for another socket, or if the system cannot tell."""
    if sys.platform != "linux" or connected is None or connected.family == socket.AF_UNIX:
        return None
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SENT_OFFSET + _SENT.size)
    if len(info) < _SENT_OFFSET + _SENT.size:
        return None
    sent, sent_again = _SENT.unpack_from(info, _SENT_OFFSET)
    (not_sent,) = _NOT_SENT.unpack_from(info, _NOT_SENT_OFFSET)
    (acknowledged,) = _ACKED.unpack_from(info, _ACKED_OFFSET)
    return TcpCounts(sent - sent_again, sent - sent_again + not_sent, acknowledged, info[0] == _CLOSED)


class TlsRecords:
    """A count of the plaintext bytes written over TLS that the kernel has accepted.

    Each write becomes records of up to 16 KiB with a constant overhead, so the size of all records is known.
    """

    __slots__ = ("_base", "_overhead", "_records_end", "_text_end", "_writes", "socket")

    def __init__(self, connected: socket.socket, base: int, overhead: int) -> None:
        """`connected` is a copy of the socket; `base` counts the handshake's bytes, sent or buffered."""
        # The transport closes its own socket before it reports the end of the connection.
        self.socket = connected
        self._base = base
        self._overhead = overhead
        self._text_end = 0
        self._records_end = 0
        # The offsets, in plaintext and in records, of each write not known to be accepted completely.
        self._writes: deque[tuple[int, int]] = deque()

    @classmethod
    def of(cls, transport: asyncio.Transport) -> TlsRecords | None:
        """Return a count for a new TLS connection; None if its records cannot be counted."""
        connected = transport.get_extra_info("socket")
        found = counts_of(connected)
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
        """Note that `size` bytes of plaintext were written."""
        if not size:
            return  # a reply that the client does not want
        self._writes.append((self._text_end, self._records_end))
        self._text_end += size
        self._records_end += size + -(-size // _RECORD) * self._overhead

    def taken(self) -> int:
        """Return the bytes of plaintext in records that the kernel has accepted completely."""
        found = counts_of(self.socket)
        if found is None:
            return 0
        text = self.text_in(found.taken)
        if text == self._text_end:
            # Everything was accepted: include other records, such as key updates, in the base.
            self._base = found.taken - self._records_end
        return text

    def taken_at_the_end(self, *, is_broken: bool) -> int:
        """Return the same after the end of the connection. If it is broken, count only sent bytes."""
        found = counts_of(self.socket)
        self.socket.close()
        if found is None:
            return 0
        return self.text_in(found.sent if is_broken else found.taken)

    def text_in(self, size: int) -> int:
        """Return the bytes of plaintext in complete records of the first `size` bytes of the connection.

        Writes that ended before the `size` of an earlier call are always counted.
        """
        size -= self._base
        if size >= self._records_end:
            self._writes.clear()
        if not self._writes:
            # Every write was accepted, even if a broken connection may not have sent everything.
            return self._text_end
        while len(self._writes) > 1 and self._writes[1][1] <= size:
            self._writes.popleft()
        text, records = self._writes[0]
        return text + max(0, size - records) // (_RECORD + self._overhead) * _RECORD
