"""Health: /healthz says whether the server lives, /readyz whether it is ready for new clients."""

from __future__ import annotations

from aiohttp import web

from pressure_server.errors import PressureError
from pressure_server.web.shown import SHOWN


async def lives(_request: web.Request) -> web.Response:
    """Answer: the event loop runs."""
    return web.Response(text="ok\n")


async def is_ready(request: web.Request) -> web.Response:
    """Answer with 503 and the reason while the server is stopping, or cannot use its backend."""
    try:
        request.app[SHOWN].context.check_readiness()
    except PressureError as error:
        return web.Response(status=503, text=f"{error}\n")
    return web.Response(text="ready\n")
