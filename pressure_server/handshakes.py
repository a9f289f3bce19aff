"""TLS handshakes of clients that have just come: each is given the certificate that is in force now.

A client is no client before its handshake has ended; until then it costs a socket and some memory, for a
time that is limited, and there are never more of them than MOST_UNDER_WAY.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from ssl import SSLContext, SSLError
from typing import cast

from pressure_server.connection import Connection
from pressure_server.origin import address_of
from pressure_server.seldom import Seldom

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
        self._under_way: dict[_Handshake, None] = {}
        self._log = Seldom(logger, "failed TLS handshakes")

    def begin(self) -> asyncio.Protocol:
        """For a client that has just come. Where there are too many, the oldest is given up."""
        if len(self._under_way) >= MOST_UNDER_WAY:
            oldest = next(iter(self._under_way))
            del self._under_way[oldest]
            oldest.give_up()
        handshake = _Handshake(self)
        self._under_way[handshake] = None
        return handshake

    async def shake(self, handshake: _Handshake, transport: asyncio.Transport) -> None:
        """Do one, and let the connection go on from there."""
        peer = address_of(transport)
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                transport,
                handshake,
                self._context(),
                server_side=True,
                ssl_handshake_timeout=_TIMEOUT,
                ssl_shutdown_timeout=_GOODBYE_TIMEOUT,
            )
        except OSError as error:
            reason = (error.reason if isinstance(error, SSLError) else None) or type(error).__name__
            self._log.warn(f"no TLS with {peer}: {reason}")
            transport.abort()
        else:
            if secured is not None and not handshake.is_lost:
                handshake.hand_over(secured, self._connect())
        finally:
            self._under_way.pop(handshake, None)


class _Handshake(asyncio.Protocol):
    """The protocol of a client until its handshake has ended, and of what it sends on its heels."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes
        self._early = b""
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client has come."""
        self._transport = cast(asyncio.Transport, transport)
        self._task = asyncio.create_task(self._handshakes.shake(self, self._transport))

    def data_received(self, data: bytes) -> None:
        """asyncio: it has sent something, before we have seen that the handshake is done."""
        self._early += data

    def connection_lost(self, _reason: Exception | None) -> None:
        """asyncio: it has gone."""
        self.is_lost = True

    def give_up(self) -> None:
        """Close without another word."""
        self._transport.abort()

    def hand_over(self, transport: asyncio.Transport, connection: Connection) -> None:
        """The connection has what comes from now on, and what has come."""
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if self._early:
            connection.data_received(self._early)
