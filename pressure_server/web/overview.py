"""The overview: totals, and one page of the queues, sorted and filtered.

The page is made here, not in the browser, so that 100 000 queues do not travel there each second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from heapq import merge
from itertools import islice
from operator import attrgetter
from time import monotonic
from typing import Any, NamedTuple

from aiohttp import web

from pressure_server.auth.users import User
from pressure_server.errors import BackendError, PatternError
from pressure_server.net.workers import Waiting
from pressure_server.queues.operations.operation import Line
from pressure_server.queues.survey import Surveyed
from pressure_server.text import Glob, printable
from pressure_server.web.http_requests import PAGE, USER, HttpContext, id_of, last_page, page_number
from pressure_server.web.problem_watch import ProblemWatch, warnings_of

_MAX_FILTER = 256
# Seconds for which an order is kept: longer if there are many queues, so that sorting takes about a hundredth
# of the time. An order of 100 000 queues takes a megabyte.
_KEPT = 1.0
_KEPT_PER_QUEUE = 1 / 5000
_MAX_ORDERS = 16
# Queues that are sorted between two pauses: these take a millisecond or two.
_AT_ONCE = 1000
# Seconds after which figures of queues in view are stale.
_STALE = 5.0
Key = tuple[int, bytes]

_SORTS: dict[str, Callable[[Surveyed], Any]] = {
    **{name: attrgetter(f"figures.{name}") for name in ("type", "bytes", "bound", "reserved", "buried")},
    "name": attrgetter("name"),
    "messages": attrgetter("figures.length"),
    "age": attrgetter("age"),
    "put": attrgetter("put_rate"),
    "taken": attrgetter("taken_rate"),
}
# Further orders, by what the survey does not know: see Overview.
_MORE_SORTS = ("waiting", "states")
# The figures that are shown as they are.
_AS_THEY_ARE = ("bytes", "bound", "delayed", "reserved", "buried")
# The states of the queues that a console may ask for; "problem" is one that the survey does not know.
_SHOWN: dict[str, Callable[[Surveyed], Any]] = {
    "full": lambda queue: queue.figures.is_full,
    "closed": lambda queue: queue.figures.is_closed,
    "paused": lambda queue: queue.figures.paused,
    "reserved": lambda queue: queue.figures.reserved,
    "buried": lambda queue: queue.figures.buried,
}


def _key(queue: Surveyed) -> Key:
    return queue.database, queue.name


def _old(at: float) -> int:
    """Return how many seconds ago a time of time.monotonic() was; 0 if figures of then are not stale."""
    seconds = monotonic() - at
    return round(seconds) if seconds > _STALE else 0


class _Query(NamedTuple):
    """What a console asks for; `user` is part of it, because each sees other queues."""

    user: User
    sort: str
    descending: bool
    filter: str
    state: str

    @classmethod
    def of(cls, request: web.Request) -> _Query:
        """Return the query of a request. Raise HTTPBadRequest."""
        query = request.query
        sort, text, state = query.get("sort", "name"), query.get("filter", ""), query.get("state", "")
        known = (sort in _SORTS or sort in _MORE_SORTS) and (state in _SHOWN or state in ("", "problem"))
        if not known or query.get("order", "up") not in ("up", "down") or len(text) > _MAX_FILTER:
            raise web.HTTPBadRequest(text="sort, order, filter or state is wrong\n")
        return cls(request[USER], sort, query.get("order") == "down", text, state)

    def names(self) -> Callable[[bytes], bool]:
        """Return a test of names: whether the user may see one, and the filter is in it or matches it."""
        wanted, may_access = self.filter.encode(), self.user.may_access
        if b"*" in wanted or b"?" in wanted:
            matches = Glob(wanted).matches
            return lambda name: matches(name) and may_access(name)
        return lambda name: wanted in name and may_access(name)


async def _sorted(
    queues: Mapping[Key, Surveyed],
    value_of: Callable[[Surveyed], Any],
    wants: Callable[[Surveyed], bool],
    descending: bool,
) -> list[Key]:
    """Return the keys of the queues that are wanted, in the order of their values.

    Some queues at a time become a sorted run, and then part of the result. To sort 100 000 queues at once
    would block the event loop for 50 ms.
    """
    everything, found = list(queues), list[Key]()
    # The runs have positions in these, because keys take longer to look up.
    keys: list[Key] = []
    values: list[Any] = []
    runs: list[list[int]] = []
    for first in range(0, len(everything), _AT_ONCE):
        begin = len(keys)
        for key in everything[first : first + _AT_ONCE]:
            queue = queues.get(key)
            if queue is not None and wants(queue):
                keys.append(key)
                values.append(value_of(queue))
        runs.append(sorted(range(begin, len(keys)), key=values.__getitem__, reverse=descending))
        await asyncio.sleep(0)
    merged = merge(*runs, key=values.__getitem__, reverse=descending)
    while some := list(islice(merged, _AT_ONCE)):
        found += map(keys.__getitem__, some)
        await asyncio.sleep(0)
    return found


class Overview:
    """The overview of all queues."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self.problems = ProblemWatch(context.server.broker, context.survey)
        # Until when the order of a query is used, and the queues in this order.
        self._orders: dict[_Query, tuple[float, list[Key]]] = {}
        self._sorting = asyncio.Lock()

    async def view(self, request: web.Request) -> dict[str, Any]:
        """Return what the console shows. Raise HTTPBadRequest."""
        query, wanted = _Query.of(request), page_number(request)
        async with self._sorting:
            try:
                order = await self._order_of(query)
            except PatternError as error:
                raise web.HTTPBadRequest(text=f"{error}\n") from error
        last = last_page(len(order))
        page = min(wanted, last)
        keys = order[page * PAGE : (page + 1) * PAGE]
        await self.look_at(keys)
        survey = self._context.survey
        waiting = await self._context.waiting()
        return {
            "server": await self._server(),
            "stale": _old(survey.looked),
            "rows": [self.row(survey.queues[key], waiting) for key in keys if key in survey.queues],
            "matching": len(order),
            "page": page,
            "pages": last + 1,
        }

    async def look_at(self, keys: Sequence[Key]) -> None:
        """Renew the figures of queues that a console shows, and let their problems be looked for.

        Queues whose shard is away keep their figures, which become stale.
        """
        self.problems.look_at(keys)
        with suppress(BackendError):
            await self._context.survey.look_at(keys)

    async def _order_of(self, query: _Query) -> list[Key]:
        """Return the queues in the order of a query, which is kept for some time."""
        now = monotonic()
        self._orders = {one: kept for one, kept in self._orders.items() if now < kept[0]}
        if query in self._orders:
            return self._orders[query][1]
        queues, waiting = self._context.survey.queues, await self._context.waiting()
        values = {**_SORTS, "waiting": lambda one: sum(waiting[_key(one)].values()), "states": self._urgency}
        is_shown = {"": lambda _: True, "problem": self._has_problem, **_SHOWN}[query.state]
        has_name, value_of = query.names(), values[query.sort]
        order = await _sorted(
            queues, value_of, lambda one: has_name(one.name) and is_shown(one), query.descending
        )
        self._orders[query] = monotonic() + max(_KEPT, len(queues) * _KEPT_PER_QUEUE), order
        if len(self._orders) > _MAX_ORDERS:
            del self._orders[next(iter(self._orders))]
        return order

    def _has_problem(self, queue: Surveyed) -> bool:
        return bool(self.problems.of(queue.database, queue.name))

    def _urgency(self, queue: Surveyed) -> int:
        """Return a number by which queues that need attention are sorted: problems count most."""
        figures = queue.figures
        return (
            16 * self._has_problem(queue)
            + 8 * figures.is_full
            + 4 * bool(figures.is_closed)
            + 2 * bool(figures.paused)
            + bool(figures.buried or figures.dead_letters or figures.dropped)
        )

    def row(self, queue: Surveyed, waiting_operations: Mapping[Key, Waiting]) -> dict[str, Any]:
        """Return the figures of a queue. `waiting_operations` has the counts of all queues."""
        figures, waiting = queue.figures, waiting_operations[_key(queue)]
        return {
            "db": queue.database,
            "id": id_of(queue.name),
            "name": printable(queue.name),
            "type": figures.type.decode(),
            "messages": figures.length,
            **{name: getattr(figures, name) for name in _AS_THEY_ARE},
            "age": round(queue.age),
            "put": round(queue.put_rate, 1),
            "taken": round(queue.taken_rate, 1),
            "waiting_producers": waiting[Line.PRODUCERS],
            "waiting_consumers": waiting[Line.CONSUMERS],
            "states": figures.states,
            "stale": _old(queue.at),
            "lengths": list(queue.lengths or ()),
            "problems": self.problems.of(queue.database, queue.name),
            "warnings": warnings_of(queue, waiting[Line.PRODUCERS]),
        }

    async def _server(self) -> dict[str, Any]:
        workers, totals = self._context.server.workers, self._context.survey.totals
        clients, calls = await workers.totals(), await workers.calls()
        reasons = self._context.server.broker.why_not_ready()
        return {
            "queues": len(self._context.survey.queues),
            "messages": totals.length,
            "full": totals.full,
            "closed": totals.closed,
            "buried": totals.buried,
            "oldest": round(totals.oldest),
            "clients": clients.connected,
            "blocked": clients.blocked,
            "throttled": clients.throttled,
            "commands": clients.commands_per_second,
            "lost_calls": sum(one.lost for one in calls.values()),
            "problems": self.problems.count,
            "unready_shards": sum(map(bool, reasons)) if len(reasons) > 1 else 0,
            "is_complete": self._context.survey.rounds > 0,
        }
