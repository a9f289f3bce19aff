"""HTTP connections: their number is limited, and so is the time for the head of a request.

aiohttp limits the size of requests, but waits for the end of a head for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

# The most connections: browsers open up to six each.
MAX_CONNECTIONS = 512
# Seconds for the head of a request, from the connection or the end of the request before; so this also
# limits idle
# connections.
_HEAD_TIMEOUT = 20.0
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpConnections:
    """The connections of one listener. `protocol` creates aiohttp's protocol for a new one."""

    def __init__(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._protocol = protocol
        self._connected: dict[asyncio.BaseTransport | None, _HttpConnection] = {}

    def __len__(self) -> int:
        return len(self._connected)

    def connect(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return _HttpConnection(self._protocol(), self._connected)

    def request_began(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that the head of a request is complete."""
        if transport is not None and transport in self._connected:
            self._connected[transport].stop_timer()

    def request_ended(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a request has its response."""
        if transport is not None and transport in self._connected:
            self._connected[transport].start_timer()


class _HttpConnection(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol."""

    def __init__(
        self, protocol: asyncio.Protocol, connected: dict[asyncio.BaseTransport | None, _HttpConnection]
    ) -> None:
        self._protocol = protocol
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: a client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._connected) >= MAX_CONNECTIONS:
            self._transport.write(_TOO_MANY)
            self._transport.close()
            return
        self._connected[transport] = self
        self._protocol.connection_made(transport)
        self.start_timer()

    def start_timer(self) -> None:
        """Close the connection unless the head of a request is complete in time."""
        self.stop_timer()
        if self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(_HEAD_TIMEOUT, self._transport.abort)

    def stop_timer(self) -> None:
        """Let the connection stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: the client has sent these bytes."""
        if self._transport in self._connected:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """Called by asyncio: the client has closed its side."""
        return self._protocol.eof_received() if self._transport in self._connected else None

    def pause_writing(self) -> None:
        """Called by asyncio: the client reads too slowly."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Called by asyncio: the client has read enough."""
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: the connection has ended."""
        self.stop_timer()
        if self._transport is not None and self._connected.pop(self._transport, None) is not None:
            self._protocol.connection_lost(exc)
