"""Reserving from several queues: looking for the best job, taking it, and waiting for one.

Looking changes nothing, and takes a step for every few hundred queues. A client that waits has an operation
in the line of each queue. These operations share a ticket, as in a BLPOP of several queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from pressure_server.errors import PressureError, QueueClosedError, QueueDoesNotExistError
from pressure_server.lua.scripts import best_script
from pressure_server.queues.names import base_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.owners import Client
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.several_queues import Lanes, SeveralQueues
from pressure_server.queues.shard import Shard

# Queues of one step: a step keeps the backend busy for about a millisecond.
_QUEUES_AT_ONCE = 250


class Queues(Lanes, Protocol):
    """What this module uses of a database."""

    def by_shard(self, names: Sequence[bytes]) -> Iterator[tuple[Shard, list[bytes]]]:
        """See Database.by_shard."""

    async def run(
        self,
        verb: Verb,
        name: bytes,
        messages: list[bytes] | None = None,
        size: int = 1,
        wait: Wait | None = None,
        client: Client | None = None,
        options: Options = DEFAULT,
    ) -> list[Any]:
        """See Database.run."""

    async def run_each(self, verb: Verb, names: Sequence[bytes]) -> list[Any]:
        """See Database.run_each."""


class _View(NamedTuple):
    """The queues at one moment.

    `best` has the best job; None if no job is ready. In the `overdue` ones a delay or a reservation has
    ended since the script looked at them. `groups` are the queues of groups.
    """

    best: bytes | None
    overdue: list[bytes]
    groups: set[bytes]


class _BestJob(NamedTuple):
    """The best job of some queues: its priority, when it was put (microseconds), and its queue."""

    priority: int
    made: int
    name: bytes


async def reserve_best(
    queues: Queues,
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
    error: PressureError | None = None
    is_over = False
    while True:
        view = await _look(queues, names)
        if view.best is not None:
            jobs = await _take(queues, view.best, claims, client)
            if jobs:
                return view.best, jobs
        elif error is not None and not view.overdue:
            raise error
        how.timeout = None if deadline is None else deadline - loop.time()
        was_over, is_over = is_over, how.timeout is not None and how.timeout <= 0
        if is_over and (was_over or not view.overdue):
            return None
        if view.overdue or view.best is not None:
            continue
        several = SeveralQueues(queues, verbs.RESERVE, options, client)
        try:
            # Only the script knows which log a group reads.
            first = await several.first_ended(names, view.groups, claims, len(claims), how)
        finally:
            several.end()
        if first is not None and first.results:
            return first.name, first.results
        error = None if first is None else first.error
        if error is not None and not isinstance(error, QueueClosedError):
            raise error


async def _take(queues: Queues, name: bytes, claims: list[bytes], client: Client | None) -> list[bytes]:
    try:
        return await queues.run(verbs.RESERVE, name, claims[:], len(claims), Wait(0), client)
    except (QueueClosedError, QueueDoesNotExistError):
        return []


async def _look(queues: Queues, names: Sequence[bytes]) -> _View:
    """Look for the best job. What has ended in overdue queues is noticed first, and may be the best.

    A job whose last delivery has ended is then in the queue of its dead letters, which may be any of these.
    """
    best, overdue, groups = await _look_once(queues, names)
    if overdue:
        # Any operation makes the script notice what has ended.
        for result in await queues.run_each(verbs.EXISTS, overdue):
            if isinstance(result, PressureError):
                raise result
        best, overdue, groups = await _look_once(queues, names)
    return _View(best.name if best else None, overdue, groups)


async def _look_once(
    queues: Queues, names: Sequence[bytes]
) -> tuple[_BestJob | None, list[bytes], set[bytes]]:
    best: _BestJob | None = None
    overdue: list[bytes] = []
    groups: set[bytes] = set()
    for shard, its_names in queues.by_shard(names):
        if queues.is_away(its_names[0]):
            continue  # operations that wait in its queues are tried when the shard is back
        for first in range(0, len(its_names), _QUEUES_AT_ONCE):
            some = its_names[first : first + _QUEUES_AT_ONCE]
            keys = [base_key(shard.prefix, name) for name in some]
            number, priority, made, late, of_groups = await shard.call_script(
                best_script(), keys, [], once=False
            )
            if number and (best is None or (priority, made) < best[:2]):
                best = _BestJob(priority, made, some[number - 1])
            overdue += [some[at - 1] for at in late]
            groups.update(some[at - 1] for at in of_groups)
    return best, overdue, groups
