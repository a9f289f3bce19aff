"""The page of clients: their connections, the queues on which they wait, and the bytes held for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from aiohttp import web

from pressure_server.auth.users import User
from pressure_server.net.client_facts import facts_of, sessions_of
from pressure_server.net.session import Session
from pressure_server.text import printable
from pressure_server.web.http_requests import HttpContext, id_of, page_number, require_administrator
from pressure_server.web.overview import PAGE

# Queues that are shown of those on which one client waits.
_MOST_QUEUES = 5
_MAX_FILTER = 256
# Clients that are looked at between two pauses.
_AT_ONCE = 500


def client_row(client: Session) -> dict[str, Any]:
    """Return the facts about a client."""
    facts = facts_of(client)
    states = (
        ("waits", facts.is_waiting),
        ("throttled", facts.is_throttled),
        ("monitor", facts.is_monitor),
    )
    return {
        "id": facts.id,
        "address": facts.address,
        "name": printable(facts.name.encode()),
        "protocol": facts.protocol,
        "user": facts.user,
        "library": printable(facts.library.encode()),
        "age": facts.age,
        "idle": facts.idle,
        "command": facts.command,
        "db": facts.database,
        "queues": [{"id": id_of(name), "name": printable(name)} for name in facts.waits_on[:_MOST_QUEUES]],
        "more_queues": max(0, len(facts.waits_on) - _MOST_QUEUES),
        "bytes": facts.held_bytes,
        "reserved": facts.reserved_jobs,
        "states": [name for name, is_so in states if is_so],
    }


_SORTS: dict[str, Callable[[Session], Any]] = {
    "id": lambda client: client.id,
    "bytes": lambda client: client.connection.held_bytes(),
    "idle": lambda client: -client.connection.active,
    "protocol": lambda client: client.PROTOCOL,
    "user": lambda client: client.user_name,
}


class ClientsPage:
    """The connected clients."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    async def view(self, request: web.Request, user: User) -> dict[str, Any]:
        """Return one page of the clients. Raise an HTTPException."""
        require_administrator(user)
        sort, text = request.query.get("sort", "id"), request.query.get("filter", "")
        if sort not in _SORTS or len(text) > _MAX_FILTER:
            raise web.HTTPBadRequest(text="sort or filter is wrong\n")
        value_of, found = _SORTS[sort], list[tuple[Any, Session]]()
        clients = sessions_of(self._context.server.clients)
        for first in range(0, len(clients), _AT_ONCE):
            found += [
                (value_of(one), one)
                for one in clients[first : first + _AT_ONCE]
                if not text or _matches(one, text)
            ]
            await asyncio.sleep(0)
        found.sort(key=itemgetter(0), reverse=request.query.get("order") == "down")
        pages = max(1, -(-len(found) // PAGE))
        page = min(page_number(request), pages - 1)
        rows = [client_row(one) for _, one in found[page * PAGE : (page + 1) * PAGE]]
        return {"rows": rows, "matching": len(found), "page": page, "pages": pages}


def _matches(client: Session, text: str) -> bool:
    words = (
        client.addresses.client,
        client.PROTOCOL,
        client.user_name,
        client.name.decode(),
        client.library_name,
        client.command_statistics.name,
        *(queue.decode("utf-8", "replace") for queue in client.waits_on()),
    )
    return any(text in word for word in words)
