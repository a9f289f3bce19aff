"""What the HTTP listener shows: the objects of the server, and how handlers of requests find them."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from pressure_server.auth.users import User
from pressure_server.backend.embedded import Embedded
from pressure_server.net.handler import Context
from pressure_server.queues.survey import Survey
from pressure_server.web.sessions import Sessions
from pressure_server.web.settings import HttpSettings


@dataclass(frozen=True)
class Shown:
    """The objects of the server that are shown, and the sessions of those who look at them."""

    context: Context
    survey: Survey
    settings: HttpSettings
    embedded: Embedded | None
    sessions: Sessions


SHOWN = web.AppKey("shown", Shown)
# The user of a request; NOBODY without a login.
USER = web.RequestKey("user", User)
