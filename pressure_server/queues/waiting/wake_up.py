"""Wake-ups: have a lane try its waiting operations again when a queue that they wait for has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pressure_server.queues.operations.wait import (
    WaitCondition,
    may_proceed,
    shows_existence,
    watched_suffixes,
)
from pressure_server.queues.waiting.key_notifications import KeyNotifications

if TYPE_CHECKING:
    from pressure_server.queues.lanes.lane import Lane
    from pressure_server.queues.waiting.waiting_operations import WaitingOperations


class WakeUp:
    """The notifications for which one lane has asked. Created when an operation first waits.

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
        if due != (sleepers.due_note if name == self._lane.name else None):
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
