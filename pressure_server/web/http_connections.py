"""HTTP connections: their number is limited, and so are the time and the bytes for the head of a request.

aiohttp waits for the end of a head for ever, and lets 32 heads of a megabyte wait on each connection. It logs
a traceback for each malformed request; these are logged seldom.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pressure_server.auth.peer_address import address_of
from pressure_server.log_limits import LogThrottle
from pressure_server.text import printable
from pressure_server.web.places import Owner, Places

_logger = logging.getLogger(__name__)

# Seconds for the head of a request, from the connection or the end of the request before; so this also
# limits idle connections.
_HEAD_TIMEOUT = 20.0
# Bytes of heads that wait on one connection: of the next request, and of those sent after it.
_MAX_HEADS = 128 << 10
# Bytes that one read may bring. All connections read into the same buffer.
_READ = 16 << 10
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
# Connections that are left to clients without a login: health checks come without one.
_RESERVED = 32


class HttpConnections:
    """The connections of one listener: at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Creates aiohttp's protocol for a connection. It exists only after the application that `note` is in.
        self.server: Callable[[], asyncio.Protocol] | None = None
        self._connected: dict[asyncio.BaseTransport | None, _HttpConnection] = {}
        self._places = Places(most, _RESERVED)
        self._buffer = bytearray(_READ)
        self._log = LogThrottle(_logger, "closed HTTP connection", "closed HTTP connections")

    def connect(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        assert self.server is not None  # noqa: S101 -- connections come after it is set
        return _HttpConnection(self.server(), self, self._buffer)

    def add(self, transport: asyncio.Transport, connection: _HttpConnection) -> None:
        """Add a new connection. If there are too many, close another one."""
        self._connected[transport] = connection
        self.use(transport, Owner.stranger(transport))

    def use(self, transport: asyncio.Transport, owner: Owner) -> None:
        """Note whose request has come on a connection. The connection is then the newest of this owner."""
        if transport not in self._connected:
            return
        if (other := self._places.take(transport, owner)) is not None:
            address = address_of(other)
            self._log.warn(
                f"closed the HTTP connection of {address}: more than {self._most} are open",
                {"client": address},
            )
            del self._connected[other]
            other.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """Remove a connection that has ended."""
        self._places.leave(transport)
        self._connected.pop(transport, None)

    @web.middleware
    async def note(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Note that the head of a request is complete, and later that the request has its response."""
        transport = request.transport
        if (connection := self._connected.get(transport)) is not None:
            connection.request_began(request)
        try:
            return await handler(request)
        finally:
            if (connection := self._connected.get(transport)) is not None:
                connection.start_timer()


class _HttpConnection(asyncio.BufferedProtocol):
    """Passes everything on to aiohttp's protocol."""

    _transport: asyncio.Transport

    def __init__(self, protocol: asyncio.Protocol, connections: HttpConnections, buffer: bytearray) -> None:
        self._protocol = protocol
        self._connections = connections
        self._buffer = buffer
        self._heads = 0  # bytes of heads that wait
        self._request: web.Request | None = None  # the present or the last one
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: a client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self._transport, self)
        self._protocol.connection_made(transport)
        self.start_timer()

    def start_timer(self) -> None:
        """Close the connection unless the head of a request is complete in time."""
        self.stop_timer()
        self._timer = asyncio.get_running_loop().call_later(_HEAD_TIMEOUT, self._transport.abort)

    def stop_timer(self) -> None:
        """Let the connection stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def request_began(self, request: web.Request) -> None:
        """Note that this is the request whose head came first."""
        self.stop_timer()
        self._request = request
        if request.content.is_eof():
            self._heads = max(0, self._heads - _size(request))
        else:
            self._heads = 0

    def get_buffer(self, _size: int) -> bytearray:
        """Called by asyncio: return where to put what the client has sent."""
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        """Called by asyncio: the client has sent `size` bytes."""
        if self._request is None or self._request.content.is_eof():
            self._heads += size
            if self._heads > _MAX_HEADS:
                self._transport.write(_TOO_LARGE)
                self._transport.abort()
                return
        self._protocol.data_received(bytes(memoryview(self._buffer)[:size]))

    def eof_received(self) -> bool | None:
        """Called by asyncio: the client has closed its side."""
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        """Called by asyncio: the client reads too slowly."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Called by asyncio: the client has read enough."""
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: the connection has ended."""
        self.stop_timer()
        self._connections.remove(self._transport)
        self._protocol.connection_lost(exc)


def _size(request: web.Request) -> int:
    """Return about how many bytes a request has."""
    fields = sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
    return len(request.raw_path) + fields + request.content.total_bytes


class _MalformedRequests(logging.Filter):
    """Passes on everything but errors about malformed requests, which are throttled."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = LogThrottle(_logger, "malformed HTTP request")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged as it is."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        reason = printable(" ".join(str(error.message).split()).encode())
        self._throttle.warn(f"refused a malformed HTTP request: {reason}")
        return False


def request_logger() -> logging.Logger:
    """Return the logger for aiohttp's server."""
    logger = logging.getLogger(f"{__name__}.aiohttp")
    for old in list(logger.filters):
        logger.removeFilter(old)
    logger.addFilter(_MalformedRequests())
    return logger
