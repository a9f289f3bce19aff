"""What the HTTP listener shows: the objects of the server, and how handlers of requests find them."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from pressure_server.auth.users import User
from pressure_server.backend.embedded import Embedded
from pressure_server.net.handler import Context
from pressure_server.net.listen import ListenerUrl
from pressure_server.queues.survey import Survey
from pressure_server.web.sessions import Sessions


@dataclass(frozen=True)
class HttpSettings:
    """The settings of the HTTP listener.

    At most `metrics_queues` queues whose names match the pattern `metrics_match` have metrics of their own.
    """

    listen: ListenerUrl
    metrics_queues: int
    metrics_match: str

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names in the URL's options, and the host of the URL; see hosts.py."""
        named = [value.lower() for name, value in self.listen.options if name == "host"]
        return (*named, self.listen.host.lower())


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
