"""A lane: the operations on one queue, the one call for it that is under way, and those that wait in line.

Group commit: what arrives while a call is in flight goes together in the next. What lacks something when it
has been tried stands in one of two lines, by the role it needs, and is tried again in that order when it may
go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pressure_server.broker import batch, kinds
from pressure_server.broker.alarm import Alarm
from pressure_server.broker.courier import Block
from pressure_server.broker.delivery import Delivery
from pressure_server.broker.lack import Lack
from pressure_server.broker.operation import Line, Operation
from pressure_server.broker.owners import OnSuccess
from pressure_server.broker.put_backs import PutBacks
from pressure_server.broker.queue_turns import QueueTurns
from pressure_server.broker.refusals import refusal
from pressure_server.broker.wait import Wait
from pressure_server.broker.waiting_line import WaitingLine
from pressure_server.errors import (
    BackendError,
    PressureError,
    QueueInUseError,
    StoppingError,
    TooManyWaitError,
)

if TYPE_CHECKING:
    from pressure_server.broker.lanes import Lanes


_NO_LINES: Mapping[Line, WaitingLine] = {}
# Seconds for which messages are left for clients of other servers, which may wait no longer.
_FOR_OTHERS = 0.01
# Seconds after which it is looked again whether a queue that a native client deletes is gone.
_LOOK_AGAIN_AFTER = 0.1


class Lane:
    """Sends a queue's operations in the order in which they came, one call at a time."""

    __slots__ = (
        "_ended", "_has_left_some", "_lanes", "_poked", "_put_backs", "_runs", "_shares", "_turns",
        "alarm", "base", "idle", "is_in_flight", "lines", "name", "waiting",
    )  # fmt: skip

    def __init__(self, lanes: Lanes, name: bytes, base: bytes) -> None:
        self._lanes = lanes
        self.name = name
        self.base = base
        self._runs: list[list[Operation]] = []
        self.waiting: list[Operation] = []
        # Made when somebody waits for the first time.
        self.lines: Mapping[Line, WaitingLine] = _NO_LINES
        self.idle = True  # nothing is to be sent and nothing is in flight
        self.is_in_flight = False
        self._poked = False  # those in line may go on
        self._ended = 0
        self.alarm: Alarm | None = None
        self._turns: QueueTurns | None = None
        self._put_backs: PutBacks | None = None  # made when something goes back
        # Whether clients of other servers get their share, and whether messages were left for them lately.
        self._shares = True
        self._has_left_some = False

    def block(self) -> Block | None:
        """Make the queue's part of the next call. None if there is nothing to send now.

        The lane is dropped if nothing is to be sent, and nothing waits.
        """
        if self.is_in_flight or self.is_held:
            return None  # its reply, or what goes back, comes here
        operations = self._next()
        if not operations:
            self._go_on()
            return None
        self._runs = batch.runs_of(operations)
        keys, changes, serves = [self.base], False, False
        for run in self._runs:
            kind = run[0].kind
            changes = changes or kind.changes
            serves = serves or bool(kind.serves)
            if kind.moves:
                keys += [operation.messages[0] for operation in run]  # the other queue
        if self.alarm is not None and serves:
            self.alarm.disturbed = True
        self.is_in_flight = True
        how = batch.sharing_of(operations, shares=self._shares) if self._lanes.neighbours else b""
        self._shares = True
        restores = operations[0].kind.restores
        resolved = partial(self.put_backs.resolved, self._runs) if restores else None
        return Block(keys, how, batch.pack(self._runs), self._received, changes, resolved)

    @property
    def put_backs(self) -> PutBacks:
        """What goes back to the queue."""
        if self._put_backs is None:
            self._put_backs = PutBacks(self._lanes, self)
        return self._put_backs

    @property
    def is_held(self) -> bool:
        """Whether something is about to go back to the queue; then nothing else is to be done before."""
        return self._put_backs is not None and self._put_backs.are_waiting

    def _go_on(self) -> None:
        """Have the courier ask for the next block; or be idle if there is none."""
        if self.waiting or self._poked:
            self._lanes.ready(self, goes_first=bool(self.waiting) and self.waiting[0].kind.restores)
            return
        self.idle = True
        if self._turns is not None:
            self._turns.end()
        self.drop_if_done()

    def send_first(self, operations: list[Operation]) -> None:
        """Send these, in this order, before whatever else is to be sent."""
        self.waiting[:0] = operations
        self.idle = False
        if not self.is_in_flight:
            self._lanes.ready(self, goes_first=True)

    def _next(self) -> list[Operation]:
        """What goes in the next call: first those in line who may go on, then what has come since."""
        taken = batch.take(self.waiting)
        if taken and taken[0].kind.restores:
            # Those in line are tried behind it: it is to be all of its call.
            self._poked = True
            return taken
        fresh = [
            o for o in taken if not (o.cancelled and self._dropped(o)) and (o.wait is None or self._admits(o))
        ]
        if not any(self.lines.values()):
            self._poked = False
            return fresh
        poked, self._poked = self._poked, False
        served: dict[Line, int] = {}
        for operation in fresh:
            for line in operation.kind.serves:
                served[line] = served.get(line, 0) + operation.wanted
        operations: list[Operation] = []
        for line, in_line in self.lines.items():
            if in_line and (poked or line in served):
                operations += in_line.take_first(served.get(line, 0), self.poke)
        if self.lines[Line.PRODUCERS]:
            # Nobody puts before those who wait for room.
            first = next(iter(self.lines[Line.PRODUCERS]))
            for operation in [o for o in fresh if o.kind.puts and _waits_for_room(o)]:
                if operation.wait is not None and operation.wait.in_line:
                    continue
                fresh.remove(operation)
                self._stand_in_line(operation, Lack.ROOM, first.wait)
        # Those in line act in the turn that has been waited for; first who was in the middle of it.
        ahead = [o for o in fresh if o.kind is kinds.TURN or (o.wait is not None and o.wait.in_line)]
        return ahead + operations + [operation for operation in fresh if operation not in ahead]

    def _dropped(self, operation: Operation) -> bool:
        """Whether it does not happen, as nobody wants it. What it has taken in calls before goes back."""
        if operation.kind.takes:
            operation.put_back()
        return operation.kind.takes

    def _admits(self, operation: Operation) -> bool:
        wait = operation.wait
        if wait is None or wait.ticket is None or wait.ticket.admits(operation, self.poke):
            return True
        if not wait.ticket.served:
            self._stand_in_line(operation, Lack.MESSAGE, None)
        return False

    def _received(self, reply: Any, delivery: Delivery | None) -> None:
        self.is_in_flight = False
        runs, self._runs = self._runs, []
        if isinstance(reply, Exception) and runs[0][0].kind.restores:
            outcome = batch.Outcome()
            self.put_backs.failed(runs, reply)
        elif isinstance(reply, Exception):
            name = self.name
            error = reply if isinstance(reply, BackendError) else refusal(name, str(reply))
            outcome = batch.refused(runs, str(reply))
            for operation in outcome.ended:
                operation.fail(error)
        else:
            outcome = batch.share(runs, reply)
            self._lanes.known.learn(self.name, reply[0] if type(reply[0]) is int else reply[0][0])
            if delivery is not None:
                self._expect(runs, delivery)
        if outcome.again:
            self.waiting[:0] = outcome.again
            for operation in outcome.again:
                if operation.has_taken:
                    operation.owner.has_some(operation)
        if outcome.lacking or self.lines:
            self._line_up(outcome)
        if self._lanes.is_durable and _must_be_safe(runs, outcome):
            self._lanes.when_safe(partial(self._end_if_safe, outcome.ended))
        else:
            for operation in outcome.ended:
                self._end(operation)
        if self.lines and any(self.lines.values()):
            if self.alarm is None:
                self.alarm = Alarm(self, self._lanes.changes)
            if outcome.left_for_others:
                self.alarm.forget_attempts()
                if not self._has_left_some:
                    self._has_left_some = True
                    self._lanes.later(_FOR_OTHERS, self._take_what_is_left)
            self.alarm.set()
            if self._turns is not None:
                self._turns.ask(outcome)
        if self._turns is not None:
            self._turns.end(outcome.ended)
        self._go_on()

    def _expect(self, runs: list[list[Operation]], delivery: Delivery) -> None:
        """A call has brought what these have taken, which is on its way from now on."""
        for run in runs:
            kind = run[0].kind
            if not kind.takes or kind.moves:
                continue
            for operation in run:
                if operation.results and kind.opens:
                    operation.came_with(self._lanes.opened.keep(operation, delivery.number))
                elif operation.results:
                    delivery.expect(operation)
                    operation.came_with(delivery)

    def _take_what_is_left(self) -> None:
        """The others have had their time to take what was left for them."""
        self._has_left_some = False
        self._shares = False
        self.poke()

    def _line_up(self, outcome: batch.Outcome) -> None:
        """Who lacks something keeps its place, or gets the last; who must not wait has ended."""
        self._open_lines()
        again: dict[Line, list[Operation]] = {line: [] for line in Line}
        new: dict[Line, list[Operation]] = {line: [] for line in Line}
        for operation in outcome.lacking:
            wait, line = operation.wait, operation.kind.line
            if wait is None or line is None:
                raise ValueError(f"{operation.kind.name.decode()} cannot wait")
            was_in_line = wait.in_line
            if self._may_wait(operation, wait):
                (again if was_in_line else new)[line].append(operation)
                if wait.ticket is not None:
                    wait.ticket.release()
                if wait.lack is Lack.ABSENCE:
                    # The last keys of a queue that is being deleted are not watched.
                    self._lanes.later(_LOOK_AGAIN_AFTER, self.poke)
            else:
                _give_up(operation, wait)
                outcome.ended.append(operation)
        for line in Line:
            went_on = sum(
                o.kind.line is line and o.wait is not None and o.wait.in_line for o in outcome.ended
            )
            if self.lines[line].take_back(again[line], new[line], went_on):
                self._poked = True

    def _open_lines(self) -> QueueTurns:
        if self._turns is None:
            self.lines = {line: WaitingLine(self.name) for line in Line}
            self._turns = QueueTurns(self.name, self.lines, self._lanes.role_turns)
        return self._turns

    def _may_wait(self, operation: Operation, wait: Wait) -> bool:
        """Whether it may; if so, it is in line from now on, and its time is measured."""
        if operation.cancelled or wait.expired:
            return False
        if self._lanes.is_stopping:
            wait.reason = StoppingError()
            return False
        if not self._lanes.measure(self, operation, wait):
            return False
        if not wait.in_line:
            if not self._lanes.waiters.enter(wait):
                wait.reason, wait.out_of_time = TooManyWaitError(self._lanes.waiters.most), False
                return False
            wait.in_line = True
            operation.owner.waits(operation)
        return True

    def _stand_in_line(self, operation: Operation, lack: Lack, like: Wait | None) -> None:
        """Put it into its line without trying it: who came before it lacks the same."""
        wait, line = operation.wait or Wait(), operation.kind.line
        operation.wait = wait
        wait.lack, wait.reason = (like.lack, like.reason) if like is not None else (lack, None)
        if line is None:
            raise ValueError(f"{operation.kind.name.decode()} cannot wait")
        if self._may_wait(operation, wait):
            if like is not None:
                operation.stay()
            self._open_lines()
            self.lines[line].add(operation)
        else:
            _give_up(operation, wait)
            self._end(operation)

    def _end_if_safe(self, operations: list[Operation], error: BackendError | None) -> None:
        for operation in operations:
            if error is not None:
                if operation.has_taken:
                    operation.put_back()
                operation.results = []
                operation.fail(error)
            self._end(operation)

    def _end(self, operation: Operation) -> None:
        wait = operation.wait
        if wait is not None:
            self._lanes.waiters.leave(wait)
            if wait.timer is not None:
                wait.timer.cancel()
                wait.timer = None
            if wait.ticket is not None:
                wait.ticket.served = wait.ticket.served or bool(operation.results)
                wait.ticket.release()
        if isinstance(operation.error, QueueInUseError):
            self._finish_delete(operation)
        self._ended += 1
        operation.ended_as = self._ended
        operation.owner.completed(operation)

    def expire(self, operation: Operation) -> None:
        """Its time is up. One that is under way is heard first."""
        wait, line = operation.wait, operation.kind.line
        if wait is None or line is None:
            return
        wait.expired = True
        wait.timer = None
        if self.lines and self.lines[line].remove(operation):
            _give_up(operation, wait)
            self._end(operation)
            self._after_leaving()

    def forget(self, operation: Operation) -> None:
        """Its client has gone."""
        operation.cancelled = True
        if operation.wait is not None:
            self._lanes.waiters.leave(operation.wait)
        line = operation.kind.line
        if line is not None and self.lines and self.lines[line].remove(operation):
            wait = operation.wait
            if wait is not None and wait.timer is not None:
                wait.timer.cancel()
                wait.timer = None
            self._finish_delete(operation)
            self._after_leaving()

    def _finish_delete(self, given_up: Operation) -> None:
        """What a Delete leaves to be done is done when the roles are free, whoever waits for that.

        Unless the server is not to wait for roles at all.
        """
        if given_up.kind is kinds.FINISH_DELETE and self._lanes.policy.role_timeout:
            rest = Operation(given_up.kind, self.name, [], 1, OnSuccess(), wait=Wait(None, endless=True))
            self._lanes.submit(rest)

    def _after_leaving(self) -> None:
        if not self.is_in_flight and self._turns is not None:
            self._turns.end()
        self.drop_if_done()

    def drop_if_done(self) -> None:
        """It is not needed any longer where nothing is to be done, and nobody waits."""
        if self.idle and not self.waiting and not any(self.lines.values()) and not self.is_held:
            self._lanes.drop(self)

    def end_waits(self, error: PressureError) -> None:
        """Everybody in line gets the error."""
        for line in self.lines.values():
            gone = line.clear()
            for operation in gone:
                operation.fail(error)
            for operation in gone:
                self._end(operation)
        self._after_leaving()

    def poke(self) -> None:
        """Those in line may go on: try them."""
        if not any(self.lines.values()) and not self.is_in_flight:
            return
        self._poked = True
        if self.idle:
            self.idle = False
            self._lanes.ready(self)

    def take_turn(self, role: Lack) -> None:
        """A role's token is parked for us, until somebody has gone on who wanted it, or nobody does."""
        turns = self._open_lines()
        turns.begin(role)
        self.poke()
        if not self.is_in_flight:
            turns.end()

    def lacks(self) -> dict[bytes, set[Lack]]:
        """What those in line lack, by queue."""
        lacks: dict[bytes, set[Lack]] = {}
        for line in self.lines.values():
            for name, lack in line.lacks:
                lacks.setdefault(name, set()).add(lack)
        return lacks

    @property
    def existed(self) -> bool:
        """Whether the queue did when those in line were tried."""
        return not any(line.waits_for_existence for line in self.lines.values())


def _must_be_safe(runs: list[list[Operation]], outcome: batch.Outcome) -> bool:
    """Whether something has been done that clients are to be told only when it is durable."""
    changes = any(run[0].kind.changes for run in runs)
    return changes and any(operation.results for operation in outcome.ended)


def _waits_for_room(operation: Operation) -> bool:
    wait = operation.wait
    return operation.kind not in kinds.NEVER_WAIT_FOR_ROOM and (wait is None or wait.timeout != 0)


def _give_up(operation: Operation, wait: Wait) -> None:
    """End it with the reason for which it has waited; with no message if none has come in time.

    A move that has found a message, and no room for it, fails as a put does.
    """
    if wait.reason is None or (operation.kind.takes and wait.out_of_time and wait.lack is not Lack.ROOM):
        return
    operation.fail(wait.reason)
