"""Put-backs: what was taken from one queue for clients that have gone goes back to its head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from pressure_server.errors import OutcomeUnknownError
from pressure_server.queues.calls.block import Block
from pressure_server.queues.calls.driver import Driver
from pressure_server.queues.deliveries.reservations import TURNS_TO_LEAVE
from pressure_server.queues.operations import batch
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.options import Custody
from pressure_server.queues.operations.restoring import restoring


class PutBacks:
    """Those of one lane."""

    __slots__ = ("_base", "_driver", "_name", "_returning", "_send_first")

    def __init__(
        self, driver: Driver, name: bytes, base: bytes, send_first: Callable[[list[Operation]], None]
    ) -> None:
        """`send_first` sends operations of the queue, in this order, before whatever else is to be sent."""
        self._driver = driver
        self._name = name
        self._base = base
        self._send_first = send_first
        # What is about to go back, with the number of the call that had taken it, and which it was there.
        self._returning: list[tuple[int, int, Operation]] = []

    @property
    def are_waiting(self) -> bool:
        """Whether something is about to go back; then nothing else is to be done before."""
        return bool(self._returning)

    def put_back(self, operation: Operation) -> None:
        """Nobody is there any longer for what the operation has taken.

        The messages go back a few turns of the loop later, together with those of other clients that have
        gone. Messages that were taken first go back last, so that they are at the head again.
        """
        if operation.custody is Custody.UNTIL_ACKNOWLEDGED:
            operation.put_back()
            return
        begins = not self._returning
        self._returning += [(number, operation.ended_as, back) for number, back in restoring(operation)]
        if begins and self._returning:
            self._driver.after(TURNS_TO_LEAVE, self.restore)

    def restore(self) -> None:
        """Send what has been put back since."""
        returning, self._returning = self._returning, []
        if returning:
            operations = [operation for _, _, operation in sorted(returning, key=itemgetter(0, 1))]
            self._send_first(operations[::-1])

    def failed(self, runs: Sequence[list[Operation]], error: Exception) -> None:
        """A block of such operations had an error. Nobody waits for it, and it must not get lost."""
        if not isinstance(error, OutcomeUnknownError):
            self._driver.when_back(partial(self._try_again, runs))

    def resolved(self, runs: Sequence[list[Operation]], done: bool) -> None:
        """It had no answer, and it is known by now whether it was done."""
        if done:
            self._end(runs)
        else:
            self._try_again(runs)

    def _try_again(self, runs: Sequence[list[Operation]]) -> None:
        """Beside whatever else is under way: the order has been lost with the connection."""

        def received(reply: Any, _delivery: Delivery | None) -> None:
            if isinstance(reply, Exception):
                self.failed(runs, reply)
            else:
                self._end(runs)

        self._driver.call(
            Block(
                [self._base],
                b"",
                batch.pack(runs),
                received,
                takes=False,
                resolved=partial(self.resolved, runs),
            )
        )

    def _end(self, runs: Sequence[list[Operation]]) -> None:
        for operation in (operation for run in runs for operation in run):
            operation.owner.completed(operation)
        self._driver.poke([self._name])
