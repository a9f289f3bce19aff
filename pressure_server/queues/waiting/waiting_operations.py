"""The waiting operations of one queue: how long they wait, and in which order they are tried again. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pressure_server.errors import StoppingError, WaitLimitError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.batch import Progress
from pressure_server.queues.operations.block_reply import Due
from pressure_server.queues.operations.operation import Line, Operation
from pressure_server.queues.operations.options import OnFull
from pressure_server.queues.operations.owners import WithoutClient
from pressure_server.queues.operations.wait import AS_CONFIGURED, Unblocking, Wait, WaitCondition
from pressure_server.queues.waiting.key_notifications import WakeUp
from pressure_server.queues.waiting.role_turns import QueueTurns
from pressure_server.queues.waiting.timed_tries import TimedTries
from pressure_server.queues.waiting.waiting_line import WaitingLine

if TYPE_CHECKING:
    from pressure_server.queues.lanes.lane import Lane
    from pressure_server.queues.shard import Shard

# Seconds for which messages are left for clients of other servers, which may no longer be waiting.
_FOR_OTHERS = 0.01
# Seconds before an operation is tried again on a queue that a native client is deleting.
_LOOK_AGAIN_AFTER = 0.1
# Verbs after which fewer jobs are in flight. (A release wakes consumers anyway.)
_ENDS = (verbs.DELETE_JOB, verbs.BURY)
_MAY_WAIT_FOR_ROOM = (OnFull.CONFIGURED, OnFull.WAIT)


class WaitingOperations:
    """The waiting operations of one lane. Created when an operation first waits."""

    __slots__ = (
        "_has_left_messages", "_is_limited", "_joined", "_lane", "_lines", "_shard", "_source", "_tries_line",
        "_wake_up", "leaves_share", "timed_tries", "turns",
    )  # fmt: skip

    def __init__(self, lane: Lane, shard: Shard) -> None:
        self._lane = lane
        self._shard = shard
        self._lines = {line: WaitingLine(lane.name) for line in Line}
        self.turns = QueueTurns(lane.name, self._lines, shard.role_turns)
        self._wake_up = WakeUp(lane, self, shard.notifications)
        self.timed_tries = TimedTries(shard.loop, lane.wake_up)
        # Whether the block in flight tries consumers that wait.
        self._tries_line = False
        # Operations that have joined without a try, until it is known whether the queue exists.
        self._joined: list[Operation] = []
        # The log, if this is the queue of a group.
        self._source: bytes | None = None
        # Whether the next put leaves clients of other servers their share of the messages, and whether some
        # have been left for them.
        self.leaves_share = True
        self._has_left_messages = False
        self._is_limited = False  # whether the queue limits how many jobs are in flight: see News

    def __len__(self) -> int:
        """Return how many operations wait."""
        return sum(map(len, self._lines.values()))

    def count(self, line: Line) -> int:
        """Return how many operations wait in that line."""
        return len(self._lines[line])

    @property
    def conditions(self) -> dict[bytes, set[WaitCondition]]:
        """The conditions for which operations wait, by queue."""
        conditions: dict[bytes, set[WaitCondition]] = {}
        for line in self._lines.values():
            for name, condition in line.conditions:
                conditions.setdefault(name, set()).add(condition)
        if self._lines[Line.CONSUMERS].at_destinations:
            conditions.setdefault(self._lane.name, set()).add(WaitCondition.MESSAGE_GONE)
        if self._source is not None and self._lines[Line.CONSUMERS]:
            conditions.setdefault(self._source, set()).add(WaitCondition.MESSAGE)
        return conditions

    @property
    def existed(self) -> bool:
        """Whether the queue existed when the waiting operations were tried."""
        return not any(line.for_existence for line in self._lines.values())

    def next_operations(self, fresh: list[Operation], *, woken: bool) -> list[Operation]:
        """Return the next block: waiting operations that may go on (all if `woken`), and the `fresh` ones."""
        served: dict[Line, int] = {}
        for operation in fresh:
            lines = operation.verb.wakes
            if self._is_limited and operation.verb in _ENDS:
                lines = (Line.CONSUMERS, *lines)
            for line in lines:
                some = len(self._lines[line]) if operation.verb.wakes_all else operation.wanted
                served[line] = served.get(line, 0) + some
        new_puts = [o for o in fresh if o.verb.puts and _waits_for_room(o) and not _is_in_line(o)]
        if tried := self._tried_at_once(new_puts):
            served.setdefault(Line.PRODUCERS, 0)
            new_puts = [o for o in new_puts if o not in tried]
        self._tries_line = woken or Line.CONSUMERS in served
        operations: list[Operation] = []
        for line, in_line in self._lines.items():
            if in_line and (woken or line in served) and self._shard.is_up:
                operations += in_line.take_first(served.get(line, 0), self._lane.wake_up)
        if first := self._lines[Line.PRODUCERS].next:
            # New puts join the line after the operations that already wait for room.
            for operation in new_puts:
                fresh.remove(operation)
                self.append_untried(operation, WaitCondition.ROOM, first.wait)
        # TURN goes first, because it frees the role for the waiting operations. So do operations in progress.
        ahead = [o for o in fresh if o.verb is verbs.TURN or _is_in_line(o)]
        return ahead + operations + [operation for operation in fresh if operation not in ahead]

    def _tried_at_once(self, new_puts: list[Operation]) -> list[Operation]:
        """Return the new puts that are tried although others wait: those without a timeout of their own.

        But if such a put waits for room, the queue lets all of them wait. A put with a transaction id is
        tried in any case: it needs no room if it has been done before. None overtakes its own client's.
        """
        line = self._lines[Line.PRODUCERS]
        blocks = any(_shows_that_the_queue_blocks(operation) for operation in line)
        waits = [o for o in new_puts if not o.options.once and (blocks or o.options.on_full is OnFull.WAIT)]
        if not line or len(waits) == len(new_puts):
            return []
        waits += [o for o in line if blocks or o.options.on_full is OnFull.WAIT]
        ahead = {operation.owner for operation in waits}
        return [operation for operation in new_puts if operation.owner not in ahead]

    def note_sent(self) -> None:
        """Note that a call leaves that may cause the next notification; moves at destinations need that."""
        if not self._lines[Line.CONSUMERS].at_destinations:
            self._wake_up.may_be_own_change = True

    def requeue(self, progress: Progress) -> bool:
        """Requeue what must wait; add what may not to `progress.ended`. Return whether to try more now."""
        again: dict[Line, list[Operation]] = {line: [] for line in Line}
        new: dict[Line, list[Operation]] = {line: [] for line in Line}
        for operation in progress.must_wait:
            wait, line = _place_of(operation)
            was_in_line = wait.in_line
            if self._begin_wait(operation, wait):
                (again if was_in_line else new)[line].append(operation)
                if wait.ticket is not None:
                    wait.ticket.release()
                if wait.condition is WaitCondition.REMOVED:
                    # The last keys that a Delete removes are not watched.
                    self._shard.loop.call_later(_LOOK_AGAIN_AFTER, self._lane.wake_up)
            else:
                _fail_unserved(operation, wait)
                progress.ended.append(operation)
        are_more = False
        for line in Line:
            ended_count = sum(
                o.verb.line is line and o.wait is not None and o.wait.in_line for o in progress.ended
            )
            are_more = self._lines[line].requeue(again[line], new[line], ended_count) or are_more
        return are_more

    def watch(self, progress: Progress) -> None:
        """Watch the keys that waiting operations need, and ask for roles that native clients hold."""
        if self:
            news = progress.news
            if news is not None:
                # Blocks in which no operation waits do not tell.
                self._is_limited = self._is_limited or news.is_limited
                if news.left_for_others:
                    self._wake_up.forget_attempts()
                    if not self._has_left_messages:
                        self._has_left_messages = True
                        self._shard.loop.call_later(_FOR_OTHERS, self._take_what_is_left)
                self._source = progress.source
                tries, due = self.timed_tries, news.due or Due()
                if not self._tries_line and due.note != tries.due_note and tries.due_soon is not None:
                    # A job is ready, and has not been offered to those in line.
                    due = due._replace(seconds=0.0)
                tries.job_is_due(due)
                if news.room_after is not None:
                    tries.room_after(news.room_after)
            self._wake_up.watch()
            self.turns.ask(progress)
        self.turns.end(progress.ended)

    def join(self, operation: Operation) -> None:
        """Let an operation wait for a message without trying it; it is tried if the queue may have one."""
        wait = operation.wait = operation.wait or Wait()
        wait.found_queue = True
        self.append_untried(operation, WaitCondition.MESSAGE, None)
        if wait.in_line:
            self._joined.append(operation)
            # Those that were tried in vain, or were passed over, may have left.
            self._wake_up.forget_attempts()
            self._wake_up.check()

    def _take_what_is_left(self) -> None:
        """Take the messages left for clients of other servers: these have had their time."""
        self._has_left_messages = False
        self.leaves_share = False
        self._lane.wake_up()

    def _begin_wait(self, operation: Operation, wait: Wait) -> bool:
        """Return whether the operation may wait. If so, count it as waiting, and set its timer."""
        if operation.cancelled or wait.expired:
            return False
        if self._shard.is_stopping:
            _stop(operation, wait)
            return False
        if not self._set_timer(operation, wait):
            return False
        if not wait.in_line:
            waiters = self._shard.waiters
            if not waiters.try_add(wait):
                wait.timeout_error, wait.out_of_time = WaitLimitError(waiters.limit), False
                return False
            wait.in_line = True
            operation.owner.wait_began(operation)
        return True

    def _set_timer(self, operation: Operation, wait: Wait) -> bool:
        """Set the operation's timer to its deadline; return False if the deadline has passed."""
        now, policy, timeout = self._shard.loop.time(), self._shard.policy, wait.timeout
        if timeout == AS_CONFIGURED:
            timeout = policy.put_timeout if operation.verb.puts or operation.verb.moves else None
        deadline = wait.deadline(now, timeout, policy.role_timeout)
        if deadline is not None and deadline <= now:
            wait.out_of_time = wait.in_line and deadline == wait.deadline_at
            if not self._extend(operation, wait):
                return False
            deadline = wait.deadline_at
        if wait.timer is not None and wait.timer_at == deadline:
            return True
        wait.cancel_timer()
        if deadline is not None:
            wait.out_of_time = deadline == wait.deadline_at
            wait.timer_at = deadline
            wait.timer = self._shard.loop.call_at(deadline, self._expire, operation)
        return True

    def append_untried(self, operation: Operation, condition: WaitCondition, like: Wait | None) -> None:
        """Append an operation to its line without trying it, or end it if it may not wait for `condition`.

        `like` is the wait of an operation ahead of it that waits for the same thing, if there is one.
        """
        wait = operation.wait = operation.wait or Wait()
        wait.condition, wait.timeout_error = (
            (like.condition, like.timeout_error) if like is not None else (condition, None)
        )
        _, line = _place_of(operation)
        if self._begin_wait(operation, wait):
            if like is not None:
                operation.require_existing()
            self._lines[line].add(operation)
        else:
            _fail_unserved(operation, wait)
            self._lane.end(operation)

    def admits(self, operation: Operation) -> bool:
        """Return whether an operation may be tried. If another operation has its ticket, it waits instead."""
        wait = operation.wait
        if wait is None or wait.ticket is None:
            return True
        if wait.ticket.try_acquire(wait, self._lane.wake_up):
            return True
        if not wait.ticket.served:
            self.append_untried(operation, WaitCondition.MESSAGE, None)
        return False

    def _expire(self, operation: Operation) -> None:
        """End an operation whose time is up. One that is in flight ends when its reply arrives."""
        wait, line = _place_of(operation)
        wait.timer = None
        if self._extend(operation, wait):
            self._set_timer(operation, wait)
            return
        wait.expired = True
        was_next = operation is self._lines[line].next
        if not self._lines[line].remove(operation):
            return
        if wait.is_extended and wait.condition is WaitCondition.MESSAGE:
            # Those ahead of it in the line may have been tried without it.
            wait.condition = None
            self._lane.send_first([operation])
        else:
            _fail_unserved(operation, wait)
            self._lane.end(operation)
            self._after_leaving(operation, was_next=was_next)

    def unblock(self, operation: Operation, unblocking: Unblocking) -> None:
        """End an operation as if its time were up. One that is in flight ends when its reply arrives."""
        wait, _ = _place_of(operation)
        wait.cancel_timer()
        wait.unblocking, wait.out_of_time = unblocking, operation.options.waits
        self._expire(operation)

    def _extend(self, operation: Operation, wait: Wait) -> bool:
        """Extend, once, a wait for a message whose time is up, if a job is due soon. Return whether it is."""
        due_soon = self.timed_tries.due_soon
        if (
            due_soon is None
            or wait.is_extended
            or not (wait.in_line and wait.out_of_time)
            or operation.verb.line is not Line.CONSUMERS
            or wait.condition is WaitCondition.ROOM
        ):
            return False
        wait.is_extended = True
        wait.deadline_at = due_soon
        return True

    def remove(self, operation: Operation) -> None:
        """Remove an operation from its line: its client has gone."""
        line = operation.verb.line
        was_next = line is not None and operation is self._lines[line].next
        if line is not None and self._lines[line].remove(operation):
            wait, _ = _place_of(operation)
            wait.cancel_timer()
            self.finish_delete(operation)
            self._after_leaving(operation, was_next=was_next)

    def finish_delete(self, given_up: Operation) -> None:
        """If it is the rest of a Delete that may wait for roles, submit it again, to wait without a limit."""
        may_wait = self._shard.policy.role_timeout and not self._shard.is_stopping
        if given_up.verb is verbs.FINISH_DELETE and may_wait:
            wait = Wait(None, waits_forever_for_role=True)
            self._shard.submit(Operation(given_up.verb, self._lane.name, [], 1, WithoutClient(), wait=wait))

    def _after_leaving(self, left: Operation, *, was_next: bool) -> None:
        following = self._lines[Line.PRODUCERS].next
        if was_next and left.verb.puts and following is not None and following.options.unique:
            # It has not been tried, and needs no room if its messages are queued already.
            self._lane.wake_up()
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if not self._lane.is_in_flight:
            self.turns.end()
        self._lane.rest_if_done()

    def stop_all(self) -> None:
        """End all waiting operations, because the server stops."""
        for line in self._lines.values():
            gone = line.clear()
            for operation in gone:
                wait, _ = _place_of(operation)
                _stop(operation, wait)
                _fail_unserved(operation, wait)
            for operation in gone:
                self._lane.end(operation)
        self._stop_if_done()

    def take_turn(self, role: WaitCondition) -> None:
        """Begin a turn in `role`, until an operation that needs the role has ended, or none needs it."""
        self.turns.begin(role)
        self._lane.wake_up()
        if not self._lane.is_in_flight:
            self.turns.end()

    def try_all(self) -> None:
        """Try the operations again, although nothing is known of the queue; not before the backend is back.

        Operations that share a ticket would be tried one after the other, so their command looks instead.
        """
        if not self._shard.is_up:
            return
        are_others = False
        for operation in [operation for line in self._lines.values() for operation in line]:
            ticket = operation.wait.ticket if operation.wait is not None else None
            if ticket is not None and ticket.look_again is not None:
                ticket.look_again()
            else:
                are_others = True
        self._joined.clear()
        if are_others:
            self._lane.wake_up()

    @property
    def need_queue(self) -> bool:
        """Whether the wait of an operation ends when the queue is deleted, or expires."""
        return any(
            operation.wait is None or not operation.wait.outlives_queue
            for line in self._lines.values()
            for operation in line
        )

    def note_existence(self, *, exists: bool) -> None:
        """Note whether the queue exists, for the operations that have not been tried."""
        joined, self._joined = self._joined, []
        for operation in joined:
            wait, line = _place_of(operation)
            if not exists:
                self._lines[line].note_missing(operation)
            elif not wait.outlives_queue:
                operation.require_existing()
        if exists and joined and self._source is None and b"+" in self._lane.name:
            # It may be the queue of a group that has just been created. Its messages are in a log, of which
            # only the reply to a try tells.
            self._lane.wake_up()

    def changed(self, *, existence: bool) -> None:
        """Note that the queue has changed; with `existence`, that it was created or deleted.

        Other servers also touch its key before it expires, to ask for waiting clients (housekeeping.lua).
        """
        if existence and not self.need_queue:
            self._wake_up.check()
            return
        if existence:
            self._wake_up.may_be_own_change = False
        self._wake_up.changed(self._lane.name)

    def watch_lost(self) -> None:
        """Note that no key is watched any longer."""
        self._wake_up.watch_lost()

    def stop(self) -> None:
        """Stop listening to queues, and to the clock: the lane is dropped."""
        self.timed_tries.stop()
        self._wake_up.stop()
        del self._wake_up  # it refers to this: see Lane.rest_if_done


