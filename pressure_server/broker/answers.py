"""Answers: what the backend keeps of the calls that change a queue, until it has arrived, or gone back.

The messages in them are with us, on their way to clients; should we die, another server puts them back.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pressure_server.broker import batch, kinds
from pressure_server.broker.opened import TURNS_TO_LEAVE
from pressure_server.broker.operation import Operation
from pressure_server.broker.owners import OnEnd
from pressure_server.broker.restoring import restoring
from pressure_server.broker.slots import Delivery, Kept, Slots
from pressure_server.errors import BackendError, OutcomeUnknownError

if TYPE_CHECKING:
    from pressure_server.broker.lane import Lane
    from pressure_server.broker.lanes import Lanes


class Answers:
    """Those of one lane, which stays as long as there are any."""

    __slots__ = ("_is_to_acknowledge", "_lane", "_lanes", "_returning", "_slots")

    def __init__(self, lanes: Lanes, lane: Lane) -> None:
        self._lanes = lanes
        self._lane = lane
        self._slots = Slots(self.acknowledge_soon)
        self._is_to_acknowledge = False
        # What is about to go back, with the number of the call that had taken it, and which it was there.
        self._returning: list[tuple[int, int, Operation]] = []

    @property
    def are_clean(self) -> bool:
        """Whether nothing is kept, and nothing is to go back."""
        return self._slots.are_clean and not self._returning

    @property
    def go_back(self) -> bool:
        """Whether something is about to; then nothing else is to be done before."""
        return bool(self._returning)

    def keep(self) -> Kept:
        """Where the answer to a call is kept; until it is `done` with, `unused`, or `recover`ed."""
        return Kept(self._slots.take(), self._lanes.next_number())

    def done(self, kept: Kept) -> None:
        """The answer has arrived, or there is none."""
        self._slots.done(kept.slot)

    def unused(self, kept: Kept) -> None:
        """There is no answer, and nothing has been done."""
        self._slots.unused(kept.slot)
        self._lane.drop_if_done()

    def came(self, runs: list[list[Operation]], kept: Kept) -> None:
        """The answer is here: what it has brought is on its way."""
        if all(run[0].kind.takes and not any(operation.results for operation in run) for run in runs):
            # Nothing was there, so nothing was done; and then nothing is kept (calls.lua).
            self._slots.cleaned([kept.slot])
            return
        for operation in (o for run in runs if run[0].kind.opens for o in run if o.results):
            operation.came_with(self._lanes.opened.keep(operation, kept.number))
        taking = [run for run in runs if run[0].kind.takes and not (run[0].kind.moves or run[0].kind.opens)]
        if not taking:
            self._slots.done(kept.slot)
            return
        delivery = Delivery(kept, partial(self._slots.done, kept.slot), self.put_back)
        operations = [operation for run in taking for operation in run if operation.results]
        delivery.expect(len(operations))
        for operation in operations:
            operation.came_with(delivery)
        delivery.has_arrived()

    def failed(self, kept: Kept, error: Exception) -> None:
        """There was an error instead."""
        if isinstance(error, OutcomeUnknownError):
            self._lanes.when_back(partial(self.recover, kept))
        elif isinstance(error, BackendError):
            self._slots.unused(kept.slot)
        else:
            self._slots.done(kept.slot)

    def put_back(self, operation: Operation) -> None:
        """Nobody is there any longer for what the operation has taken.

        It goes a little later, with what others give up who have gone, too: of them all what was taken
        first goes back last, to be the first again.
        """
        if operation.kind.opens:
            operation.put_back()
            return
        begins = not self._returning
        self._returning += [(number, operation.ended_as, back) for number, back in restoring(operation)]
        if begins and self._returning:
            self._lanes.after(TURNS_TO_LEAVE, self.restore)

    def restore(self) -> None:
        """Send what has been put back since."""
        returning, self._returning = self._returning, []
        if returning:
            operations = [operation for _, _, operation in sorted(returning, key=itemgetter(0, 1))]
            self._lane.send_first(operations[::-1])

    def restore_again(self, runs: list[list[Operation]], kept: Kept) -> None:
        """Such a call had no answer, or was refused. Nobody waits for it, and it must not get lost."""
        self._lanes.when_back(partial(self._restore_again, runs, kept))

    def _restore_again(self, runs: list[list[Operation]], kept: Kept) -> None:
        """Beside whatever else is under way: the order has been lost with the connection."""

        def received(reply: Any) -> None:
            if isinstance(reply, Exception):
                self.restore_again(runs, kept)
                return
            self._slots.done(kept.slot)
            for operation in (operation for run in runs for operation in run):
                operation.owner.completed(operation)
            self._lane.poke()

        self._lanes.call([self._lane.base], batch.pack(runs), kept, received, batch.AGAIN)

    def recover(self, kept: Kept, *, is_late: bool = False) -> None:
        """Nobody waits any longer for what that call may have taken. `is_late`: or be about to take."""

        def ended(operation: Operation) -> None:
            if isinstance(operation.error, BackendError):
                self._lanes.when_back(partial(self.recover, kept))
            elif self._lanes.settles_in and not is_late:
                # Not to be used before: an answer that comes yet would be lost with the next.
                self._lanes.later(self._lanes.settles_in, partial(self.recover, kept, is_late=True))
            else:
                self._slots.cleaned([kept.slot])

        arguments = [self._lanes.identity, kept.slot, b"%d" % kept.number]
        self._submit(Operation(kinds.RECOVER, self._lane.name, arguments, 1, OnEnd(ended)))

    def acknowledge_soon(self) -> None:
        """When the queue is idle for a moment; else the next call does it."""
        if not self._is_to_acknowledge and self._lane.idle and self._slots.are_done:
            self._is_to_acknowledge = True
            self._lanes.acknowledgements.add(self)

    def acknowledge(self) -> None:
        """Tell the backend what has arrived, unless the queue is in use again."""
        self._is_to_acknowledge = False
        slots = self._slots.take_done() if self._lane.idle else []

        def received(reply: Any) -> None:
            if isinstance(reply, Exception):
                self._slots.not_cleaned(slots)
                self._lanes.when_back(self.acknowledge_soon)
            else:
                self._slots.cleaned(slots)
                self.acknowledge_soon()
                self._lane.drop_if_done()

        if slots:
            self._lanes.call_acknowledging(self._lane.base, slots, received)

    def _submit(self, operation: Operation) -> None:
        self._lanes.submit(operation)
