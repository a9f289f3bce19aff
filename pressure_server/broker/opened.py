"""What clients have opened: messages that they have taken, and may give back until they say they are done.

The backend keeps each by itself (get.lua), so that it comes back when we die, and nothing else with it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pressure_server.broker import kinds
from pressure_server.broker.operation import Operation
from pressure_server.broker.slots import Delivery, Kept

if TYPE_CHECKING:
    from pressure_server.broker.lanes import Lanes

# Of the loop: within so many everybody who has gone at the same time is known to have.
TURNS_TO_LEAVE = 8


class Opened:
    """Of the queues of one database."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        # What is about to go back: by its call's number, and which it was there.
        self._returning: list[tuple[int, int, bytes, Kept]] = []

    def keep(self, operation: Operation, number: int) -> Delivery:
        """What the operation has opened in the call of that number, until its client is done with it."""
        name, (_flags, which, _message) = operation.name, operation.results[0].split(b" ", 2)
        kept = Kept(b"o%d.%b" % (number, which), number)
        self._lanes.keep_apart(kept)
        return Delivery(
            kept,
            partial(self._lanes.settle_apart, kinds.ACKNOWLEDGE, name, kept, [kept.slot]),
            lambda _: self._put_back(name, kept, int(which)),
        )

    def _put_back(self, name: bytes, kept: Kept, which: int) -> None:
        """With what others give up who leave at the same time: the first opened goes last, to be first."""
        self._returning.append((kept.number, which, name, kept))
        if len(self._returning) == 1:
            self._lanes.after(TURNS_TO_LEAVE, self.restore)

    def restore(self) -> None:
        """Send at once what is to be put back."""
        returning, self._returning = self._returning, []
        for number, _, name, kept in sorted(returning, reverse=True):
            arguments = [self._lanes.identity, kept.slot, b"%d" % number]
            self._lanes.settle_apart(kinds.RECOVER, name, kept, arguments)
