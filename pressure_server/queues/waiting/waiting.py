"""What waits on one queue: operations that lack something when they have been tried.

Pure. They stand in two lines, by the role that they need, and are tried again in their order when they may go
on: when a call of ours serves them, when the watch tells of a change, or when it is our turn in a role.
"""

from __future__ import annotations

from typing import Protocol

from pressure_server.errors import PressureError, StoppingError, TooManyWaitError
from pressure_server.queues.calls.driver import Driver
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.batch import Outcome
from pressure_server.queues.operations.operation import Line, Operation
from pressure_server.queues.operations.options import Room
from pressure_server.queues.operations.owners import OnSuccess
from pressure_server.queues.operations.wait import AS_CONFIGURED, Wait
from pressure_server.queues.operations.wait_condition import WaitCondition
from pressure_server.queues.waiting.queue_turns import QueueTurns
from pressure_server.queues.waiting.waiting_line import WaitingLine
from pressure_server.queues.waiting.wake_up import WakeUp

# Seconds for which messages are left for clients of other servers, which may wait no longer.
_FOR_OTHERS = 0.01
# Seconds after which a queue that a native client deletes is tried again.
_LOOK_AGAIN_AFTER = 0.1
_MAY_WAIT_FOR_ROOM = (Room.CONFIGURED, Room.WAIT)


class Host(Protocol):
    """The lane whose operations wait."""

    name: bytes
    is_in_flight: bool

    def poke(self) -> None:
        """Try those that wait."""

    def end(self, operation: Operation) -> None:
        """End an operation."""

    def drop_if_done(self) -> None:
        """Be forgotten if nothing is to be done, and nothing waits."""


