"""Logins of the console: the present user, log in, log out."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from pressure_server import __version__
from pressure_server.auth.users import DEFAULT, NOBODY, RIGHTS, User
from pressure_server.web.bodies import json_object, text_in
from pressure_server.web.protection import COOKIE, Protection
from pressure_server.web.sessions import MAX_IDLE
from pressure_server.web.shown import SHOWN, USER


class Logins:
    """The handlers of requests about logins."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection

    async def me(self, request: web.Request) -> web.Response:
        """Answer with the user of the request and its rights."""
        return web.json_response(_description(request[USER], request))

    async def log_in(self, request: web.Request) -> web.Response:
        """Begin a session for {"user": …, "password": …}; its token is in a cookie."""
        body = await json_object(request)
        name, password = text_in(body, "user") or DEFAULT, text_in(body, "password")
        user = await self._protection.log_in(request, name, password.encode())
        response = web.json_response(_description(user, request))
        response.set_cookie(
            COOKIE,
            request.app[SHOWN].sessions.begin(user),
            max_age=int(MAX_IDLE),
            httponly=True,
            secure=request.app[SHOWN].settings.listen.tls,
            samesite="Strict",
        )
        return response

    async def log_out(self, request: web.Request) -> web.Response:
        """End the session."""
        request.app[SHOWN].sessions.end(request.cookies.get(COOKIE, ""))
        response = web.json_response({})
        response.del_cookie(COOKIE)
        return response


def _description(user: User, request: web.Request) -> dict[str, Any]:
    shown = request.app[SHOWN]
    return {
        "user": user.name or None,
        "may": [right for right in RIGHTS if right in user.rights],
        "all_queues": user.has_all_queues,
        "needs_login": user is NOBODY,
        "has_logged_in": user is not shown.context.clients.access.users.initial,
        "version": __version__,
        "server": shown.context.broker.identity if user is not NOBODY else None,
    }
