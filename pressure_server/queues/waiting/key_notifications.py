"""Key notifications: tell listeners when a queue changes; a lane then tries its waiting operations again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from pressure_server.backend.watch import Watch
from pressure_server.queues.names import DUE, base_key
from pressure_server.queues.operations.wait import (
    WaitCondition,
    may_proceed,
    shows_existence,
    watched_keys,
    watched_suffixes,
)

if TYPE_CHECKING:
    from pressure_server.queues.lanes.lane import Lane
    from pressure_server.queues.waiting.waiting_operations import WaitingOperations


class KeyListener(Protocol):
    """An object that is told when a queue changes."""

    def armed(self, name: bytes, watched: list[bytes], mask: int | None, due: bytes | None) -> None:
        """Note that keys with the suffixes `watched` are watched; `mask` says which exist, see `may_proceed`.

        If the backend cannot watch, it is None, after a pause: try again now. `due` is the value of DUE.
        """

    def changed(self, name: bytes) -> None:
        """Note that the queue has changed. It is not watched any longer."""


class KeyNotifications:
    """The listeners to queues of one shard. A lane is told of its own queue directly."""

    def __init__(self, watch: Watch, number: int, prefix: bytes) -> None:
        self._watch = watch
        self._number = number
        self._prefix = prefix
        # By queue; in the order in which they came.
        self._listeners: dict[bytes, dict[KeyListener, None]] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        """Return how many queues have listeners."""
        return len(self._listeners)

    def arm(self, listener: KeyListener, name: bytes, watched: list[bytes], *, own: bool = False) -> None:
        """Tell the listener, once, of a change of these keys. A lane is told of its `own` queue anyway."""
        if not own:
            self._listeners.setdefault(name, {})[listener] = None
        base = base_key(self._prefix, name)
        self._watch.arm(
            self._number,
            watched_keys(base, watched),
            lambda mask, due: listener.armed(name, watched, mask, due),
            base + DUE,
        )

    def leave(self, listener: KeyListener, name: bytes, watched: Iterable[bytes] = ()) -> None:
        """Stop telling the listener of a queue. `watched` are the suffixes still watched for it."""
        base = base_key(self._prefix, name)
        if watched:
            self._watch.disarm(self._number, [base + suffix for suffix in (*watched, DUE)])
        listeners = self._listeners.get(name)
        if listeners is not None:
            listeners.pop(listener, None)
            if not listeners:
                del self._listeners[name]

    def notify(self, name: bytes) -> None:
        """Tell all listeners that a queue has changed."""
        for listener in self._listeners.pop(name, ()):
            listener.changed(name)

    def watch_lost(self) -> None:
        """Tell all listeners: no key is watched any longer, so every queue may have changed."""
        for name in list(self._listeners):
            self.notify(name)

    async def wait_for(self, name: bytes, condition: WaitCondition, timeout: float) -> bool:
        """Wait until `condition` may be satisfied on a queue; return False after `timeout` seconds."""
        if timeout <= 0:
            return False
        news = _ConditionListener(condition, self._loop.create_future())
        watched = watched_suffixes([condition])
        self.arm(news, name, watched)
        try:
            done, _ = await asyncio.wait([news.reached], timeout=timeout)
        finally:
            self.leave(news, name, watched)
        return bool(done)


class _ConditionListener:
    """A listener for a coroutine that waits for a condition of a queue."""

    def __init__(self, condition: WaitCondition, come: asyncio.Future[None]) -> None:
        self._condition = condition
        self.reached = come

    def armed(self, name: bytes, watched: list[bytes], mask: int | None, _due: bytes | None) -> None:
        if mask is None or may_proceed([self._condition], watched, mask, existed=True):
            self.changed(name)

    def changed(self, _name: bytes) -> None:
        if not self.reached.done():
            self.reached.set_result(None)


class WakeUp:
    """The notifications for which one lane has asked.

    `may_be_own_change` says that a call of the lane may have changed its queue since it asked.
    """

    __slots__ = ("_changes", "_failed", "_lane", "_sleepers", "_watched", "may_be_own_change")

    def __init__(self, lane: Lane, sleepers: WaitingOperations, changes: KeyNotifications) -> None:
        self._lane = lane
        self._sleepers = sleepers
        self._changes = changes
        self._watched: dict[bytes, list[bytes]] = {}  # queue -> suffixes of its watched keys
        # The queue, the mask and the note before each try that failed. A dict, because a set takes 150 bytes
        # more per waiting client.
        self._failed: dict[tuple[bytes, int, bytes | None], None] = {}
        self.may_be_own_change = False

    def watch(self) -> None:
        """Ask for notifications of the keys that waiting operations need, unless already asked for."""
        for name, conditions in self._sleepers.conditions.items():
            watched = watched_suffixes(conditions)
            if set(watched) <= set(self._watched.get(name, ())):
                continue
            self._watched[name] = watched
            self.may_be_own_change = False
            self._changes.arm(self, name, watched, own=name == self._lane.name)

    def check(self) -> None:
        """Ask again what the queue has, and try the operations if that is a reason."""
        self._watched.pop(self._lane.name, None)
        self.watch()

    def armed(self, name: bytes, watched: list[bytes], mask: int | None, due: bytes | None) -> None:
        """Try the operations again if `mask` or `due` says that they may go on. See KeyListener."""
        conditions = self._sleepers.conditions.get(name)
        if conditions is None:
            # The operations are being tried, and what the mask shows may be newer than their call. If they
            # fail they must ask again.
            self._forget(name)
            self._failed.clear()
        elif mask is None:
            self._forget(name)
            self._sleepers.try_all()
        elif (name, mask, due) not in self._failed and self._may_proceed(
            name, conditions, watched, mask, due
        ):
            # Try once. If that fails, wait for a change.
            self._failed[name, mask, due] = None
            self._lane.wake_up()

    def _may_proceed(
        self, name: bytes, conditions: set[WaitCondition], watched: list[bytes], mask: int, due: bytes | None
    ) -> bool:
        sleepers = self._sleepers
        if name == self._lane.name:
            sleepers.note_existence(exists=shows_existence(watched, mask))
        # The note of another queue is not known: it is always a reason to look once.
        if due != (sleepers.timed_tries.due_note if name == self._lane.name else None):
            return True
        return may_proceed(conditions, watched, mask, sleepers.existed)

    def forget_attempts(self) -> None:
        """Forget which tries have failed, so that the same state is a reason to try again."""
        self._failed.clear()

    def changed(self, name: bytes) -> None:
        """Try the operations again: a queue has changed. See KeyListener."""
        if self._watched.pop(name, None) is None:
            return
        self._failed.clear()
        if self.may_be_own_change and name == self._lane.name:
            # Probably a call of this lane: the answer to asking again shows whether there was another change.
            if not self._lane.is_in_flight:
                self.watch()
        else:
            self._lane.wake_up()
            self.watch()

    def watch_lost(self) -> None:
        """Try the operations again, and release the old keys: the backend may still track them."""
        self.stop()
        self._watched.clear()
        self._failed.clear()
        self._sleepers.try_all()

    def _forget(self, name: bytes) -> None:
        """Forget a queue that is not watched any longer."""
        self._watched.pop(name, None)
        self._changes.leave(self, name)

    def stop(self) -> None:
        """Release all watched keys."""
        for name in self._watched:
            self._changes.leave(self, name, self._watched[name])
