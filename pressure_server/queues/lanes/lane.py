"""A lane: the operations on one queue, in order, and the queue's block in the call in flight.

Pure: operations, replies and wake-ups come in by method calls, and effects go out by the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pressure_server.backend.resp import CRLF, LENGTHS, add_packed
from pressure_server.backend.trouble import MAX_DEATHS
from pressure_server.errors import (
    BackendAwayError,
    BackendError,
    OutcomeUnknownError,
    QueueInUseError,
    UnansweredError,
    UnblockedError,
)
from pressure_server.queues.calls.call import Call, Part
from pressure_server.queues.lanes.put_backs import PutBacks
from pressure_server.queues.operations import batch, verbs
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.refusals import exception_for
from pressure_server.queues.operations.wait import Unblocking, WaitCondition
from pressure_server.queues.waiting.waiting_operations import WaitingOperations

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

# With this many operations pending, the next block leaves before the last one's replies are handed out.
# One queue, pipelines of 16: 50 % more puts of jobs, 16 % more reserves; 50 lone clients: 10 %.
_ENOUGH_TO_SEND: Final = 16
# What the first value of a reply says of the queue if nothing is left undone (batch.lua).
_NO_BOUND: Final = 0
_NO_QUEUE: Final = -2
# The longest name of a queue, in bytes, whose lane is kept when it has nothing to do.
_LONGEST_KEPT: Final = 256


class Lane(Part):
    """A queue's operations: packs them into blocks, one at a time, and hands out the replies."""

    __slots__ = (
        "_ended_count", "_is_woken", "_put_backs", "_runs", "_shard", "base", "bound_state", "is_idle",
        "is_in_flight", "is_recent", "keeps", "may_be_bounded", "name", "pending", "waiting",
    )  # fmt: skip

    def __init__(self, shard: Shard, name: bytes, base: bytes) -> None:
        """Make a lane for the queue `name`; `base` is the key of the queue's list."""
        self._shard = shard
        self.name = name
        self.base = base
        self.may_be_bounded = True  # whether the queue has a bound, or is not known
        self.bound_state: int | None = None  # what the last reply said, if that has been noted
        self.pending: list[Operation] = []
        self._runs: Sequence[list[Operation]] = ()
        self.is_idle = True  # nothing to send, nothing in flight
        self.is_in_flight = False
        self.is_recent = False  # it was used again since the shard looked last
        # Whether pops reserve (ACK NEXT); None if the queue has not been known to have that.
        self.keeps: bool | None = None
        self._is_woken = False  # try the waiting operations with the next block
        self._ended_count = 0
        # Created when an operation first waits, or when messages first go back.
        self.waiting: WaitingOperations | None = None
        self._put_backs: PutBacks | None = None

    def pack_into(self, call: Call) -> None:
        """See Part."""
        if self.is_in_flight or (self._put_backs is not None and self._put_backs.pending):
            return  # the reply, or the put-back, asks for the next block
        pending = self.pending
        if len(pending) == 1 and self.waiting is None and not self._shard.peer_count and self.keeps is None:
            # Fast path: with many queues nearly all blocks have one operation. Of the 8 microseconds that a
            # request takes, it saves one.
            operation = pending[0]
            verb = operation.verb
            if (
                operation.wait is None
                and operation.wanted <= batch.MAX_MESSAGES
                and not (operation.cancelled or verb.is_put_back or verb.moves)
            ):
                self.pending, self._runs = [], (pending,)
                self._is_woken, self.is_in_flight = False, True
                operation.is_sealed, operation.commands_in_call = True, None
                words = verb.pack(pending)
                call.parts.append(self)
                call.keys.append(self.base)
                call.word_count += batch.HEAD_SIZE + len(words)
                pieces = call.pieces
                pieces.append(batch.HEADS[verb.name, operation.options.words, len(words)])
                # Most blocks: the call of the other branch would take a tenth of the time.
                if len(words) <= 2:
                    for word in words:
                        pieces += (LENGTHS[len(word)], word, CRLF)
                        call.size += len(word)
                else:
                    add_packed(pieces, words)
                    call.size += sum(map(len, words))
                call.has_changes = call.has_changes or verb.changes
                call.takes = call.takes or verb.takes
                return
        operations = self._next()
        if not operations:
            self._schedule()
            return
        if self.keeps is not None and any(operation.verb is verbs.DELETE for operation in operations):
            self.keeps = None
        if self.keeps is not None:
            finished = batch.adapt_pops(operations, self.name, keeps=self.keeps)
            if finished:
                first = next(at for at, operation in enumerate(operations) if operation.verb is verbs.POP)
                operations.insert(first, self._shard.reservations.ending(self.name, finished))
        self._runs = runs = batch.fold(operations)
        keys, changes, takes, serves = [self.base], False, False, False
        for run in runs:
            verb = run[0].verb
            changes = changes or verb.changes
            takes = takes or verb.takes
            serves = serves or bool(verb.wakes)
            if verb.moves:
                keys += [operation.messages[0] for operation in run]  # the destination queue
        self.is_in_flight = True
        how, waiting = b"", self.waiting
        if waiting is not None and serves:
            waiting.note_sent()
        if self._shard.peer_count:
            how = batch.share_mode(operations, limit_to_share=waiting is None or waiting.leaves_share)
        if waiting is not None:
            waiting.leaves_share = True
        resolved = partial(self.put_backs.resolved, runs) if operations[0].verb.is_put_back else None
        call.add(self, keys, how, batch.pack(runs), changes, takes, resolved)

    def _next(self) -> list[Operation]:
        """Remove and return the operations for the next block."""
        taken = batch.take_batch(self.pending)
        if taken and (taken[0].verb.is_put_back or taken[0].verb.gives_up):
            # Messages and jobs that go back have a block of their own. Waiting operations are tried after it.
            self._is_woken = True
            return taken
        fresh = [
            o
            for o in taken
            if not (o.cancelled and _dropped(o))
            and (o.wait is None or o.wait.ticket is None or self._ensure_waiting().admits(o))
        ]
        woken, self._is_woken = self._is_woken, False
        return self.waiting.next_operations(fresh, woken=woken) if self.waiting else fresh

    def _ensure_waiting(self) -> WaitingOperations:
        if self.waiting is None:
            self.waiting = WaitingOperations(self, self._shard)
        return self.waiting

    def received(self, reply: Any, delivery: Delivery | None) -> None:
        """See Part. Hand the reply to the operations of the block in flight."""
        self.is_in_flight = False
        runs, self._runs = self._runs, ()
        if isinstance(reply, Exception):
            self._go_on(runs, self._failed(runs, reply), has_failed=True)
            return
        try:
            progress = batch.distribute(runs, reply)
        except Exception as error:  # a bug: without this, the queue would be stuck for all clients
            self._go_on(runs, self._failed(runs, error), has_failed=True)
            raise
        state = reply[0] if type(reply[0]) is int else reply[0][0]
        if state != self.bound_state:
            self._note_bound(state)
        if delivery is not None:
            # These messages are in flight to their clients, until delivered or acknowledged.
            for run in runs:
                if run[0].verb.reserves:
                    self._shard.reservations.deliver(run)
                elif run[0].verb.may_go_back:
                    delivery.add(run)
        if (
            progress is not None
            or self.waiting is not None
            or self._put_backs is not None
            or len(self.pending) >= _ENOUGH_TO_SEND
            or self._shard.is_durable
        ):
            self._go_on(runs, progress or batch.Progress(runs[0]), has_failed=False)
            return
        # Fast path: all has ended, and nothing follows. With many queues, most replies are so. Of the 7
        # microseconds that a request takes, it saves a half.
        is_plain = True
        for operation in runs[0]:
            if operation.wait is not None or operation.error is not None:
                is_plain = False
                self.end(operation)
            else:
                self._ended_count += 1
                operation.end_order = self._ended_count
                operation.owner.completed(operation)
        if is_plain and not self.pending and not self._is_woken and self.bound_state is not None:
            self.is_idle = True
        else:
            self._schedule()

    def _go_on(self, runs: Sequence[list[Operation]], progress: batch.Progress, *, has_failed: bool) -> None:
        """End operations, or let them wait or be sent again, after the reply to their block."""
        if progress.news is not None and progress.news.keeps is not None:
            self.keeps = progress.news.keeps
        if self._shard.is_durable:
            for operation in (*progress.resend, *progress.must_wait):
                if operation.is_done_in_part and not operation.unsafe_run:
                    operation.unsafe_run = self._shard.unsafe_run
        if progress.resend:
            self.pending[:0] = progress.resend
            for operation in progress.resend:
                if operation.has_taken:
                    operation.owner.partly_taken(operation)
        if progress.must_wait or self.waiting is not None:
            self._is_woken = self._ensure_waiting().requeue(progress) or self._is_woken
        if len(self.pending) >= _ENOUGH_TO_SEND and not has_failed:
            self._send_ahead(progress)
        must_last = self._shard.is_durable and any(run[0].verb.must_last for run in runs)
        if must_last and any(operation.results for operation in progress.ended):
            # What an earlier run of the backend has done in part, the present one may lack.
            by_run: dict[str, list[Operation]] = {}
            for operation in progress.ended:
                by_run.setdefault(operation.unsafe_run, []).append(operation)
            for run, operations in by_run.items():
                self._shard.when_durable(partial(self._end_if_durable, operations), run)
        else:
            for operation in progress.ended:
                self.end(operation)
        if self.waiting is not None:
            self.waiting.watch(progress)
        if self._put_backs is not None:
            self._put_backs.reply_came()
        self._schedule()

    def _failed(self, runs: Sequence[list[Operation]], reply: Exception) -> batch.Progress:
        """Fail the operations of a block that got no reply, or was refused as a whole."""
        if runs[0][0].verb.is_put_back:
            self.put_backs.failed(runs, reply)
            return batch.progress_after_refusal((), "")
        error = reply if isinstance(reply, BackendError) else exception_for(self.name, str(reply))
        progress = batch.progress_after_refusal(runs, str(reply))
        waiting: list[Operation] = []
        ended: list[Operation] = []
        for operation in progress.ended:
            (waiting if _waits_through(operation, error) else ended).append(operation)
        progress.must_wait, progress.ended = waiting, ended
        if waiting:
            self._shard.when_back(self.try_waiting)
        for operation in progress.ended:
            is_lost = type(error) is OutcomeUnknownError and not operation.verb.changes
            operation.fail(UnansweredError() if is_lost else error)
        return progress

    def _note_bound(self, state: int) -> None:
        """Note what a reply says of the queue's bound: see `_NO_BOUND`."""
        if state > 0:
            return
        self.may_be_bounded = state != _NO_BOUND
        if state == _NO_QUEUE:
            self.keeps = None
        if (
            self._shard.note_existence(self.name, exists=state != _NO_QUEUE)
            and len(self.name) <= _LONGEST_KEPT
        ):
            self.bound_state = state

    def forget_queue(self) -> None:
        """Forget what is known of the queue: it may have been deleted.

        If it had ACK NEXT, its pops would acknowledge what their clients have popped from other queues.
        """
        self.may_be_bounded = True
        self.bound_state = self.keeps = None

    def _send_ahead(self, progress: batch.Progress) -> None:
        """Send the next block before the last operations end, unless some of their messages go back first."""
        is_free = not (self.waiting or self._shard.is_durable)
        if is_free and not any(operation.cancelled for operation in progress.ended):
            self._shard.courier.send_ahead(self)

    def _end_if_durable(self, operations: list[Operation], error: BackendError | None) -> None:
        for operation in operations:
            if error is not None:
                if operation.has_taken:
                    operation.put_back()
                operation.results = []
                operation.fail(error if operation.verb.changes else UnansweredError())
            self.end(operation)
        self.rest_if_done()

    def end(self, operation: Operation) -> None:
        """End an operation, and hand it to its owner."""
        wait = operation.wait
        if wait is not None:
            self._shard.waiters.remove(wait)
            wait.end(served=bool(operation.results))
        if operation.error is not None and isinstance(operation.error, QueueInUseError | UnblockedError):
            self._ensure_waiting().finish_delete(operation)
        self._ended_count += 1
        operation.end_order = self._ended_count
        operation.owner.completed(operation)

    def _schedule(self) -> None:
        """Ask the courier for another block, or become idle if there is nothing to send."""
        if self.is_in_flight:
            return  # the next block has left already
        if self.pending or self._is_woken:
            self._shard.courier.ready(
                self, goes_first=bool(self.pending) and self.pending[0].verb.is_put_back
            )
            return
        self.is_idle = True
        if self.waiting is not None:
            self.waiting.turns.end()
        self.rest_if_done()

    @property
    def is_in_use(self) -> bool:
        """Whether the lane has something to send or to put back, or its operations wait."""
        return not self.is_idle or self.waiting is not None or self._put_backs is not None

    def rest_if_done(self) -> None:
        """Let the lane rest if it has nothing to send or to put back, and no operation waits."""
        if self.is_idle and not (self.pending or self.waiting or self.has_put_backs):
            if self.waiting is not None:
                self.waiting.stop()
            # Break the reference cycles, so that the memory is freed without the garbage collector.
            self.waiting = None
            self._put_backs = None
            if self.bound_state is None:
                self._shard.forget(self)

    def cancel(self, operation: Operation) -> None:
        """Cancel an operation whose client has gone."""
        operation.cancelled = True
        if operation.wait is not None:
            self._shard.waiters.remove(operation.wait)
        if self.waiting is not None:
            self.waiting.remove(operation)

    def unblock(self, operation: Operation, unblocking: Unblocking) -> None:
        """End a waiting operation as if its time were up."""
        if self.waiting is not None:
            self.waiting.unblock(operation, unblocking)

    def wake_up(self) -> None:
        """Try the waiting operations again, with the next block."""
        if not self.waiting and not self.is_in_flight:
            return
        self._is_woken = True
        if self.is_idle:
            self.is_idle = False
            self._shard.courier.ready(self)

    def try_waiting(self) -> None:
        """Try all waiting operations again: the backend is back."""
        if self.waiting is not None:
            self.waiting.try_all()

    @property
    def put_backs(self) -> PutBacks:
        """The messages that go back to the queue; created at the first use."""
        if self._put_backs is None:
            self._put_backs = PutBacks(self, self._shard)
        return self._put_backs

    @property
    def has_put_backs(self) -> bool:
        """Whether messages are about to be put back. Until then the lane sends nothing else."""
        return self._put_backs is not None and bool(self._put_backs.pending)

    def join(self, operation: Operation) -> None:
        """Let an operation wait for a message, without trying it now."""
        self._ensure_waiting().join(operation)
        self.rest_if_done()

    def send_first(self, operations: list[Operation]) -> None:
        """Send these operations, in this order, before all others of the queue."""
        self.pending[:0] = operations
        self.is_idle = False
        if not self.is_in_flight:
            self._shard.courier.ready(self, goes_first=True)


def _dropped(operation: Operation) -> bool:
    """Return whether to leave out a cancelled operation: a get, whose messages so far are put back."""
    if operation.verb.takes:
        operation.put_back()
    return operation.verb.takes


def _waits_through(operation: Operation, error: Exception) -> bool:
    """Return whether an operation that has not been done waits on, although the backend was lost meanwhile.

    It is tried again later, but not for ever if it may be the reason for the loss.
    """
    wait, verb = operation.wait, operation.verb
    if wait is None or (verb.takes and operation.results):
        return False
    if not (operation.waits_for_message or (wait.in_line and verb.puts)):
        return False
    if type(error) is OutcomeUnknownError:
        wait.unknown_outcomes += 1
        if verb.puts or verb.moves or wait.unknown_outcomes >= MAX_DEATHS:
            return False
    elif not isinstance(error, BackendAwayError):
        return False
    wait.condition = WaitCondition.ROOM if verb.puts else WaitCondition.MESSAGE
    wait.at_destination = False
    return True
