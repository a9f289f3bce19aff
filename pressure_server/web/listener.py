"""The HTTP listener: opens the socket, and serves the routes on it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from aiohttp import web

from pressure_server.net.listener import Listener, ListenerUrl
from pressure_server.web import health
from pressure_server.web.actions import Actions
from pressure_server.web.clients_page import ClientsPage
from pressure_server.web.connections import HttpConnections
from pressure_server.web.events import EventStreams
from pressure_server.web.logins import Logins
from pressure_server.web.metrics.endpoint import Metrics
from pressure_server.web.overview import Overview
from pressure_server.web.page_errors import PageErrors
from pressure_server.web.problems import ProblemWatch
from pressure_server.web.protection import Protection, set_headers
from pressure_server.web.queue_page import QueuePage
from pressure_server.web.request_log import request_logger
from pressure_server.web.shown import SHOWN, Shown

_STATIC = Path(__file__).parent / "static"
# Bytes of a body that aiohttp reads before a handler asks for them: it stops at twice that.
_READ_AHEAD = 16 << 10
# Seconds for requests to end when the server stops.
_SHUTDOWN_TIMEOUT = 2.0


class HttpListener:
    """The listener and what it serves."""

    def __init__(self, listener: Listener, runner: web.AppRunner) -> None:
        self._listener = listener
        self._runner = runner

    @property
    def listen(self) -> ListenerUrl:
        """The URL, with the chosen port if port 0 was requested."""
        return self._listener.listen

    @classmethod
    async def open(cls, shown: Shown) -> HttpListener:
        """Listen, and serve the objects that are `shown`. Raise OSError."""
        protection = Protection()
        runner = web.AppRunner(
            _application(shown, protection),
            handle_signals=False,
            access_log=None,
            logger=request_logger(),
            shutdown_timeout=_SHUTDOWN_TIMEOUT,
            # A stream ends, and a message that is being taken goes back, as soon as the browser has left.
            handler_cancellation=True,
            read_bufsize=_READ_AHEAD,
            # Decompressed, a body may have a thousand times its size; see bodies.py.
            auto_decompress=False,
        )
        await runner.setup()
        server = cast(web.Server, runner.server)
        connections = HttpConnections(server)
        protection.connections = connections
        access = shown.context.clients.access
        try:
            listener = await Listener.open(shown.settings.listen, connections.connect, access.tls)
        except OSError:
            await runner.cleanup()
            raise
        return cls(listener, runner)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        self._listener.close()
        await self._runner.cleanup()


def _application(shown: Shown, protection: Protection) -> web.Application:
    application = web.Application(middlewares=[protection.check])
    application[SHOWN] = shown
    application.on_response_prepare.append(set_headers)
    logins, metrics, streams = Logins(protection), Metrics(shown), EventStreams(protection)
    problems = ProblemWatch(shown.survey)
    overview = Overview(shown, problems)
    application.on_cleanup.append(problems.stopped)
    application.add_routes(
        [
            web.get("/healthz", health.lives),
            web.get("/readyz", health.is_ready),
            web.get("/metrics", metrics.answer),
            web.get("/api/me", logins.me),
            web.post("/api/login", logins.log_in),
            web.post("/api/logout", logins.log_out),
            web.post("/api/actions", Actions().act),
            web.post("/api/errors", PageErrors().report),
            web.get("/api/overview/events", streams.handler(overview.view)),
            web.get("/api/queue/events", streams.handler(QueuePage(shown, overview).view)),
            web.get("/api/clients/events", streams.handler(ClientsPage(shown).view)),
            web.get("/", _page),
            web.static("/static", _STATIC),
        ]
    )
    return application


async def _page(_request: web.Request) -> web.FileResponse:
    return web.FileResponse(_STATIC / "index.html")
