"""Names of queues in JSON and URLs: any bytes, percent-encoded. Pure."""

from __future__ import annotations

from urllib.parse import quote, unquote_to_bytes

from aiohttp import web

from pressure_server.auth.users import User
from pressure_server.queues.broker import Broker
from pressure_server.queues.database import Database
from pressure_server.queues.names import is_queue_name

# The longest id: three characters for each byte of a long name.
_MAX_ID = 20_000


def id_of(name: bytes) -> str:
    """Return the id of the queue with this name."""
    return quote(name, safe="")


def name_of(queue_id: object) -> bytes:
    """Return the name of the queue with this id. Raise HTTPBadRequest."""
    if isinstance(queue_id, str) and 0 < len(queue_id) <= _MAX_ID:
        name = unquote_to_bytes(queue_id)
        if is_queue_name(name):
            return name
    raise web.HTTPBadRequest(text="this cannot be a queue\n")


def database_of(broker: Broker, number: object) -> Database:
    """Return the database with this number, if it is in use. Raise HTTPNotFound."""
    text = str(number)
    for database in broker.databases:
        if text == str(database.database_number):
            return database
    raise web.HTTPNotFound(text="this database is not in use\n")


def require_access(user: User, name: bytes) -> None:
    """Raise HTTPForbidden if the user may not see the queue."""
    if not user.may_access(name):
        raise web.HTTPForbidden(text="this user has no right to the queue\n")
