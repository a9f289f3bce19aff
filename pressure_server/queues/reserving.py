"""Reserving from several queues: looking for the best job, taking it, and waiting for one.

Looking changes nothing (first_jobs.py). A client that waits has an operation in the line of each queue, as a
BLPOP has, or if there are many, watches most of them, and looks again when one has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from pressure_server.errors import (
    BACKEND_LOST,
    BackendDiedError,
    PressureError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueInUseError,
)
from pressure_server.queues.first_jobs import NO_RANK, View
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.options import Options
from pressure_server.queues.operations.owners import Client
from pressure_server.queues.operations.wait import Wait
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
    deadline = inf if timeout is None else loop.time() + timeout
    how = Wait(waits_forever_for_role=True, outlives_queue=outlives_queues)
    error: PressureError | None = None
    is_over = False
    several: SeveralQueues | None = None
    view = _NOTHING
    try:
        while True:
            was_lost, held = False, None
            try:
                view = await _look(database, names, waits=timeout != 0)
                jobs = [] if view.best is None else await _take(database, view.best, claims, client)
            except QueueInUseError:
                # A native client holds the role. The operation that waits in that queue gets the role next.
                if timeout == 0:
                    raise
                held, jobs = view.best, []
            except BACKEND_LOST as lost:
                if timeout == 0 or isinstance(lost, BackendDiedError):
                    raise
                # A job that was taken goes back. Wait until the backend is back.
                view, jobs, was_lost = _NOTHING, [], True
            if view.best is not None and jobs:
                return view.best, jobs
            if view.best is None and error is not None and not view.overdue:
                raise error
            is_unblocked = several is not None and several.unblocking is not None
            was_over, is_over = is_over, is_unblocked or deadline <= loop.time()
            if is_over and (was_over or not view.overdue):
                if several is not None and (unblocked := several.take_unblocking_effect()) is not None:
                    raise unblocked
                return None
            if view.overdue or (view.best is not None and held is None):
                continue
            if was_lost and all(database.shard_of(name).is_up for name in names):
                await asyncio.sleep(0)
                continue  # it is back already, and has not been looked at
            several = SeveralQueues(database, verbs.RESERVE, options, client)
            watched = [name for name in view.kept if name != held] if outlives_queues else []
            unwatched = set(names).difference(watched)
            in_line = [name for name in names if name in unwatched]
            try:
                # Only the script knows which log a group reads, so the queues of groups are tried.
                first = await several.first_ended(
                    in_line, view.groups, claims, len(claims), how, deadline, watched
                )
            finally:
                several.end()
            if first is not None and first.results:
                return first.name, first.results
            error = None if first is None else first.error
            if error is not None and not isinstance(error, QueueClosedError):
                raise error
    finally:
        if several is not None:
            several.hand_on()


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

    A job whose last delivery has ended is then in the queue of its dead letters, which may be any of these.
    A command that `waits` looks only at queues whose backend can be reached.
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
    views = [
        await shard.first_jobs.look(some)
        for shard, some in database.by_shard(names)
        if shard.is_up or not (waits or shard.is_away)
    ]
    best = min(views, key=lambda view: view.rank, default=_NOTHING)
    return View(
        best.rank,
        best.best,
        [name for view in views for name in view.overdue],
        set().union(*(view.groups for view in views)),
        [name for view in views for name in view.kept],
    )
