"""The overview: totals, and one page of the queues, sorted and filtered.

The page is made here, not in the browser, so that 100 000 queues do not travel there each second.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from operator import itemgetter
from time import monotonic
from typing import Any, NamedTuple

from aiohttp import web

from pressure_server.auth.users import User
from pressure_server.errors import PatternError, PressureError
from pressure_server.queues.glob import glob_regex
from pressure_server.queues.names import printable
from pressure_server.queues.operations.operation import Line
from pressure_server.queues.survey import Surveyed
from pressure_server.web.problems import ProblemWatch, warnings_of
from pressure_server.web.queue_ids import id_of
from pressure_server.web.shown import Shown

PAGE = 50
_MAX_FILTER = 256
# Queues that are sorted without a pause. An order is kept for a second, and longer if there are many queues.
_AT_ONCE = 2000
_KEPT_PER_QUEUE = 1 / 5000
_MAX_ORDERS = 32
Key = tuple[int, bytes]

_SORTS: dict[str, Callable[[Surveyed], Any]] = {
    "name": lambda queue: queue.name,
    "type": lambda queue: queue.figures.type,
    "messages": lambda queue: queue.figures.length,
    "bytes": lambda queue: queue.figures.bytes,
    "bound": lambda queue: queue.figures.bound,
    "age": lambda queue: queue.age,
    "put": lambda queue: queue.put_rate,
    "taken": lambda queue: queue.taken_rate,
    "reserved": lambda queue: queue.figures.reserved,
    "buried": lambda queue: queue.figures.buried,
}


class _Query(NamedTuple):
    """What a console asks for; `user` is part of it, because each sees other queues."""

    user: User
    sort: str
    descending: bool
    filter: str

    @classmethod
    def of(cls, request: web.Request, user: User) -> _Query:
        """Return the query of a request. Raise HTTPBadRequest."""
        query = request.query
        sort, text = query.get("sort", "name"), query.get("filter", "")
        if sort not in _SORTS or query.get("order", "up") not in ("up", "down") or len(text) > _MAX_FILTER:
            raise web.HTTPBadRequest(text="sort, order or filter is wrong\n")
        return cls(user, sort, query.get("order") == "down", text)

    def filters(self) -> Callable[[bytes], bool]:
        """Return whether a name is wanted: it contains the text, or matches it if that is a pattern."""
        wanted = self.filter.encode()
        if b"*" in wanted or b"?" in wanted:
            regex = glob_regex(wanted)
            return lambda name: regex.fullmatch(name) is not None
        return lambda name: wanted in name


def page_number(request: web.Request) -> int:
    """Return the page that a request asks for, from 0. Raise HTTPBadRequest."""
    text = request.query.get("page", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise web.HTTPBadRequest(text="page must be a number\n")
    return int(text)


class Overview:
    """The overview of all queues."""

    def __init__(self, shown: Shown, problems: ProblemWatch) -> None:
        self._shown = shown
        self._problems = problems
        # The queues in the order of each query, and until when that is used.
        self._orders: OrderedDict[_Query, tuple[float, list[Key]]] = OrderedDict()
        self._sorting = asyncio.Lock()

    async def view(self, request: web.Request, user: User) -> dict[str, Any]:
        """Return what the console shows. Raise HTTPBadRequest or BackendError."""
        try:
            order = await self._order(_Query.of(request, user))
        except PatternError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        pages = max(1, -(-len(order) // PAGE))
        page = min(page_number(request), pages - 1)
        keys = order[page * PAGE : (page + 1) * PAGE]
        broker, survey = self._shown.context.broker, self._shown.survey
        self._problems.look_at(broker.databases, keys)
        if broker.is_up:
            await survey.look_at(keys)
        rows = [self.row(survey.queues[key]) for key in keys if key in survey.queues]
        return {
            "server": self._server(),
            "rows": rows,
            "matching": len(order),
            "page": page,
            "pages": pages,
        }

    async def _order(self, query: _Query) -> list[Key]:
        async with self._sorting:
            until, order = self._orders.get(query, (0.0, []))
            if monotonic() < until:
                return order
            order = await self._sorted(query)
            self._orders[query] = monotonic() + max(1.0, len(order) * _KEPT_PER_QUEUE), order
            self._orders.move_to_end(query)
            if len(self._orders) > _MAX_ORDERS:
                self._orders.popitem(last=False)
            return order

    async def _sorted(self, query: _Query) -> list[Key]:
        """Sort some queues at a time: the last step then only merges sorted parts."""
        queues = list(self._shown.survey.queues.items())
        value, wanted, user = _SORTS[query.sort], query.filters(), query.user
        found: list[tuple[Any, Key]] = []
        for first in range(0, len(queues), _AT_ONCE):
            some = [
                (value(queue), key)
                for key, queue in queues[first : first + _AT_ONCE]
                if wanted(key[1]) and (user.has_all_queues or user.may_access(key[1]))
            ]
            found += sorted(some, key=itemgetter(0), reverse=query.descending)
            await asyncio.sleep(0)
        found.sort(key=itemgetter(0), reverse=query.descending)
        return [key for _, key in found]

    def row(self, queue: Surveyed) -> dict[str, Any]:
        """Return the figures of a queue."""
        figures = queue.figures
        database = next(
            one for one in self._shown.context.broker.databases if one.database_number == queue.database
        )
        waiting = database.waiting_on(queue.name)
        states = (("closed", figures.is_closed), ("full", figures.is_full), ("paused", figures.paused))
        return {
            "db": queue.database,
            "id": id_of(queue.name),
            "name": printable(queue.name),
            "type": figures.type.decode(),
            "messages": figures.length,
            "bytes": figures.bytes,
            "bound": figures.bound,
            "age": round(queue.age),
            "put": round(queue.put_rate, 1),
            "taken": round(queue.taken_rate, 1),
            "waiting_producers": waiting[Line.PRODUCERS],
            "waiting_consumers": waiting[Line.CONSUMERS],
            "delayed": figures.delayed,
            "reserved": figures.reserved,
            "buried": figures.buried,
            "states": [name for name, is_so in states if is_so],
            "lengths": list(queue.lengths or ()),
            "problems": self._problems.of(queue.database, queue.name),
            "warnings": warnings_of(queue, waiting[Line.PRODUCERS]),
        }

    def _server(self) -> dict[str, Any]:
        context, totals = self._shown.context, self._shown.survey.totals
        try:
            context.check_readiness()
            reason = None
        except PressureError as error:
            reason = str(error)
        clients = context.clients
        return {
            "not_ready": reason,
            "queues": len(self._shown.survey.queues),
            "messages": totals.length,
            "full": totals.full,
            "closed": totals.closed,
            "buried": totals.buried,
            "oldest": round(totals.oldest),
            "clients": len(clients.connected),
            "blocked": sum(one.is_waiting for one in clients.connected),
            "throttled": clients.memory.throttled,
            "commands": clients.commands_per_second,
            "problems": self._problems.count,
            "is_complete": self._shown.survey.rounds > 0,
        }
