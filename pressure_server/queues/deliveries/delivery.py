"""A delivery: what one call has taken, on its way to clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pressure_server.queues.operations.operation import Operation


class Delivery:
    """The backend keeps the record of the call of that `number` until all of it has arrived.

    `undelivered` are the operations that have some of it, in the order in which they got it, with what is on
    its way back of it, as recovery.lua knows messages. Whoever makes a delivery holds it, too, and releases
    it when it is known which operations these are.
    """

    __slots__ = ("_arrived", "_holds", "number", "put_back", "undelivered")

    def __init__(
        self, number: int, arrived: Callable[[], None], put_back: Callable[[Operation], None]
    ) -> None:
        """`arrived` is called when all of it has been handed over; `put_back` takes back what cannot be."""
        self.number = number
        self._arrived = arrived
        self.put_back = put_back
        self.undelivered: dict[Operation, list[bytes] | None] = {}
        self._holds = 1

    @property
    def is_held(self) -> bool:
        """Whether it is not known yet which operations have some of it."""
        return self._holds > 0

    @property
    def is_complete(self) -> bool:
        """Whether all of it has arrived."""
        return not self.undelivered and not self._holds

    def expect(self, operation: Operation) -> None:
        """The operation has some of it."""
        self.undelivered[operation] = None

    def returns(self, operation: Operation, words: list[bytes]) -> None:
        """The operation gives this up; it `has_arrived` when it is back."""
        self.undelivered[operation] = words

    def has_arrived(self, operation: Operation) -> None:
        """The operation has handed it over."""
        del self.undelivered[operation]
        if not (self.undelivered or self._holds):
            self._arrived()

    def hold(self) -> None:
        """More operations may come to have some of it, until it is released."""
        self._holds += 1

    def release(self) -> None:
        """End one hold."""
        self._holds -= 1
        if self.is_complete:
            self._arrived()
