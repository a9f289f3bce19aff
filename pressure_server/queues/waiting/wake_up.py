"""An alarm: what changes of which queues a lane has asked to be told of, and what it does when told.

Made when somebody in the lane waits for the first time.
"""

from __future__ import annotations

from typing import Protocol

from pressure_server.queues.calls.driver import Watcher
from pressure_server.queues.operations.wait_condition import WaitCondition, possible, suffixes


class WakeTarget(Protocol):
    """The lane whose operations wait."""

    name: bytes
    is_in_flight: bool

    def poke(self) -> None:
        """Try those that wait."""


class Sleepers(Protocol):
    """The operations that wait."""

    @property
    def lacks(self) -> dict[bytes, set[WaitCondition]]:
        """What they lack, by queue."""

    @property
    def existed(self) -> bool:
        """Whether the queue did when they were tried."""


class WakeUp:
    """A lane's. `disturbed` is set when a call of the lane may have changed its queue."""

    __slots__ = ("_changes", "_lane", "_set", "_sleepers", "_vain", "disturbed")

    def __init__(self, lane: WakeTarget, sleepers: Sleepers, changes: Watcher) -> None:
        self._lane = lane
        self._sleepers = sleepers
        self._changes = changes
        self._set: dict[bytes, list[bytes]] = {}  # queue -> the suffixes of the keys that are watched
        self._vain: dict[tuple[bytes, int], None] = {}  # a set would take 150 bytes more for each who waits
        self.disturbed = False

    def set(self) -> None:
        """Ask to be told when those in line may go on, where that has not been asked yet."""
        for name, lacks in self._sleepers.lacks.items():
            watched = suffixes(lacks)
            if set(watched) <= set(self._set.get(name, ())):
                continue
            self._set[name] = watched
            self.disturbed = False
            self._changes.arm(self, name, watched, own=name == self._lane.name)

    def armed(self, name: bytes, watched: list[bytes], mask: int | None) -> None:
        """It is set: `mask` is what was there then; None where nobody watches, and it is time to look."""
        lacks = self._sleepers.lacks.get(name)
        if lacks is None:
            # Those in line are being tried. What the mask shows may have come after their call: if that is
            # in vain they have to ask again.
            self._forget(name)
            self._vain.clear()
        elif mask is None:
            self._forget(name)
            self._lane.poke()
        elif possible(lacks, watched, mask, self._sleepers.existed) and (name, mask) not in self._vain:
            # Once: where it was in vain, only a change is a reason to try again.
            self._vain[name, mask] = None
            self._lane.poke()

    def forget_attempts(self) -> None:
        """What was tried in vain may be tried again when the watch is set."""
        self._vain.clear()

    def changed(self, name: bytes) -> None:
        """Something has changed with a queue, which is watched no longer."""
        if self._set.pop(name, None) is None:
            return
        self._vain.clear()
        if self.disturbed and name == self._lane.name:
            # Most likely by ourselves; the answer to setting it again says if there was more to it.
            if not self._lane.is_in_flight:
                self.set()
        else:
            self._lane.poke()
            self.set()

    def lost(self) -> None:
        """Nothing is watched any longer, but the backend still has a note of each key."""
        self.stop()
        self._set.clear()
        self._vain.clear()
        self._lane.poke()

    def _forget(self, name: bytes) -> None:
        """It is watched no longer."""
        self._set.pop(name, None)
        self._changes.leave(self, name)

    def stop(self) -> None:
        """Nobody waits any longer, and the lane goes."""
        for name in self._set:
            self._changes.leave(self, name, self._set[name])