def _place_of(operation: Operation) -> tuple[Wait, Line]:
    if operation.wait is None or operation.verb.line is None:
        raise ValueError(f"{operation.verb!r} cannot wait")
    return operation.wait, operation.verb.line


def _stop(operation: Operation, wait: Wait) -> None:
    """Let the wait end with StoppingError; a Delete that has begun ends as if its time were up."""
    wait.unblocking, wait.out_of_time = None, False
    if operation.verb is not verbs.FINISH_DELETE or wait.timeout_error is None:
        wait.timeout_error = StoppingError()


def _shows_that_the_queue_blocks(operation: Operation) -> bool:
    wait, _ = _place_of(operation)
    is_told = operation.options.on_full is not OnFull.CONFIGURED
    return operation.verb.puts and not is_told and wait.condition is WaitCondition.ROOM


def _is_in_line(operation: Operation) -> bool:
    return operation.wait is not None and operation.wait.in_line


def _waits_for_room(operation: Operation) -> bool:
    wait = operation.wait
    return operation.options.on_full in _MAY_WAIT_FOR_ROOM and (wait is None or wait.timeout != 0)


def _fail_unserved(operation: Operation, wait: Wait) -> None:
    """Fail an operation that has waited in vain, with the reason for which it waited.

    A get whose time is up ends without a message instead; so does a move, unless it lacks room.
    """
    unblocked = wait.unblocking.take_effect() if wait.unblocking is not None else None
    if unblocked is not None:
        operation.fail(unblocked)
        return
    if wait.timeout_error is None or (
        operation.verb.takes and wait.out_of_time and wait.condition is not WaitCondition.ROOM
    ):
        return
    operation.fail(wait.timeout_error)
