"""Errors of the page's scripts, which browsers report: they are logged."""

from __future__ import annotations

import logging

from aiohttp import web

from pressure_server.log_limits import LogThrottle
from pressure_server.text import printable
from pressure_server.web.bodies import json_object, text_in

logger = logging.getLogger(__name__)


class PageErrors:
    """The handler of reports."""

    def __init__(self) -> None:
        self._throttle = LogThrottle(logger, "errors in the console's page")

    async def report(self, request: web.Request) -> web.Response:
        """Log {"text": …}, at most once a minute."""
        text = text_in(await json_object(request), "text")
        self._throttle.warn(f"an error in the console's page: {printable(text.encode()[:500])}")
        return web.json_response({})
