"""Reserving from several queues: looking for the best job, taking it, and waiting for one.

Looking changes nothing, and takes a step for every few hundred queues. A client that waits listens to the
keys of all its queues, which costs less than an operation in each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from pressure_server.errors import QueueClosedError, QueueDoesNotExistError, StoppingError
from pressure_server.lua.script import Script
from pressure_server.lua.scripts import best_script
from pressure_server.queues.names import BOUND, CONSUMER_FREE, READY, base_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.owners import Client
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.operations.wait_condition import WaitCondition, watched_suffixes
from pressure_server.queues.waiting.key_notifications import KeyNotifications

# Queues of one step: a step keeps the backend busy for about a millisecond.
_QUEUES_AT_ONCE = 250
_WATCHED = watched_suffixes([WaitCondition.MESSAGE, WaitCondition.CONSUMER_ROLE])
_HAS_MESSAGES = sum(1 << _WATCHED.index(suffix) for suffix in (b"", READY))
_IS_FREE = sum(1 << _WATCHED.index(suffix) for suffix in (BOUND, CONSUMER_FREE))


class Queues(Protocol):
    """What this module uses of a database."""

    prefix: bytes
    notifications: KeyNotifications
    is_stopping: bool

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

    async def call_script(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], *, once: bool
    ) -> Any:
        """See Database.call_script."""


class _View(NamedTuple):
    """The queues at one moment: the one with the best job, if any; those to notice; those that are paused.

    `due_in` is in how many seconds there may be another job; None for never. `stuck` are queues with messages
    that cannot be reserved because of native clients: one holds the consumer role, or deletes the queue.
    """

    best: bytes | None
    due_in: float | None
    overdue: list[bytes]
    paused: set[bytes]
    stuck: set[bytes]


async def reserve_best(
    queues: Queues,
    names: Sequence[bytes],
    claim: bytes,
    timeout: float | None,
    count: int,
    client: Client | None,
) -> tuple[bytes, list[bytes]] | None:
    """Reserve up to `count` jobs of the queue with the best job; wait `timeout` seconds for one.

    The best job has the lowest priority, and among equals it is the oldest. A `timeout` of None waits for
    ever. Returns the queue's name and at least one job as jobs.py reads it, or None when the time is up.
    Raises StoppingError, or another PressureError.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        view = await _look(queues, names)
        if view.best is not None:
            jobs = await _take(queues, view.best, claim, count, client)
            if jobs:
                return view.best, jobs
        elif not view.overdue:
            patience = None if deadline is None else deadline - loop.time()
            if patience is not None and patience <= 0:
                return None
            changed = await _wait(queues, names, view, patience, client)
            jobs = [] if changed is None else await _take(queues, changed, claim, count, client)
            if changed is not None and jobs:
                return changed, jobs


async def _take(queues: Queues, name: bytes, claim: bytes, count: int, client: Client | None) -> list[bytes]:
    try:
        return await queues.run(verbs.RESERVE, name, [claim] * count, count, Wait(0), client)
    except (QueueClosedError, QueueDoesNotExistError):
        return []


async def _look(queues: Queues, names: Sequence[bytes]) -> _View:
    best: tuple[int, int, bytes] | None = None
    due: list[int] = []
    overdue: list[bytes] = []
    paused: set[bytes] = set()
    stuck: set[bytes] = set()
    for first in range(0, len(names), _QUEUES_AT_ONCE):
        some = names[first : first + _QUEUES_AT_ONCE]
        keys = [base_key(queues.prefix, name) for name in some]
        number, priority, made, next_due, late, pausing, waiting = await queues.call_script(
            best_script(), keys, [], once=False
        )
        if number and (best is None or (priority, made) < best[:2]):
            best = (priority, made, some[number - 1])
        if next_due >= 0:
            due.append(next_due)
        overdue += [some[at - 1] for at in late]
        paused.update(some[at - 1] for at in pausing)
        stuck.update(some[at - 1] for at in waiting)
    if overdue:
        # Any operation makes the script notice what has ended.
        await queues.run_each(verbs.EXISTS, overdue)
        return _View(None, None, overdue, paused, stuck)
    return _View(best[2] if best else None, min(due) / 1000 if due else None, overdue, paused, stuck)


async def _wait(
    queues: Queues, names: Sequence[bytes], view: _View, patience: float | None, client: Client | None
) -> bytes | None:
    """Return a queue that may have a job; None if there may be one in any, or if the time is up."""
    times = [time for time in (patience, view.due_in) if time is not None]
    listener = _Listener(view.paused, view.stuck)
    armed = 0
    if client is not None:
        client.begin_wait(listener, names)
    try:
        async with asyncio.timeout(min(times, default=None)):
            while armed < len(names) and not listener.told.done():
                some = names[armed : armed + _QUEUES_AT_ONCE]
                armed += len(some)
                for name in some:
                    queues.notifications.arm(listener, name, _WATCHED)
                await asyncio.sleep(0)  # let other clients have their turn
            return await listener.told
    except TimeoutError:
        return None
    finally:
        _leave(queues, names[:armed], listener)
        if client is not None:
            client.end_wait(listener)
        if queues.is_stopping:
            raise StoppingError


def _leave(queues: Queues, names: Sequence[bytes], listener: _Listener) -> None:
    """Stop listening, some queues at a time."""
    for name in names[:_QUEUES_AT_ONCE]:
        queues.notifications.leave(listener, name, _WATCHED)
    if len(names) > _QUEUES_AT_ONCE:
        asyncio.get_running_loop().call_soon(_leave, queues, names[_QUEUES_AT_ONCE:], listener)


class _Listener:
    """Tells when one of the queues has a message, or changes. Paused and stuck ones may have some already."""

    def __init__(self, paused: Collection[bytes], stuck: Collection[bytes]) -> None:
        self._paused = paused
        self._stuck = stuck
        # The first queue that did.
        self.told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def armed(self, name: bytes, _watched: list[bytes], mask: int | None) -> None:
        """See KeyListener: the keys are watched, and the mask tells which of them exist."""
        is_held = name in self._paused or (name in self._stuck and mask is not None and ~mask & _IS_FREE)
        if mask is None or (mask & _HAS_MESSAGES and not is_held):
            self.changed(name)

    def changed(self, name: bytes) -> None:
        """See KeyListener."""
        if not self.told.done():
            self.told.set_result(name)
