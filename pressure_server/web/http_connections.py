"""HTTP connections: their number is limited, and so are the time and the bytes for the head of a request.

aiohttp waits for the end of a head for ever, and lets 32 heads of a megabyte wait on each connection. It logs
a traceback for each malformed request; these are logged seldom.
"""

import asyncio
import logging
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from pressure_server.auth.peer_address import address_of
from pressure_server.log_limits import LogThrottle
from pressure_server.text import printable
from pressure_server.web.http_requests import transport_of
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
        self.places = Places(most, _RESERVED)
        self._closed = LogThrottle(_logger, "closed HTTP connection", "closed HTTP connections")
        self._malformed = LogThrottle(_logger, "malformed HTTP request")
        # For aiohttp's server.
        self.logger = logging.getLogger(f"{__name__}.aiohttp")
        self.logger.addFilter(self._throttle_malformed)

    def connect(self, server: web.Server) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection to aiohttp's server."""
        return _HttpConnection(server(), self)

    def use(self, transport: asyncio.Transport, owner: Owner) -> None:
        """Note to whom a connection counts, and that it is the newest of this owner.

        If there are too many connections, close another one.
        """
        if (other := self.places.take(transport, owner)) is not None:
            address = address_of(other)
            self._closed.warn(
                f"closed the HTTP connection of {address}: more than {self._most} are open",
                {"client": address},
            )
            other.abort()

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that the head of a request is complete, and later that the request has its response."""
        connection = cast(_HttpConnection, transport_of(request).get_protocol())
        connection.request_began(request)
        try:
            return await handler(request)
        finally:
            if request.transport is not None:
                connection.start_timer()

    def _throttle_malformed(self, record: logging.LogRecord) -> bool:
        """Return whether aiohttp's record is logged as it is: not if it is about a malformed request."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        reason = printable(" ".join(str(error.message).split()).encode())
        self._malformed.warn(f"refused a malformed HTTP request: {reason}")
        return False


class _HttpConnection(asyncio.BufferedProtocol):
    """Passes everything on to aiohttp's protocol."""

    _buffer = bytearray(_READ)
    _transport: asyncio.Transport
    _timer: asyncio.TimerHandle

    def __init__(self, protocol: asyncio.Protocol, connections: HttpConnections) -> None:
        self._protocol = protocol
        self._connections = connections
        self._heads = 0  # bytes of heads that wait
        self._request: web.Request | None = None  # the present or the last one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.use(self._transport, Owner.stranger(transport))
        self._protocol.connection_made(transport)
        self.start_timer()

    def start_timer(self) -> None:
        """Close the connection unless the head of a request is complete in time."""
        self._timer = asyncio.get_running_loop().call_later(_HEAD_TIMEOUT, self._transport.abort)

    def request_began(self, request: web.Request) -> None:
        """Note that this is the request whose head came first."""
        self._timer.cancel()
        self._request = request
        if request.content.is_eof():
            fields = sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
            size = len(request.raw_path) + fields + request.content.total_bytes  # about
            self._heads = max(0, self._heads - size)
        else:
            self._heads = 0

    def get_buffer(self, _size: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        if self._request is None or self._request.content.is_eof():
            self._heads += size
            if self._heads > _MAX_HEADS:
                self._transport.write(_TOO_LARGE)
                self._transport.abort()
                return
        self._protocol.data_received(bytes(memoryview(self._buffer)[:size]))

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._connections.places.leave(self._transport)
        self._protocol.connection_lost(exc)
