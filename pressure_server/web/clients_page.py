"""The page of clients: their connections, the queues on which they wait, and the bytes held for them."""

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from pressure_server.net.client_facts import SORTS, ClientFacts, Selection
from pressure_server.text import printable
from pressure_server.web.http_requests import (
    CONTEXT,
    PAGE,
    id_of,
    last_page,
    page_number,
    require_administrator,
)

# The most queues shown of one client, for waits and for reservations.
_MOST_QUEUES = 5
_MAX_FILTER = 256
# The facts that are shown as they are.
_AS_THEY_ARE = ("id", "address", "protocol", "user", "age", "idle", "command")


def client_row(facts: ClientFacts) -> dict[str, Any]:
    """Return what the console shows of a client."""
    states = {"waits": facts.is_waiting, "throttled": facts.is_throttled, "monitor": facts.is_monitor}
    return {
        **{name: getattr(facts, name) for name in _AS_THEY_ARE},
        "name": printable(facts.name.encode()),
        "library": printable(facts.library.encode()),
        "queues": _queues([(facts.database, name) for name in facts.waits_on]),
        "more_queues": max(0, len(facts.waits_on) - _MOST_QUEUES),
        "bytes": facts.held_bytes,
        "reserved": facts.reserved_jobs,
        "reserved_from": _queues(facts.reserved_from),
        "states": [state for state, is_so in states.items() if is_so],
    }


def _queues(queues: Sequence[tuple[int, bytes]]) -> list[dict[str, Any]]:
    """Return the first of these queues, which are given by database number and name."""
    return [
        {"db": number, "id": id_of(name), "name": printable(name)} for number, name in queues[:_MOST_QUEUES]
    ]


async def clients_view(request: web.Request) -> dict[str, Any]:
    """Return one page of the connected clients. Raise an HTTPException."""
    require_administrator(request)
    sort, text = request.query.get("sort", "id"), request.query.get("filter", "")
    if sort not in SORTS or len(text) > _MAX_FILTER:
        raise web.HTTPBadRequest(text="sort or filter is wrong\n")
    wanted = page_number(request)
    selection = Selection(sort, request.query.get("order") == "down", text, (wanted + 1) * PAGE)
    found = await request.app[CONTEXT].server.workers.selected_clients(selection)
    last = last_page(found.matching)
    page = min(wanted, last)
    rows = [client_row(facts) for _, facts in found.first[page * PAGE : (page + 1) * PAGE]]
    return {"rows": rows, "matching": found.matching, "page": page, "pages": last + 1}
