"""Protection of the HTTP listener: which requests are served, and with which headers.

Any page of the network may be an attacker's: it can make an operator's browser send requests. Requests that
change something must come from our own page (Origin, Sec-Fetch-Site), and carry JSON, which a browser sends
for another page only with our permission. docs/guides/console.md lists what this prevents.
"""

import asyncio
import ipaddress
import logging
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from pressure_server.auth.users import NOBODY
from pressure_server.web.authentication import Authentication, unauthorized
from pressure_server.web.http_connections import HttpConnections
from pressure_server.web.http_requests import CONTEXT, USER, transport_of

logger = logging.getLogger(__name__)

# Paths that need no login: they show nothing of the queues.
_OPEN = ("/", "/healthz", "/readyz", "/api/login", "/api/logout", "/api/me", "/favicon.ico")
# Seconds for a request, apart from streams of events.
_TIMEOUT = 30.0
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
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_.-]+))(?::\d{1,5})?")
# Names with these ends are resolved inside one machine or network only.
_LOCAL_ENDS = (".localhost", ".local", ".internal", ".svc", ".svc.cluster.local")


class Protection:
    """The middleware of one listener."""

    def __init__(self, authentication: Authentication, connections: HttpConnections) -> None:
        self._authentication = authentication
        self._connections = connections

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request that is allowed, as the user that it names; refuse others with the reason."""
        try:
            response = await self._serve(request, handler)
        except ConnectionError:
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
        if not request.content.is_eof():
            response.force_close()  # nobody reads the rest of the body
        return response

    async def _serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        context = request.app[CONTEXT]
        access = context.server.clients.access
        if not access.admits(transport_of(request)):
            raise web.HTTPForbidden(
                text="protected mode: only clients on this machine are served, because no password is set\n"
            )
        user = request[USER] = await self._authentication.user_of(request)
        self._connections.use(transport_of(request), self._authentication.owner_of(request))
        needs_no_login = user is not NOBODY and user is access.users.initial
        # Without a login only the host name shows whether the request is from our own page.
        if needs_no_login and not _is_own_host(request.host, context.settings.hosts):
            raise web.HTTPMisdirectedRequest(
                text="unknown host name: add ?host=NAME to the URL of --http, or set a password\n"
            )
        if request.method not in ("GET", "HEAD"):
            _check_origin(request)
        elif request.headers.get("Sec-Fetch-Site") == "cross-site" and request.path.startswith("/api/"):
            raise _of_other_site()
        is_open = request.path in _OPEN or request.path.startswith("/static/")
        if user is NOBODY and not is_open:
            raise unauthorized(request)
        if "read" not in user.rights and not is_open:
            raise web.HTTPForbidden(text="this user has no right to read\n")
        async with asyncio.timeout(None if request.path.endswith("/events") else _TIMEOUT):
            return await handler(request)


async def set_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Set the security headers just before a response is sent."""
    response.headers.update(_HEADERS)


def _is_own_host(header: str, own: Sequence[str]) -> bool:
    """Return whether a Host header names an address, a local name, or one of our `own` names.

    A page of an attacker can give its own name the address of this server (DNS rebinding). A browser then
    lets that page send requests here, but with the attacker's name. So only names are accepted that no
    stranger can own.
    """
    found = _HOST.fullmatch(header)
    if found is None:
        return False
    name = (found["ipv6"] or found["name"]).lower().rstrip(".")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        is_local = "." not in name or name.endswith(_LOCAL_ENDS) or name in own
        return found["name"] is not None and is_local
    return True


def _check_origin(request: web.Request) -> None:
    """Raise HTTPForbidden unless a request that changes something comes from our page, or from no page."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.host.lower():
        raise _of_other_site()
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise _of_other_site()
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send application/json\n")


def _of_other_site() -> web.HTTPException:
    return web.HTTPForbidden(text="requests of other sites are refused\n")
