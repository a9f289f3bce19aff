"""HTTP requests: what their handlers find in the server, read from the requests, and check."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from aiohttp import web

from pressure_server.auth.users import User
from pressure_server.backend.embedded import Embedded
from pressure_server.errors import PressureError
from pressure_server.net.handler import Context, Handler
from pressure_server.net.workers import Waiting
from pressure_server.queues.database import Database
from pressure_server.queues.names import is_queue_name
from pressure_server.queues.operations.operation import Line
from pressure_server.queues.survey import Survey
from pressure_server.text import counted
from pressure_server.web.http_settings import HttpSettings

# The limit in bytes of most bodies.
MAX_BODY = 16 << 10
# The states of jobs.
STATES = ("ready", "delayed", "reserved", "buried")
# Rows on a page of a table.
PAGE = 50
# The longest id of a queue: three characters for each byte of a long name.
_MAX_ID = 20_000


@dataclass(frozen=True)
class HttpContext:
    """The objects of the server that the HTTP listener shows."""

    server: Context
    survey: Survey
    settings: HttpSettings
    embedded: Embedded | None
    # Makes connections inside the process, on which the console executes commands.
    resp: Handler
    # Bytes of memory of this machine, or of the server's container if that has less.
    machine_memory: int

    async def waiting(self) -> Mapping[tuple[int, bytes], Waiting]:
        """Return how many operations wait, by database and queue."""
        found: defaultdict[tuple[int, bytes], Waiting] = defaultdict(lambda: dict.fromkeys(Line, 0))
        for database in self.server.broker.databases:
            number = database.database_number
            for name, waiting in (await self.server.workers.waiting(number)).items():
                found[number, name] = waiting
        return found

    @property
    def not_ready(self) -> str | None:
        """Why the server is not ready to serve clients; None if it is ready."""
        try:
            self.server.check_readiness()
        except PressureError as error:
            return str(error)
        return None

    async def not_ready_for_more(self) -> str | None:
        """Return why a new client would not be admitted, or would not be served; None if it would."""
        totals = await self.server.workers.totals()
        # New clients take the places of clients that have not logged in.
        if 0 < totals.max_clients <= totals.connected - totals.strangers:
            return f"{counted(totals.connected, 'client')} connected, which is the limit (--max-clients)"
        return self.not_ready


CONTEXT = web.AppKey("context", HttpContext)
# The user of a request; NOBODY without a login. A stream of events renews it.
USER = web.RequestKey("user", User)


def transport_of(request: web.Request) -> asyncio.Transport:
    """Return the transport of a request. Raise ConnectionResetError if the client has left."""
    if request.transport is None:
        raise ConnectionResetError("the client has left")
    return request.transport


async def json_object(request: web.Request, most: int = MAX_BODY) -> dict[str, Any]:
    """Return the JSON object in the body, which may have `most` bytes. Raise an HTTPException.

    aiohttp's own limit does not help: it buffers twice as much, and decompresses before it counts.
    """
    if "Content-Encoding" in request.headers:
        raise web.HTTPUnsupportedMediaType(text="send the body without Content-Encoding\n")
    size, body = request.content_length or 0, bytearray()
    while size <= most and (piece := await request.content.readany()):
        body += piece
        size = max(size, len(body))
    if size > most:
        raise web.HTTPRequestEntityTooLarge(most, text=f"the body may have {most} bytes\n")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise web.HTTPBadRequest(text="the body must be a JSON object\n")
    return found


def text_in(body: dict[str, Any], name: str) -> str:
    """Return a string of the object; empty if it is missing. Raise HTTPBadRequest."""
    value = body.get(name, "")
    if not isinstance(value, str):
        raise web.HTTPBadRequest(text=f"{name} must be a string\n")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can have half of a surrogate pair
        raise web.HTTPBadRequest(text=f"{name} must be Unicode text\n") from None
    return value


def last_page(count: int) -> int:
    """Return the number of the last page, from 0, of `count` rows."""
    return max(0, count - 1) // PAGE


def page_number(request: web.Request, name: str = "page") -> int:
    """Return the page that a request asks for by this name, from 0. Raise HTTPBadRequest."""
    text = request.query.get(name, "0")
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise web.HTTPBadRequest(text=f"{name} must be a number\n")
    return int(text)


def id_of(name: bytes) -> str:
    """Return the id of the queue with this name, for JSON and URLs: percent-encoded."""
    return quote(name, safe="")


def queue_of(request: web.Request, queue_id: object, number: object) -> tuple[Database, bytes]:
    """Return the database with this number, and the name of the queue with this id.

    Raise HTTPBadRequest if it cannot be a queue, HTTPForbidden if the user may not see it, and HTTPNotFound
    if the database is not in use.
    """
    name = unquote_to_bytes(queue_id) if isinstance(queue_id, str) and len(queue_id) <= _MAX_ID else b""
    if not name or not is_queue_name(name):
        raise web.HTTPBadRequest(text="this cannot be a queue\n")
    if not request[USER].may_access(name):
        raise web.HTTPForbidden(text="this user has no right to the queue\n")
    for database in request.app[CONTEXT].server.broker.databases:
        if str(number) == str(database.database_number):
            return database, name
    raise web.HTTPNotFound(text="this database is not in use\n")


def is_administrator(request: web.Request) -> bool:
    """Return whether the user may administer the whole server."""
    return "administer" in request[USER].rights and request[USER].has_all_queues


def require_administrator(request: web.Request) -> None:
    """Raise HTTPForbidden unless the user may administer the whole server."""
    if not is_administrator(request):
        raise web.HTTPForbidden(text="this needs the right to administer all queues\n")