class Waiting:
    """What waits in one lane. It is made when something waits for the first time."""

    __slots__ = ("_alarm", "_driver", "_has_left_some", "_host", "_lines", "_turns", "shares")

    def __init__(self, host: Host, driver: Driver) -> None:
        self._host = host
        self._driver = driver
        self._lines = {line: WaitingLine(host.name) for line in Line}
        self._turns = QueueTurns(host.name, self._lines, driver.role_turns)
        self._alarm: WakeUp | None = None
        # Whether clients of other servers get their share, and whether messages have been left for them.
        self.shares = True
        self._has_left_some = False

    def __len__(self) -> int:
        """How many operations wait."""
        return sum(map(len, self._lines.values()))

    def count(self, line: Line) -> int:
        """Return how many wait in that line."""
        return len(self._lines[line])

    @property
    def lacks(self) -> dict[bytes, set[WaitCondition]]:
        """What they lack, by queue."""
        lacks: dict[bytes, set[WaitCondition]] = {}
        for line in self._lines.values():
            for name, lack in line.lacks:
                lacks.setdefault(name, set()).add(lack)
        return lacks

    @property
    def existed(self) -> bool:
        """Whether the queue did when they were tried."""
        return not any(line.waits_for_existence for line in self._lines.values())

    def join(self, fresh: list[Operation], *, poked: bool) -> list[Operation]:
        """Return what goes in the next call: those that may go on, and what has come since."""
        served: dict[Line, int] = {}
        for operation in fresh:
            for line in operation.verb.serves:
                some = len(self._lines[line]) if operation.verb.serves_all else operation.wanted
                served[line] = served.get(line, 0) + some
        operations: list[Operation] = []
        for line, in_line in self._lines.items():
            if in_line and (poked or line in served):
                operations += in_line.take_first(served.get(line, 0), self._host.poke)
        if self._lines[Line.PRODUCERS]:
            # Nobody puts before those that wait for room.
            first = next(iter(self._lines[Line.PRODUCERS]))
            for operation in [o for o in fresh if o.verb.puts and _waits_for_room(o)]:
                if operation.wait is not None and operation.wait.in_line:
                    continue
                fresh.remove(operation)
                self.stand(operation, WaitCondition.ROOM, first.wait)
        # Operations already in progress go first once the role is ours.
        ahead = [o for o in fresh if o.verb is verbs.TURN or (o.wait is not None and o.wait.in_line)]
        return ahead + operations + [operation for operation in fresh if operation not in ahead]

    def sent(self) -> None:
        """Note that a call goes that serves those that wait: the watch will tell of it."""
        if self._alarm is not None:
            self._alarm.disturbed = True

    def line_up(self, outcome: Outcome) -> bool:
        """Requeue operations that could not finish; end those that may not wait, by adding them to `ended`.

        Returns whether more are to be tried at once.
        """
        again: dict[Line, list[Operation]] = {line: [] for line in Line}
        new: dict[Line, list[Operation]] = {line: [] for line in Line}
        for operation in outcome.lacking:
            wait, line = _place_of(operation)
            was_in_line = wait.in_line
            if self._may_wait(operation, wait):
                (again if was_in_line else new)[line].append(operation)
                if wait.ticket is not None:
                    wait.ticket.release()
                if wait.lack is WaitCondition.ABSENCE:
                    # The last keys of a queue that is being deleted are not watched.
                    self._driver.later(_LOOK_AGAIN_AFTER, self._host.poke)
            else:
                _give_up(operation, wait)
                outcome.ended.append(operation)
        are_more = False
        for line in Line:
            went_on = sum(
                o.verb.line is line and o.wait is not None and o.wait.in_line for o in outcome.ended
            )
            are_more = self._lines[line].take_back(again[line], new[line], went_on) or are_more
        return are_more

    def listen(self, outcome: Outcome) -> None:
        """Watch for what those lack that wait after a call, and ask for roles that native clients hold."""
        if self:
            if self._alarm is None:
                self._alarm = WakeUp(self._host, self, self._driver.changes)
            if outcome.left_for_others:
                self._alarm.forget_attempts()
                if not self._has_left_some:
                    self._has_left_some = True
                    self._driver.later(_FOR_OTHERS, self._take_what_is_left)
            self._alarm.set()
            self._turns.ask(outcome)
        self._turns.end(outcome.ended)

    def _take_what_is_left(self) -> None:
        """The others have had their time to take what was left for them."""
        self._has_left_some = False
        self.shares = False
        self._host.poke()

    def _may_wait(self, operation: Operation, wait: Wait) -> bool:
        """Return whether it may; if so, it is in line from now on, and its time is measured."""
        if operation.cancelled or wait.expired:
            return False
        if self._driver.is_stopping:
            wait.reason = StoppingError()
            return False
        if not self._measure(operation, wait):
            return False
        if not wait.in_line:
            waiters = self._driver.waiters
            if not waiters.enter(wait):
                wait.reason, wait.out_of_time = TooManyWaitError(waiters.most), False
                return False
            wait.in_line = True
            operation.owner.waits(operation)
        return True

    def _measure(self, operation: Operation, wait: Wait) -> bool:
        """Let the operation expire when it has waited long enough; False if it has."""
        now, policy, timeout = self._driver.time(), self._driver.policy, wait.timeout
        if timeout == AS_CONFIGURED:
            timeout = policy.put_timeout if operation.verb.puts or operation.verb.moves else None
        deadline = wait.deadline(now, timeout, policy.role_timeout)
        if deadline is not None and deadline <= now:
            wait.out_of_time = wait.in_line and deadline == wait.until
            return False
        if wait.timer is not None:
            if wait.timer.when() == deadline:
                return True
            wait.timer.cancel()
            wait.timer = None
        if deadline is not None:
            wait.out_of_time = deadline == wait.until
            wait.timer = self._driver.at(deadline, self._expire, operation)
        return True

    def stand(self, operation: Operation, lack: WaitCondition, like: Wait | None) -> None:
        """Let it wait without trying it. Those before it lack the same: `like` is how they wait."""
        wait = operation.wait = operation.wait or Wait()
        wait.lack, wait.reason = (like.lack, like.reason) if like is not None else (lack, None)
        _, line = _place_of(operation)
        if self._may_wait(operation, wait):
            if like is not None:
                operation.stay()
            self._lines[line].add(operation)
        else:
            _give_up(operation, wait)
            self._host.end(operation)

    def admits(self, operation: Operation) -> bool:
        """Return whether an operation may be tried; if another of its ticket is, it waits for that."""
        wait = operation.wait
        if wait is None or wait.ticket is None or wait.ticket.admits(operation, self._host.poke):
            return True
        if not wait.ticket.served:
            self.stand(operation, WaitCondition.MESSAGE, None)
        return False

    def _expire(self, operation: Operation) -> None:
        """Its time is up. One that is under way is heard first."""
        wait, line = _place_of(operation)
        wait.expired = True
        wait.timer = None
        if self._lines[line].remove(operation):
            _give_up(operation, wait)
            self._host.end(operation)
            self._after_leaving()

    def leave(self, operation: Operation) -> None:
        """Its client has gone."""
        line = operation.verb.line
        if line is not None and self._lines[line].remove(operation):
            wait, _ = _place_of(operation)
            if wait.timer is not None:
                wait.timer.cancel()
                wait.timer = None
            self.finish_delete(operation)
            self._after_leaving()

    def finish_delete(self, given_up: Operation) -> None:
        """Have the rest of a Delete done when the roles are free, if that has been given up.

        Unless the server is not to wait for roles at all.
        """
        if given_up.verb is verbs.FINISH_DELETE and self._driver.policy.role_timeout:
            wait = Wait(None, endless=True)
            self._driver.submit(Operation(given_up.verb, self._host.name, [], 1, OnSuccess(), wait=wait))

    def _after_leaving(self) -> None:
        if not self._host.is_in_flight:
            self._turns.end()
        self._host.drop_if_done()

    def end_all(self, error: PressureError) -> None:
        """End all that wait with the error."""
        for line in self._lines.values():
            gone = line.clear()
            for operation in gone:
                operation.fail(error)
            for operation in gone:
                self._host.end(operation)
        self._after_leaving()

    def take_turn(self, role: WaitCondition) -> None:
        """A role's token is parked for us, until an operation has gone on that wanted it, or none does."""
        self._turns.begin(role)
        self._host.poke()
        if not self._host.is_in_flight:
            self._turns.end()

    def rest(self) -> None:
        """The lane is idle: end our turns."""
        self._turns.end()

    def changed(self, *, existence: bool) -> None:
        """The queue has changed, or with `existence` has been made, deleted, or asked after (life.lua)."""
        if self._alarm is not None:
            if existence:
                self._alarm.disturbed = False
            self._alarm.changed(self._host.name)

    def watch_lost(self) -> None:
        """What was watched is no longer."""
        if self._alarm is not None:
            self._alarm.lost()

    def stop(self) -> None:
        """Stop watching: the lane goes."""
        if self._alarm is not None:
            self._alarm.stop()
            self._alarm = None


def _place_of(operation: Operation) -> tuple[Wait, Line]:
    if operation.wait is None or operation.verb.line is None:
        raise ValueError(f"{operation.verb!r} cannot wait")
    return operation.wait, operation.verb.line


def _waits_for_room(operation: Operation) -> bool:
    wait = operation.wait
    return operation.options.room in _MAY_WAIT_FOR_ROOM and (wait is None or wait.timeout != 0)


def _give_up(operation: Operation, wait: Wait) -> None:
    """End it with the reason for which it has waited; with no message if none has come in time.

    A move that has found a message, and no room for it, fails as a put does.
    """
    if wait.reason is None or (
        operation.verb.takes and wait.out_of_time and wait.lack is not WaitCondition.ROOM
    ):
        return
    operation.fail(wait.reason)
