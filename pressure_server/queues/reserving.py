"""Reserving from several queues: looking for the best job, taking it, and waiting for one.

Looking changes nothing (first_jobs.py). A client that waits has an operation in the line of each queue. These
operations share a ticket, as in a BLPOP of several queues. If there are many queues, it watches most of them
instead (`Watcher` in first_jobs.py), and looks again when one has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

from pressure_server.errors import (
    BACKEND_LOST,
    BackendDiedError,
    PressureError,
    QueueClosedError,
    QueueDoesNotExistError,
    StoppingError,
    WaitLimitError,
)
from pressure_server.queues.first_jobs import NO_RANK, View, Watcher
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.options import Options
from pressure_server.queues.operations.owners import Client
from pressure_server.queues.operations.wait import Wait, WaiterCount
from pressure_server.queues.shard import Shard
from pressure_server.queues.waiting.several_queues import SeveralQueues

if TYPE_CHECKING:
    from pressure_server.queues.database import Database

_NOTHING = View(NO_RANK, None, [], set(), [])


async def reserve_best(
    database: Database,
    names: Sequence[bytes],
    claims: list[bytes],
    timeout: float | None,
    options: Options,
    client: Client | None,
    *,
    outlives_queues: bool,
) -> tuple[bytes, list[bytes]] | None:
    """Reserve a job for each claim, as far as the queue with the best job has any; wait for the first.

    The best job has the lowest priority, and among equals it is the oldest. `timeout` is in seconds; None
    waits forever. `options` apply to the operations that wait. With `outlives_queues`, a wait does not end
    when a queue is deleted. Returns the queue's name and at least one job as jobs.py reads it, or None when
    the time is up.

    Raises QueueClosedError if a wait meets a closed and empty queue, QueueDoesNotExistError if a queue is
    deleted, or another PressureError.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    how = Wait(timeout, waits_forever_for_role=True, outlives_queue=outlives_queues)
    watching = _Watching(database)
    error: PressureError | None = None
    is_over = False
    several: SeveralQueues | None = None
    try:
        while True:
            was_lost = False
            try:
                view = await _look(database, names, waits=timeout != 0)
                jobs = [] if view.best is None else await _take(database, view.best, claims, client)
            except BACKEND_LOST as lost:
                if timeout == 0 or isinstance(lost, BackendDiedError):
                    raise
                # A job that was taken goes back. Wait until the backend is back.
                view, jobs, was_lost = _NOTHING, [], True
            if view.best is not None and jobs:
                return view.best, jobs
            if view.best is None and error is not None and not view.overdue:
                raise error
            left = None if deadline is None else deadline - loop.time()
            is_unblocked = several is not None and several.unblocking is not None
            was_over, is_over = is_over, is_unblocked or (left is not None and left <= 0)
            if is_over and (was_over or not view.overdue):
                if several is not None and (unblocked := several.take_unblocking_effect()) is not None:
                    raise unblocked
                return None
            if view.overdue or view.best is not None:
                continue
            if was_lost and not any(map(database.is_lost, names)):
                await asyncio.sleep(0)
                continue  # it is back already, and has not been looked at
            watching.news.clear()
            several = SeveralQueues(database, verbs.RESERVE, options, client)
            watched = view.kept if outlives_queues else []
            unwatched = set(names).difference(watched)
            try:
                due_at = watching.begin(watched, several.look_again)
                if due_at is None:
                    continue
                if due_at < inf:
                    left = min(inf if left is None else left, max(0.0, due_at - loop.time()))
                how.timeout = left
                # Only the script knows which log a group reads.
                first = await several.first_ended(
                    [name for name in names if name in unwatched],
                    view.groups,
                    claims,
                    len(claims),
                    how,
                    watched,
                )
            finally:
                watching.end()
                several.end()
            if first is not None and first.results:
                return first.name, first.results
            error = None if first is None else first.error
            if error is not None and not isinstance(error, QueueClosedError):
                raise error
    finally:
        watching.hand_on()


class _Watching:
    """The queues that a command watches, of all shards."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watchers: list[tuple[Shard, Watcher]] = []
        self._wait = Wait(None)
        self._waiters: WaiterCount | None = None  # that has counted the wait
        # Queues of whose changes no other command has been told.
        self.news: set[bytes] = set()

    def begin(self, names: Sequence[bytes], changed: Callable[[], None]) -> float | None:
        """Watch queues; see FirstJobs.add_watcher. Raises WaitLimitError, StoppingError."""
        first_due = inf
        if not names:
            return first_due
        if self._database.is_stopping:
            raise StoppingError
        for shard, some in self._database.by_shard(names):
            if self._waiters is None:
                if not shard.waiters.try_add(self._wait):
                    raise WaitLimitError(shard.waiters.limit)
                self._waiters = shard.waiters
            watcher = Watcher(some, changed)
            due_at = shard.first_jobs.add_watcher(watcher)
            if due_at is None:
                return None
            self._watchers.append((shard, watcher))
            first_due = min(first_due, due_at)
        return first_due

    def end(self) -> None:
        """Stop watching."""
        if self._waiters is not None:
            self._waiters.remove(self._wait)
            self._waiters = None
        for shard, watcher in self._watchers:
            shard.first_jobs.watchers.remove(watcher)
            self.news |= watcher.news
        self._watchers.clear()

    def hand_on(self) -> None:
        """Tell other commands of the news: this one has ended, and has taken one job at most."""
        for name in self.news:
            self._database.shard_of(name).first_jobs.watchers.tell(name)


async def _take(database: Database, name: bytes, claims: list[bytes], client: Client | None) -> list[bytes]:
    try:
        jobs = await database.run(verbs.RESERVE, name, claims[:], len(claims), Wait(0), client)
    except (QueueClosedError, QueueDoesNotExistError):
        jobs = []
    if not jobs:
        database.shard_of(name).first_jobs.forget(name)
    return jobs


async def _look(database: Database, names: Sequence[bytes], *, waits: bool) -> View:
    """Look for the best job. What has ended in overdue queues is noticed first, and may be the best.

    If the command `waits`, look only at queues whose backend can be reached.

    A job whose last delivery has ended is then in the queue of its dead letters, which may be any of these.
    """
    view = await _look_once(database, names, waits=waits)
    if view.overdue:
        # Any operation makes the library notice what has ended.
        for result in await database.run_each(verbs.EXISTS, view.overdue):
            if isinstance(result, PressureError):
                raise result
        view = await _look_once(database, names, waits=waits)
    return view


async def _look_once(database: Database, names: Sequence[bytes], *, waits: bool) -> View:
    # Operations that wait in the queues of another shard are tried when that one is back.
    is_left_out = database.is_lost if waits else database.is_away
    views = [
        await shard.first_jobs.look(some)
        for shard, some in database.by_shard(names)
        if not is_left_out(some[0])
    ]
    best = min(views, key=lambda view: view.rank, default=_NOTHING)
    return View(
        best.rank,
        best.best,
        [name for view in views for name in view.overdue],
        set().union(*(view.groups for view in views)),
        [name for view in views for name in view.kept],
    )
