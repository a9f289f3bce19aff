"""A delivery: what one call has taken, on its way to clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pressure_server.broker.operation import Operation


class Delivery:
    """The backend keeps the record of the call of that `number` until all of it has arrived.

    Who makes it holds it, too, and says `has_arrived` when it is known which operations have some of it.
    """

    __slots__ = ("_arrived", "_expected", "number", "put_back")

    def __init__(
        self, number: int, arrived: Callable[[], None], put_back: Callable[[Operation], None]
    ) -> None:
        """`arrived` is called when all of it has been handed over; `put_back` takes back what cannot be."""
        self.number = number
        self._arrived = arrived
        self.put_back = put_back
        self._expected = 1

    def expect(self, operations: int) -> None:
        """So many more have some of it."""
        self._expected += operations

    def has_arrived(self) -> None:
        """One has handed it over."""
        self._expected -= 1
        if not self._expected:
            self._arrived()
