"""Put-backs: if a client has gone, return the messages taken for it to the head of their queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pressure_server.errors import OutcomeUnknownError
from pressure_server.queues.calls.call import Block
from pressure_server.queues.lanes.reservations import GATHER_ITERATIONS
from pressure_server.queues.operations import batch, verbs
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.owners import WithoutClient
from pressure_server.text import counted, printable

if TYPE_CHECKING:
    from pressure_server.queues.lanes.lane import Lane
    from pressure_server.queues.shard import Shard

logger = logging.getLogger(__name__)


class PutBacks:
    """The put-backs of one lane."""

    __slots__ = ("_lane", "_shard", "_waits_for_reply", "pending")

    def __init__(self, lane: Lane, shard: Shard) -> None:
        self._lane = lane
        self._shard = shard
        # Whether put-backs have gathered, and wait for more that the block in flight may bring.
        self._waits_for_reply = False
        # Until these are sent, the lane sends nothing else. Each has the number of the call that took the
        # messages, its operation's place in the order in which operations ended, and the put-back.
        self.pending: list[tuple[int, int, Operation]] = []

    def put_back(self, operation: Operation) -> None:
        """Put back the messages that an operation has taken, some iterations of the event loop later.

        Those of others who have gone go with them. What was taken first goes last, to be the head again.
        """
        if operation.verb.reserves:
            operation.put_back()
            return
        begins = not self.pending
        self.pending += [
            (number, operation.end_order, back) for number, back in put_back_operations(operation)
        ]
        if begins and self.pending:
            self._shard.after_iterations(GATHER_ITERATIONS, self._have_gathered)

    def _have_gathered(self) -> None:
        if self._lane.is_in_flight:
            self._waits_for_reply = True
        else:
            self.restore()

    def reply_came(self) -> None:
        """Note that the block in flight has been answered: clients that have gone may get messages of it."""
        if self._waits_for_reply:
            self._waits_for_reply = False
            self._shard.after_iterations(GATHER_ITERATIONS, self._have_gathered)

    def restore(self) -> None:
        """Send the put-backs that have gathered."""
        returning, self.pending = self.pending, []
        if returning:
            operations = [operation for _, _, operation in sorted(returning, key=itemgetter(0, 1))]
            self._lane.send_first(operations[::-1])

    def failed(self, runs: Sequence[list[Operation]], error: Exception) -> None:
        """Send a block again when the backend is back, unless it may have been done: see `resolved`."""
        if not isinstance(error, OutcomeUnknownError):
            self._shard.when_back(partial(self._try_again, runs))

    def resolved(self, runs: Sequence[list[Operation]], done: bool) -> None:
        """End a block of put-backs that got no reply if it was `done`; otherwise send it again."""
        if done:
            self._end(runs)
        else:
            self._try_again(runs)

    def _try_again(self, runs: Sequence[list[Operation]]) -> None:
        """Send the block outside the lane: its place in the order was lost with the connection."""

        def received(reply: Any, _delivery: Delivery | None) -> None:
            if isinstance(reply, Exception):
                self.failed(runs, reply)
            else:
                self._end(runs)

        words, resolved = batch.pack(runs), partial(self.resolved, runs)
        block = Block([self._lane.base], b"", words, received, takes=False, resolved=resolved)
        self._shard.courier.ready(block)

    def _end(self, runs: Sequence[list[Operation]]) -> None:
        for operation in (operation for run in runs for operation in run):
            operation.owner.completed(operation)
        self._shard.wake_up([self._lane.name])


def put_back_operations(taken: Operation) -> Iterator[tuple[int, Operation]]:
    """Yield an operation for each call that has brought some of what `taken` has, with its number."""
    for delivery, words in taken.taken_by_delivery():
        delivery.undelivered[taken] = words
        number, owner = delivery.number, WithoutClient(partial(_put_back, delivery, taken, len(words)))
        yield number, Operation(verbs.PUT_BACK, taken.name, [b"%d" % number, *words], 1, owner)
    taken.deliveries = None


def _put_back(delivery: Delivery, taken: Operation, count: int, ended: Operation) -> None:
    """Note that the messages are back; if the put-back failed, they go back after a restart."""
    if ended.error is None:
        delivery.complete_part(taken)
        return
    logger.error(
        "could not put back %s that a disconnected client had taken from queue '%s': %s; "
        "any that are missing go back after this server restarts",
        counted(count, "message"),
        printable(ended.name),
        ended.error,
        extra={"queue": printable(ended.name), "error": ended.error.code},
    )
