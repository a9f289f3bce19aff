"""Sent: how many of the bytes written to a client have left the machine, when its connection has broken.

A transport that has failed says that nothing is left to be written, whatever it has dropped.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

# In struct tcp_info of linux/tcp.h: tcpi_bytes_sent and tcpi_bytes_retrans, since Linux 4.19.
_OFFSET = 200
_BYTES = struct.Struct("=QQ")


def bytes_sent(transport: asyncio.Transport) -> int | None:
    """How many bytes were sent over TCP, each counted once; None where that cannot be known.

    What the kernel has not sent never arrives; of what it has sent nobody can say whether it has been read.
    """
    connected = transport.get_extra_info("socket")
    is_plain = transport.get_extra_info("sslcontext") is None
    if sys.platform != "linux" or not is_plain or connected.family == socket.AF_UNIX:
        return None
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _OFFSET + _BYTES.size)
    if len(info) < _OFFSET + _BYTES.size:
        return None
    sent, sent_again = _BYTES.unpack_from(info, _OFFSET)
    return int(sent - sent_again)
