"""Protection of the HTTP listener: which requests are served, as whom, and with which headers.

Any page of the network may be an attacker's: it can make an operator's browser send requests. Requests that
change something must come from our own page (Origin, Sec-Fetch-Site), and carry JSON, which a browser sends
for another page only with our permission. docs/guides/console.md lists what this prevents.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from pressure_server.auth.users import NOBODY, User
from pressure_server.web.connections import HttpConnections
from pressure_server.web.hosts import is_own_host
from pressure_server.web.shown import SHOWN, USER

logger = logging.getLogger(__name__)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Paths that need no login: they show nothing of the queues.
_OPEN = ("/", "/healthz", "/readyz", "/api/login", "/api/logout", "/api/me", "/favicon.ico")
_OPEN_FOLDER = "/static/"
# Failed logins whose replies are delayed at the same time; more are refused at once.
_MAX_FAILING = 32
# Seconds for a request, apart from streams of events.
_TIMEOUT = 30.0
COOKIE = "pressure-session"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' "
    "data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "pressure-server",
}


class Protection:
    """The middlewares of one listener."""

    def __init__(self) -> None:
        self.connections: HttpConnections | None = None
        self._failing = 0

    @web.middleware
    async def check(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        """Serve a request that is allowed, as the user that it names; refuse others with the reason."""
        transport = request.transport
        if self.connections is not None:
            self.connections.request_began(transport, request)
        try:
            response = await self._serve(request, handler)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except web.HTTPException as error:
            # If it is raised further, aiohttp makes a reference cycle of the exception, its traceback and
            # the request.
            response = web.Response(
                status=error.status, reason=error.reason, text=error.text, headers=error.headers
            )
        except TimeoutError:
            response = web.Response(status=408, text="the request took too long\n")
        except Exception:
            logger.exception("error while serving %s; the client gets 500", request.path)
            response = web.Response(status=500, text="internal error: see the server's log\n")
        finally:
            if self.connections is not None:
                self.connections.request_ended(transport)
        if not request.content.is_eof():
            response.force_close()  # nobody reads the rest of the body
        return response

    async def _serve(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        shown = request.app[SHOWN]
        if request.transport is None or not shown.context.clients.access.admits(request.transport):
            raise web.HTTPForbidden(
                text="protected mode: only clients on this machine are served, because no password is set\n"
            )
        user = await self.user_of(request)
        request[USER] = user
        needs_no_login = user is not NOBODY and user is shown.context.clients.access.users.initial
        # Without a login only the host name shows whether the request is from our own page.
        if needs_no_login and not is_own_host(request.host, shown.settings.hosts):
            raise web.HTTPMisdirectedRequest(
                text="unknown host name: add ?host=NAME to the URL of --http, or set a password\n"
            )
        if request.method not in ("GET", "HEAD"):
            _check_origin(request)
        elif request.headers.get("Sec-Fetch-Site") == "cross-site" and request.path.startswith("/api/"):
            raise web.HTTPForbidden(text="requests of other sites are refused\n")
        is_open = request.path in _OPEN or request.path.startswith(_OPEN_FOLDER)
        if not is_open and user is NOBODY:
            raise _unauthorized(request)
        if not is_open and "read" not in user.rights:
            raise web.HTTPForbidden(text="this user has no right to read\n")
        async with asyncio.timeout(None if request.path.endswith("/events") else _TIMEOUT):
            return await answer(request)

    async def user_of(self, request: web.Request) -> User:
        """Return the user by the password of the request, by its cookie, or the initial one."""
        shown = request.app[SHOWN]
        header = request.headers.get("Authorization")
        if header is not None:
            name, password = _basic(header)
            return await self.log_in(request, name, password)
        token = request.cookies.get(COOKIE)
        session = shown.sessions.find(token) if token else None
        return session.user if session is not None else shown.context.clients.access.users.initial

    async def log_in(self, request: web.Request, name: str, password: bytes) -> User:
        """Return the user with this password. Raise an HTTPException after the delay of a failed login."""
        access = request.app[SHOWN].context.clients.access
        user = access.users.log_in(name, password)
        if user is not None:
            return user
        if self._failing >= _MAX_FAILING:
            raise web.HTTPTooManyRequests(text="too many failed logins at once: try again later\n")
        self._failing += 1
        try:
            if request.transport is not None:
                await access.logins.fail(request.transport, name.encode("utf-8", "replace")[:128], 0)
        finally:
            self._failing -= 1
        raise _unauthorized(request)


async def set_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Set the security headers just before a response is sent."""
    for name, value in _HEADERS.items():
        if name not in response.headers or name == "Server":
            response.headers[name] = value


def _basic(header: str) -> tuple[str, bytes]:
    scheme, _, encoded = header.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise ValueError
        name, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        if not colon:
            raise ValueError
    except (ValueError, binascii.Error):
        raise web.HTTPBadRequest(text="the Authorization header must be Basic\n") from None
    return name.decode("utf-8", "replace"), password


def _unauthorized(request: web.Request) -> web.HTTPException:
    # Not for requests of the console: the browser would ask for the password itself.
    asks = request.path == "/metrics" or "Authorization" in request.headers
    headers = {"WWW-Authenticate": 'Basic realm="pressure-server", charset="UTF-8"'} if asks else None
    return web.HTTPUnauthorized(text="log in first\n", headers=headers)


def _check_origin(request: web.Request) -> None:
    """Raise HTTPForbidden unless a request that changes something comes from our page, or from no page."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.host.lower():
        raise web.HTTPForbidden(text="requests of other sites are refused\n")
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise web.HTTPForbidden(text="requests of other sites are refused\n")
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send application/json\n")
