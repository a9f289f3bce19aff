"""Wake-ups: have a lane try its waiting operations again when a queue that they wait for has changed."""

from __future__ import annotations

from typing import Protocol

from pressure_server.queues.calls.driver import Watcher
from pressure_server.queues.operations.wait_condition import WaitCondition, possible, suffixes


class WakeTarget(Protocol):
    """The lane whose operations wait."""

    name: bytes
    is_in_flight: bool

    def poke(self) -> None:
        """Try the waiting operations again, with the next block."""


class Sleepers(Protocol):
    """The waiting operations."""

    @property
    def lacks(self) -> dict[bytes, set[WaitCondition]]:
        """The conditions for which operations wait, by queue."""

    @property
    def existed(self) -> bool:
        """Whether the queue existed when the waiting operations were tried."""


class WakeUp:
    """The notifications for which one lane has asked. Created when an operation first waits.

    `disturbed` says that a call of the lane may have changed its queue since it asked.
    """

    __slots__ = ("_changes", "_lane", "_set", "_sleepers", "_vain", "disturbed")

    def __init__(self, lane: WakeTarget, sleepers: Sleepers, changes: Watcher) -> None:
        self._lane = lane
        self._sleepers = sleepers
        self._changes = changes
        self._set: dict[bytes, list[bytes]] = {}  # queue -> suffixes of its watched keys
        self._vain: dict[tuple[bytes, int], None] = {}  # a set takes 150 bytes more per waiting client
        self.disturbed = False

    def set(self) -> None:
        """Ask for notifications of the keys that waiting operations need, unless already asked for."""
        for name, lacks in self._sleepers.lacks.items():
            watched = suffixes(lacks)
            if set(watched) <= set(self._set.get(name, ())):
                continue
            self._set[name] = watched
            self.disturbed = False
            self._changes.arm(self, name, watched, own=name == self._lane.name)

    def armed(self, name: bytes, watched: list[bytes], mask: int | None) -> None:
        """Try the operations again if `mask` says that they may go on. See KeyListener."""
        lacks = self._sleepers.lacks.get(name)
        if lacks is None:
            # The operations are being tried, and what the mask shows may be newer than their call. If they
            # fail they must ask again.
            self._forget(name)
            self._vain.clear()
        elif mask is None:
            self._forget(name)
            self._lane.poke()
        elif possible(lacks, watched, mask, self._sleepers.existed) and (name, mask) not in self._vain:
            # Try once for each mask. If that fails, wait for a change.
            self._vain[name, mask] = None
            self._lane.poke()

    def forget_attempts(self) -> None:
        """Forget which tries have failed, so that the same mask is a reason to try again."""
        self._vain.clear()

    def changed(self, name: bytes) -> None:
        """Try the operations again: a queue has changed. See KeyListener."""
        if self._set.pop(name, None) is None:
            return
        self._vain.clear()
        if self.disturbed and name == self._lane.name:
            # Probably a call of this lane: the answer to asking again shows whether there was another change.
            if not self._lane.is_in_flight:
                self.set()
        else:
            self._lane.poke()
            self.set()

    def lost(self) -> None:
        """Try the operations again, because no key is watched any longer.

        The old keys are released first: the backend may still have them in its table of watched keys.
        """
        self.stop()
        self._set.clear()
        self._vain.clear()
        self._lane.poke()

    def _forget(self, name: bytes) -> None:
        """Forget a queue that is not watched any longer."""
        self._set.pop(name, None)
        self._changes.leave(self, name)

    def stop(self) -> None:
        """Release all watched keys."""
        for name in self._set:
            self._changes.leave(self, name, self._set[name])
