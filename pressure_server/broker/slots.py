"""Slots: where the backend keeps the answers to calls on a queue, until what they brought has arrived.

The next call overwrites a slot that is done with; what is left then is acknowledged when the queue is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pressure_server.broker.operation import Operation


# To be acknowledged by one call: Redis's Lua can hand about 8000 values to one command.
MOST_AT_ONCE = 1000


class Kept(NamedTuple):
    """Where the answer to a call is kept, and the call's number (calls.lua)."""

    slot: bytes
    number: int


class Slots:
    """Those of one queue. `done_with` is called whenever one is."""

    __slots__ = ("_clean", "_dirty", "_done", "_done_with", "_made")

    def __init__(self, done_with: Callable[[], None]) -> None:
        self._done_with = done_with
        self._clean: list[bytes] = []
        self._done: list[bytes] = []
        self._dirty: set[bytes] = set()
        self._made = 0

    @property
    def are_clean(self) -> bool:
        """Whether nothing is kept, and nothing will be."""
        return self._made == len(self._clean)

    @property
    def are_done(self) -> bool:
        """Whether something is kept that has arrived."""
        return bool(self._done)

    def take(self) -> bytes:
        """A slot for the answer of a call."""
        if self._done:
            return self._done.pop()
        if self._clean:
            return self._clean.pop()
        self._made += 1
        return b"%d" % self._made

    def done(self, slot: bytes) -> None:
        """What the call brought has arrived."""
        self._dirty.add(slot)
        self._done.append(slot)
        self._done_with()

    def unused(self, slot: bytes) -> None:
        """The call has not come to the backend: the slot is as it was."""
        if slot in self._dirty:
            self.done(slot)
        else:
            self._clean.append(slot)

    def take_done(self) -> list[bytes]:
        """Some to be acknowledged; `cleaned` is to be called when they are, else `not_cleaned`."""
        done = self._done[-MOST_AT_ONCE:]
        del self._done[-MOST_AT_ONCE:]
        return done

    def cleaned(self, slots: Sequence[bytes]) -> None:
        """Nothing is kept there any longer."""
        self._dirty.difference_update(slots)
        self._clean += slots

    def not_cleaned(self, slots: Sequence[bytes]) -> None:
        """They are still to be acknowledged."""
        self._done += slots


class Delivery:
    """What one call has taken, on its way to clients."""

    __slots__ = ("_arrived", "_expected", "kept", "put_back")

    def __init__(
        self, kept: Kept, arrived: Callable[[], None], put_back: Callable[[Operation], None]
    ) -> None:
        """`arrived` is called when all of it has been handed over; `put_back` takes back what cannot be."""
        self.kept = kept
        self._arrived = arrived
        self.put_back = put_back
        self._expected = 1

    def expect(self, operations: int) -> None:
        """So many operations have some of it."""
        self._expected += operations

    def has_arrived(self) -> None:
        """One has handed it over; once more than was expected, when it is known who has some."""
        self._expected -= 1
        if not self._expected:
            self._arrived()
