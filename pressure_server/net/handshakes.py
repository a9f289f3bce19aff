"""TLS handshakes of new clients; each handshake uses the certificate that is in force at its start.

A client counts as connected only after its handshake. Until then it costs a socket and some memory, so the
duration and the number of handshakes in progress are limited.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext, SSLError

from pressure_server.auth.peer_address import address_of
from pressure_server.log_limits import LogThrottle

logger = logging.getLogger(__name__)

# The most handshakes in progress on one listener, and seconds for one handshake.
MAX_HANDSHAKES = 256
_TIMEOUT = 10.0
# Seconds for a client to answer a TLS close notification.
_SHUTDOWN_TIMEOUT = 2.0


class Handshakes:
    """The handshakes in progress on one listener.

    For each handshake `context` returns the SSL context, and `connect` creates the client's connection.
    """

    def __init__(
        self, context: Callable[[], SSLContext], connect: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._context = context
        self._connect = connect
        # With the addresses of their clients; the oldest first.
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._log = LogThrottle(logger, "failed TLS handshakes")

    def greet(self) -> asyncio.Protocol:
        """Return a protocol for a new client that hands its socket over to `begin`."""
        return _Greeting(self)

    def begin(self, client: socket.socket, address: str) -> None:
        """Start a handshake with a client. If too many are in progress, cancel the oldest."""
        if len(self._under_way) >= MAX_HANDSHAKES:
            oldest = next(iter(self._under_way))
            other = self._under_way.pop(oldest)
            self._log.warn(f"TLS handshake with {other} cancelled: too many at once", {"client": other})
            oldest.cancel()
        task = asyncio.create_task(self._shake(client, address))
        self._under_way[task] = address
        task.add_done_callback(lambda _: self._under_way.pop(task, None))

    def close(self) -> None:
        """Cancel all handshakes in progress."""
        for task in self._under_way:
            task.cancel()

    async def _shake(self, client: socket.socket, address: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connect,
                client,
                ssl=self._context(),
                ssl_handshake_timeout=_TIMEOUT,
                ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT,
            )
        except asyncio.CancelledError:
            # uvloop would keep the socket open until the timeout.
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            raise
        except OSError as error:
            reason = (error.reason if isinstance(error, SSLError) else None) or type(error).__name__
            fields = {"client": address, "error": reason}
            self._log.warn(f"TLS handshake with {address} failed: {reason}", fields)


class _Greeting(asyncio.Protocol):
    """A protocol that takes a client's socket away from its transport.

    It exists because uvloop's loop.start_tls loses data that was read before the call.
    """

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client has connected; nothing has been read yet."""
        copy = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        copy.setblocking(False)
        self._handshakes.begin(copy, address_of(transport))
        transport.abort()  # type: ignore[attr-defined] # asyncio passes a Transport
