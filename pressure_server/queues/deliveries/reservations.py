"""Reservations: messages that clients have taken and may give back until they acknowledge them.

Each has a record of its own in the backend (get.lua), apart from the record of its call. So if the server
dies, only messages that are still reserved go back, and no others that came with them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pressure_server.queues.calls.courier import Courier
from pressure_server.queues.operations.operation import Delivery, Operation

# Iterations of the event loop to wait, so that messages of clients that leave together go back together.
GATHER_ITERATIONS = 8


class Reservations:
    """The reservations of one database."""

    def __init__(self, courier: Courier, after: Callable[[int, Callable[[], None]], None]) -> None:
        """Make an empty collection; `after` is `after_iterations` of Driver."""
        self._courier = courier
        self._after = after
        # Pending put-backs: the call's number, and the message's number in the call.
        self._returning: list[tuple[int, int]] = []

    def keep(self, operation: Operation, number: int) -> Delivery:
        """Return the delivery of the message that an operation has reserved in call `number`.

        The record is kept until the client acknowledges the message or gives it back.
        """
        _flags, which, _message = operation.results[0].split(b" ", 2)
        field = _field(number, int(which))
        self._courier.add_record(field)
        delivery = Delivery(
            number, partial(self._acknowledged, field), lambda _: self._put_back(number, int(which))
        )
        delivery.add(operation)
        delivery.release()
        return delivery

    def _acknowledged(self, field: bytes) -> None:
        """Drop the record before the client is answered: an acknowledged message must not come back."""
        self._courier.record_done(field)
        self._courier.drop_records()

    def _put_back(self, number: int, which: int) -> None:
        """Put the message back, together with others that are given up at the same time.

        The one that was reserved first goes back last, so it is at the head again.
        """
        self._returning.append((number, which))
        if len(self._returning) == 1:
            self._after(GATHER_ITERATIONS, self.restore)

    def restore(self) -> None:
        """Send the put-backs that have gathered."""
        returning, self._returning = self._returning, []
        if returning:
            self._courier.recover([_field(*one) for one in sorted(returning, reverse=True)])


def _field(number: int, which: int) -> bytes:
    return b"o%d.%d" % (number, which)
