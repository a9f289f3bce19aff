"""The HTTP listener: opens the socket, and serves the routes on it."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import cast

from aiohttp import web

from pressure_server.log_limits import LogThrottle
from pressure_server.net.listener import BoundSockets, Listener
from pressure_server.text import printable
from pressure_server.web.actions import Actions
from pressure_server.web.authentication import Authentication
from pressure_server.web.clients_page import clients_view
from pressure_server.web.events import EventStreams
from pressure_server.web.http_connections import HttpConnections
from pressure_server.web.http_requests import CONTEXT, HttpContext, json_object, text_in
from pressure_server.web.metrics import Metrics
from pressure_server.web.overview import Overview
from pressure_server.web.protection import Protection, set_headers
from pressure_server.web.queue_page import queue_view
from pressure_server.web.servers_page import servers_view

logger = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
# Bytes of a body that aiohttp reads before a handler asks for them: it stops at twice that.
_READ_AHEAD = 16 << 10
# Seconds for requests to end when the server stops.
_SHUTDOWN_TIMEOUT = 2.0


class HttpListener:
    """The listener and what it serves. `sessions` returns the sessions of the console."""

    def __init__(self, listener: Listener, runner: web.AppRunner, authentication: Authentication) -> None:
        self._listener = listener
        self._runner = runner
        self.sessions = authentication.sessions
        self.listen = listener.listen
        self.is_reachable = listener.is_reachable

    @classmethod
    async def open(cls, context: HttpContext) -> HttpListener:
        """Listen, and serve the objects of the context. Raise OSError."""
        settings, access = context.settings, context.server.clients.access
        bound = await BoundSockets.bind(settings.listen, settings.keepalive)
        connections, authentication = HttpConnections(settings.max_connections), Authentication(context)
        runner = web.AppRunner(
            _application(context, connections, authentication),
            access_log=None,
            logger=connections.logger,
            shutdown_timeout=_SHUTDOWN_TIMEOUT,
            # A stream ends, and a message that is being taken goes back, as soon as the browser has left.
            handler_cancellation=True,
            read_bufsize=_READ_AHEAD,
            # Decompressed, a body may have a thousand times its size; see json_object.
            auto_decompress=False,
        )
        await runner.setup()
        connect = partial(connections.connect, cast(web.Server, runner.server))
        listener = await Listener.open(bound, connect, access.tls, settings.max_handshakes)
        return cls(listener, runner, authentication)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        self._listener.close()
        await self._runner.cleanup()


def _application(
    context: HttpContext, connections: HttpConnections, authentication: Authentication
) -> web.Application:
    protection = Protection(authentication, connections)
    application = web.Application(middlewares=[connections.note, protection.check])
    application[CONTEXT] = context
    application.on_response_prepare.append(set_headers)
    overview, streams = Overview(context), EventStreams(authentication)
    application.on_cleanup.append(overview.problems.stopped)
    page_errors = LogThrottle(logger, "error in the console's page", "errors in the console's page")
    application.add_routes(
        [
            web.get("/healthz", _is_alive),
            web.get("/readyz", _is_ready),
            web.get("/metrics", Metrics(context).answer),
            web.get("/api/me", authentication.me),
            web.post("/api/login", authentication.begin_session),
            web.post("/api/logout", authentication.end_session),
            web.post("/api/actions", Actions().act),
            web.post("/api/errors", partial(_log_page_error, page_errors)),
            web.get("/api/overview/events", partial(streams.answer, overview.view)),
            web.get("/api/queue/events", partial(streams.answer, partial(queue_view, overview))),
            web.get("/api/clients/events", partial(streams.answer, clients_view)),
            web.get("/api/servers/events", partial(streams.answer, servers_view)),
            web.get("/", _page),
            web.static("/static", _STATIC),
        ]
    )
    return application


async def _page(_request: web.Request) -> web.FileResponse:
    return web.FileResponse(_STATIC / "index.html")


async def _log_page_error(throttle: LogThrottle, request: web.Request) -> web.Response:
    """Log an error of the page's scripts, {"text": …}, at most once a minute."""
    text = text_in(await json_object(request), "text")
    throttle.warn(f"an error in the console's page: {printable(text.encode()[:500])}")
    return web.json_response({})


async def _is_alive(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _is_ready(request: web.Request) -> web.Response:
    """Answer with 503 and the reason while a new client could not come in, or could not be served."""
    reason = await request.app[CONTEXT].not_ready_for_more()
    return web.Response(text="ready\n") if reason is None else web.Response(status=503, text=f"{reason}\n")
