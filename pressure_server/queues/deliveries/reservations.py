"""What clients have opened: messages that they have taken, and may give back until they say they are done.

The backend keeps a record of each (get.lua), so that it comes back when we die, and nothing else with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pressure_server.queues.calls.courier import Courier
from pressure_server.queues.operations.operation import Delivery, Operation

# Of the loop: within so many everybody who has gone at the same time is known to have.
TURNS_TO_LEAVE = 8


class Reservations:
    """Of the queues of one database."""

    def __init__(self, courier: Courier, after: Callable[[int, Callable[[], None]], None]) -> None:
        """`after` calls something after so many turns of the loop."""
        self._courier = courier
        self._after = after
        # What is about to go back: by its call's number, and which it was there.
        self._returning: list[tuple[int, int]] = []

    def keep(self, operation: Operation, number: int) -> Delivery:
        """What the operation has opened in the call of that number, until its client is done with it."""
        _flags, which, _message = operation.results[0].split(b" ", 2)
        field = _field(number, int(which))
        self._courier.keep(field)
        delivery = Delivery(
            number, partial(self._closed, field), lambda _: self._put_back(number, int(which))
        )
        delivery.expect(operation)
        delivery.release()
        return delivery

    def _closed(self, field: bytes) -> None:
        """Drop the record before the client is told: what is closed does not come back."""
        self._courier.done(field)
        self._courier.drop_done()

    def _put_back(self, number: int, which: int) -> None:
        """With what others give up who leave at the same time: the first opened goes last, to be first."""
        self._returning.append((number, which))
        if len(self._returning) == 1:
            self._after(TURNS_TO_LEAVE, self.restore)

    def restore(self) -> None:
        """Send at once what is to be put back."""
        returning, self._returning = self._returning, []
        if returning:
            self._courier.recover([_field(*one) for one in sorted(returning, reverse=True)])


def _field(number: int, which: int) -> bytes:
    return b"o%d.%d" % (number, which)
