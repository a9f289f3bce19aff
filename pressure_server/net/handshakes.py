"""TLS handshakes of clients that have just come: each is given the certificate that is in force now.

A client is no client before its handshake has ended; until then it costs a socket and some memory, for a
time that is limited, and there are never more of them than MOST_UNDER_WAY.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext, SSLError

from pressure_server.auth.log_throttle import LogThrottle
from pressure_server.auth.peer_address import address_of
from pressure_server.net.connection import Connection

logger = logging.getLogger(__name__)

MOST_UNDER_WAY = 256
_TIMEOUT = 10.0
# How long a client may take to say that it has seen that we close.
_GOODBYE_TIMEOUT = 2.0


class Handshakes:
    """Those under way on one listener. `context` is asked for at each; `connect` makes its connection."""

    def __init__(self, context: Callable[[], SSLContext], connect: Callable[[], Connection]) -> None:
        self._context = context
        self._connect = connect
        # By where their clients are.
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._log = LogThrottle(logger, "failed TLS handshakes")

    def greet(self) -> asyncio.Protocol:
        """The protocol of a client that has just come, for as long as it takes to hand over its socket."""
        return _Greeting(self)

    def begin(self, client: socket.socket, address: str) -> None:
        """Do a handshake, and let the client go on from there. Of too many the oldest is given up."""
        if len(self._under_way) >= MOST_UNDER_WAY:
            oldest = next(iter(self._under_way))
            self._log.warn(f"no TLS with {self._under_way.pop(oldest)}: too many handshakes at once")
            oldest.cancel()
        task = asyncio.create_task(self._shake(client, address))
        self._under_way[task] = address
        task.add_done_callback(lambda _: self._under_way.pop(task, None))

    def close(self) -> None:
        """Give up all that are under way."""
        for task in self._under_way:
            task.cancel()

    async def _shake(self, client: socket.socket, address: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connect,
                client,
                ssl=self._context(),
                ssl_handshake_timeout=_TIMEOUT,
                ssl_shutdown_timeout=_GOODBYE_TIMEOUT,
            )
        except asyncio.CancelledError:
            # uvloop would leave it open until the time is up.
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            raise
        except OSError as error:
            reason = (error.reason if isinstance(error, SSLError) else None) or type(error).__name__
            self._log.warn(f"no TLS with {address}: {reason}")


class _Greeting(asyncio.Protocol):
    """Takes a client's socket away from its transport.

    With loop.start_tls uvloop loses what it has read before that is called.
    """

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client has come; nothing has been read yet."""
        copy = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        copy.setblocking(False)
        self._handshakes.begin(copy, address_of(transport))
        transport.abort()  # type: ignore[attr-defined] # BaseTransport is what asyncio calls it
