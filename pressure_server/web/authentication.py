"""Authentication: who sends a request, by a password or by the cookie of a session. Log in and log out."""

import asyncio
import base64
import hashlib
import secrets
from collections import OrderedDict
from contextlib import suppress
from time import monotonic
from typing import Any

from aiohttp import web

from pressure_server import __version__
from pressure_server.auth.users import DEFAULT, NOBODY, RIGHTS, User
from pressure_server.web.http_requests import USER, HttpContext, json_object, text_in, transport_of
from pressure_server.web.places import Owner

# Seconds for which a session lasts without a request, and the most sessions: the oldest ends.
_MAX_IDLE = 12 * 3600
_MAX_SESSIONS = 1000
# Failed logins whose replies are delayed at the same time; more are refused at once.
_MAX_FAILING = 32
_COOKIE = "pressure-session"


class ConsoleSession:
    """A login in one browser."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.ends = monotonic() + _MAX_IDLE

    def break_off(self) -> None:
        """End the session."""
        self.ends = 0.0


class Authentication:
    """The users of requests to one listener, their sessions, and the handlers of requests about logins."""

    def __init__(self, context: HttpContext) -> None:
        # By the digests of their tokens; the one that was used last is at the end.
        self._sessions: OrderedDict[bytes, ConsoleSession] = OrderedDict()
        self._access = context.server.clients.access
        self._identity = context.server.broker.identity
        self._is_secure = context.settings.listen.tls
        self._failing = asyncio.Semaphore(_MAX_FAILING)

    def sessions(self) -> list[ConsoleSession]:
        """Return the sessions."""
        return list(self._sessions.values())

    async def user_of(self, request: web.Request) -> User:
        """Return the user by the password of the request, by its cookie, or the initial one."""
        header = request.headers.get("Authorization")
        if header is not None:
            return await self._log_in(request, *_basic(header))
        digest = _digest(request.cookies.get(_COOKIE, ""))
        session = self._sessions.pop(digest, None)
        if session is None or monotonic() > session.ends:
            return self._access.users.initial
        session.ends = monotonic() + _MAX_IDLE
        self._sessions[digest] = session
        return session.user

    def owner_of(self, request: web.Request) -> Owner:
        """Return to whom the connection of a request counts."""
        user = request[USER]
        if user is self._access.users.initial:
            return Owner.stranger(transport_of(request))
        return Owner(is_user=True, name=user.name)

    async def _log_in(self, request: web.Request, name: str, password: bytes) -> User:
        """Return the user with this password. Raise an HTTPException after the delay of a failed login."""
        user = self._access.users.log_in(name, password)
        if user is not None:
            return user
        if self._failing.locked():
            raise web.HTTPTooManyRequests(text="too many failed logins at once: try again later\n")
        async with self._failing:
            await self._access.logins.fail(transport_of(request), name.encode("utf-8", "replace")[:128], 0)
        raise unauthorized(request)

    async def me(self, request: web.Request) -> web.Response:
        """Answer with the user of the request and its rights."""
        return web.json_response(self._description(request[USER]))

    async def begin_session(self, request: web.Request) -> web.Response:
        """Begin a session for {"user": …, "password": …}; its token is in a cookie."""
        body = await json_object(request)
        name, password = text_in(body, "user") or DEFAULT, text_in(body, "password")
        user = await self._log_in(request, name, password.encode())
        token = secrets.token_urlsafe(32)
        self._sessions[_digest(token)] = ConsoleSession(user)
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        response = web.json_response(self._description(user))
        response.set_cookie(
            _COOKIE, token, max_age=_MAX_IDLE, httponly=True, secure=self._is_secure, samesite="Strict"
        )
        return response

    async def end_session(self, request: web.Request) -> web.Response:
        """End the session."""
        self._sessions.pop(_digest(request.cookies.get(_COOKIE, "")), None)
        response = web.json_response({})
        response.del_cookie(_COOKIE)
        return response

    def _description(self, user: User) -> dict[str, Any]:
        return {
            "user": user.name or None,
            "may": [right for right in RIGHTS if right in user.rights],
            "all_queues": user.has_all_queues,
            "needs_login": user is NOBODY,
            "has_logged_in": user is not self._access.users.initial,
            "version": __version__,
            "server": self._identity if user is not NOBODY else None,
        }


def unauthorized(request: web.Request) -> web.HTTPException:
    """Return the exception for a request that needs a login."""
    # Not for requests of the console: the browser would ask for the password itself.
    asks = request.path == "/metrics" or "Authorization" in request.headers
    headers = {"WWW-Authenticate": 'Basic realm="pressure-server", charset="UTF-8"'} if asks else None
    return web.HTTPUnauthorized(text="log in first\n", headers=headers)


def _basic(header: str) -> tuple[str, bytes]:
    """Return the name and the password in an Authorization header. Raise HTTPBadRequest."""
    scheme, _, encoded = header.partition(" ")
    name = colon = password = b""
    with suppress(ValueError):
        name, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
    if scheme.lower() != "basic" or not colon:
        raise web.HTTPBadRequest(text="the Authorization header must be Basic\n")
    return name.decode("utf-8", "replace"), password


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
