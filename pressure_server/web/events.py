"""Server-sent events: a stream that sends a view of the server each second, if it has changed."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from pressure_server.errors import PressureError
from pressure_server.web.authentication import Authentication
from pressure_server.web.http_requests import CONTEXT, USER, transport_of
from pressure_server.web.places import Places

logger = logging.getLogger(__name__)

# The most streams: each costs the time for a view each second.
MAX_STREAMS = 64
_SECOND = 1.0
# Seconds after which a client that does not read is disconnected.
_WRITE_TIMEOUT = 20.0

View = Callable[[web.Request], Awaitable[dict[str, Any]]]


class EventStreams:
    """The open streams of one listener."""

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication
        self._places = Places(MAX_STREAMS)

    async def answer(self, view: View, request: web.Request) -> web.StreamResponse:
        """Send the view until the client leaves, loses its right to read, or the server stops."""
        transport, owner = transport_of(request), self._authentication.owner_of(request)
        if not self._places.is_due(owner):
            raise web.HTTPServiceUnavailable(text="too many consoles are open\n")
        if (other := self._places.take(transport, owner)) is not None:
            other.abort()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        sent = b""
        try:
            while "read" in request[USER].rights:
                data = await _data(request, view)
                await response.prepare(request)
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    # A comment shows that the connection is alive.
                    await response.write(data if data != sent else b":\n\n")
                sent = data
                if request.app[CONTEXT].server.is_stopping:
                    break
                await asyncio.sleep(_SECOND)
                request[USER] = await self._authentication.user_of(request)
        except (ConnectionError, TimeoutError):
            transport.close()
        except Exception as error:
            if not response.prepared:
                raise
            # The user may have lost a right. The browser asks again, and gets the reason then.
            if not isinstance(error, web.HTTPException):
                logger.exception("error in a stream of %s; it ends", request.path)
        finally:
            self._places.leave(transport)
        return response


async def _data(request: web.Request, view: View) -> bytes:
    try:
        shown = await view(request)
    except PressureError as error:
        shown = {"error": f"{error.code} {error}"}
    shown["not_ready"] = request.app[CONTEXT].not_ready
    return b"data: " + json.dumps(shown).encode() + b"\n\n"
