"""First jobs: the first job of each queue of a shard, as far as the server knows it.

A command that reserves from many queues looks at all of them, although few have changed since the last look.
So what a look shows is kept until the watch tells of a change, or a delay, a reservation or a pause ends.

A command that waits for one of very many queues is a *watcher* of what is kept: an operation in the line of
each costs fifty microseconds a queue, for each job that a worker waits for. A watcher costs nothing for its
queues. Operations in the line of a queue are served first.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, NamedTuple

from pressure_server.backend.link import Link
from pressure_server.backend.watch import Watch
from pressure_server.errors import BackendError
from pressure_server.lua.scripts import script_named
from pressure_server.queues.names import (
    BOUND,
    CLOSED,
    CONSUMER_FREE,
    DELAYED,
    READY,
    RESERVED,
    SETTINGS,
    base_key,
    portions,
)

# Looking at so few queues costs less than watching them.
_FEW = 16
# Queues of one call: it keeps backend and server busy for about a millisecond.
_QUEUES_AT_ONCE = 100
# The most queues that are kept: about 300 bytes here, and 1 kB in the backend for the watched keys of each.
_MOST_KEPT = 20_000
# The suffixes of the keys that change if the first job of a queue does.
_SHOWN_BY = (b"", READY, DELAYED, RESERVED, SETTINGS, BOUND, CLOSED, CONSUMER_FREE)

# In place of a time: it has passed, but the library has not noticed what has ended.
_OVERDUE = -inf

# The priority of a job, and when it was put, in microseconds: the lowest rank is reserved first.
Rank = tuple[float, float]
NO_RANK: Rank = (inf, inf)


# What first_jobs.lua says of a queue that belongs to a group.
_GROUP = 1


class View(NamedTuple):
    """What a look has shown: the queue with the best job, and the rank of that job.

    `best` is None if no job is ready. In the `overdue` queues a delay, a reservation or a pause has ended,
    but the library has not noticed it. `groups` are the queues of groups. Of changes in those that are `kept`
    the watchers are told.
    """

    rank: Rank
    best: bytes | None
    overdue: list[bytes]
    groups: set[bytes]
    kept: list[bytes]


class _FirstJob(NamedTuple):
    """The rank of a queue's first job; and when its next delay, reservation or pause ends (loop's clock).

    A command must wait in its line if the queue is closed, a native client holds a role that it needs, or it
    is the queue of a group: a group has messages of its log, whose keys are not watched.
    """

    rank: Rank
    due_at: float
    is_of_group: bool
    is_in_line: bool


_NOTHING = _FirstJob(NO_RANK, inf, False, False)


class Watcher:
    """A command that waits. `news` are the queues that have changed and of which it alone was told."""

    __slots__ = ("changed", "names", "news")

    def __init__(self, names: Iterable[bytes], changed: Callable[[], None]) -> None:
        self.names = frozenset(names)
        self.changed = changed
        self.news: set[bytes] = set()

    def tell(self, name: bytes) -> None:
        """Note that a queue has changed; wake the command up."""
        self.news.add(name)
        self.changed()


class Watchers:
    """The watchers of the queues of one shard."""

    def __init__(self) -> None:
        self._watchers: dict[Watcher, None] = {}

    def add(self, watcher: Watcher) -> None:
        """Add a watcher."""
        self._watchers[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        """Remove a watcher: it looks at its queues. If it then takes a job, tell others of its news."""
        self._watchers.pop(watcher, None)

    def tell(self, name: bytes) -> None:
        """Tell the first watcher that has not been told of anything else: there may be a job for it."""
        for has_news in (False, True):
            for watcher in self._watchers:
                if bool(watcher.news) is has_news and name in watcher.names:
                    watcher.tell(name)
                    return

    def tell_all(self) -> None:
        """Wake all watchers up."""
        for watcher in list(self._watchers):
            watcher.changed()

    def have(self, name: bytes) -> bool:
        """Return whether a watcher waits for this queue."""
        return any(name in watcher.names for watcher in self._watchers)

    def count(self, names: Collection[bytes] | None) -> dict[bytes, int]:
        """Return how many wait for each of these queues, or for all. Those with none are left out."""
        found: dict[bytes, int] = {}
        for watcher in self._watchers:
            for name in watcher.names if names is None else watcher.names.intersection(names):
                found[name] = found.get(name, 0) + 1
        return found


class FirstJobs:
    """The first jobs of the queues of one shard."""

    def __init__(self, link: Link, watch: Watch, prefix: bytes) -> None:
        self._link = link
        self._watch = watch
        self._prefix = prefix
        # Oldest first; the ranks of those with a job; and when something of them ends.
        self._kept: dict[bytes, _FirstJob] = {}
        self._ranks: dict[bytes, Rank] = {}
        self._due: list[tuple[float, bytes]] = []
        # The last call that reads a queue, until it is answered or the queue changes.
        self._reading: dict[bytes, object] = {}
        self.watchers = Watchers()
        self._loop = asyncio.get_running_loop()

    async def look(self, names: Sequence[bytes]) -> View:
        """Look at these queues; changes made before are included. The first of equal rank is the best."""
        if len(names) > _FEW and self._watch.is_up:
            try:
                return await self._look_at_changed(names)
            except BackendError:
                pass  # the watch has just been lost, or the node does not know the script
        found: dict[bytes, _FirstJob] = {}
        for some in portions(names, _QUEUES_AT_ONCE):
            asked_at, keys = self._loop.time(), [base_key(self._prefix, name) for name in some]
            reply = await self._link.call(script_named("kinds/first_jobs"), keys, [], once=False)
            found.update(_parse(some, reply, asked_at))
        return _view(found)

    async def _look_at_changed(self, names: Sequence[bytes]) -> View:
        """Look at those queues that have changed. Raises BackendError if the watch is lost."""
        self._forget_due()
        kept, rank_of = self._kept, self._ranks.get
        found = await self._read_and_keep([name for name in names if name not in kept])
        if not found:
            # Like a reply to a look, this reply comes after the news of all changes until now.
            await self._watch.ask(self._link.number, b"PING")
        found |= await self._read_and_keep([name for name in names if name not in kept and name not in found])
        ranks = [rank_of(name, NO_RANK) for name in names]
        rank = min(ranks)
        view = _view({name: first for name, first in found.items() if name not in kept})
        view = view._replace(kept=[name for name in names if name in kept])
        if rank < NO_RANK and rank <= view.rank:
            return view._replace(rank=rank, best=names[ranks.index(rank)])
        return view

    def forget(self, name: bytes) -> None:
        """Look at a queue again next time: it may have changed."""
        self._reading.pop(name, None)
        if self._kept.pop(name, None) is not None:
            self._ranks.pop(name, None)
            self.watchers.tell(name)

    def forget_all(self) -> None:
        """Look at all queues again: the watch does not tell of changes."""
        for kept in (self._reading, self._kept, self._ranks, self._due):
            kept.clear()
        self.watchers.tell_all()

    def add_watcher(self, watcher: Watcher) -> float | None:
        """Tell the watcher when one of its queues, all of which a look has kept, changes.

        Return when the first of their delays, reservations and pauses ends, by the loop's clock. Return None
        if a queue has changed since the look: then nothing is told.
        """
        kept = [self._kept.get(name) for name in watcher.names]
        if None in kept:
            return None
        self.watchers.add(watcher)
        return min(first.due_at for first in kept if first is not None)

    async def _read_and_keep(self, names: Sequence[bytes]) -> dict[bytes, _FirstJob]:
        """Read the first jobs of queues, and keep those that do not change meanwhile."""
        found: dict[bytes, _FirstJob] = {}
        number, script, reading = self._link.number, script_named("kinds/first_jobs"), self._reading
        for some in portions(names, _QUEUES_AT_ONCE):
            asked_at, keys = self._loop.time(), [base_key(self._prefix, name) for name in some]
            call = object()
            reading.update(dict.fromkeys(some, call))
            self._watch.arm(number, [key + end for key in keys for end in _SHOWN_BY], _ignore)
            try:
                reply = await self._watch.ask(number, b"EVALSHA", script.digest, b"%d" % len(keys), *keys)
            finally:
                unchanged = [name for name in some if reading.get(name) is call]
                for name in unchanged:
                    del reading[name]
            found.update(_parse(some, reply, asked_at))
            for name in unchanged:
                self._keep(name, found[name])
        return found

    def _keep(self, name: bytes, first: _FirstJob) -> None:
        if first.is_in_line or first.due_at <= self._loop.time():
            return
        if len(self._kept) >= _MOST_KEPT and name not in self._kept:
            oldest = next(iter(self._kept))
            if self.watchers.have(oldest):
                return
            self.forget(oldest)
            base = base_key(self._prefix, oldest)
            self._watch.disarm(self._link.number, [base + end for end in _SHOWN_BY])
        self._kept[name] = first
        self._ranks.pop(name, None)
        if first.rank < NO_RANK:
            self._ranks[name] = first.rank
        if first.due_at < inf:
            heappush(self._due, (first.due_at, name))
            if len(self._due) > 2 * _MOST_KEPT:
                self._due = [(one.due_at, name) for name, one in self._kept.items() if one.due_at < inf]
                heapify(self._due)

    def _forget_due(self) -> None:
        now = self._loop.time()
        while self._due and self._due[0][0] <= now:
            name = heappop(self._due)[1]
            if self._kept.get(name, _NOTHING).due_at <= now:
                self.forget(name)


def _ignore(_there: int | None, _value: bytes | None) -> None:
    """Ignore which of the watched keys exist."""


def _view(found: dict[bytes, _FirstJob]) -> View:
    rank = min((first.rank for first in found.values()), default=NO_RANK)
    return View(
        rank,
        next((name for name, first in found.items() if first.rank == rank < NO_RANK), None),
        [name for name, first in found.items() if first.due_at == _OVERDUE],
        {name for name, first in found.items() if first.is_of_group},
        [],
    )


def _parse(
    names: Sequence[bytes], reply: Sequence[Any], asked_at: float
) -> Iterator[tuple[bytes, _FirstJob]]:
    """Yield the queues and what first_jobs.lua has seen of them; it was called at `asked_at`."""
    for name, seen in zip(names, reply, strict=True):
        if not seen:
            yield name, _NOTHING
            continue
        line, due, *rank = seen
        due_at = _OVERDUE if due == 0 else inf if due < 0 else asked_at + due / 1000
        yield name, _FirstJob((rank[0], rank[1]) if rank else NO_RANK, due_at, line == _GROUP, line > 0)
