"""Waiting operations in memory: which of them are tried, when, and how long they wait."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pressure_server.errors import (
    QueueFullError,
    QueueInUseError,
    StoppingError,
    UnblockedError,
    WaitLimitError,
)
from pressure_server.queues.lanes.lane import Lane
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.batch import Progress
from pressure_server.queues.operations.block_reply import Due, News
from pressure_server.queues.operations.operation import Line, Operation, Verb
from pressure_server.queues.operations.options import DEFAULT, UNIQUE, WAITS, OnFull, Options
from pressure_server.queues.operations.owners import WithoutClient
from pressure_server.queues.operations.wait import Ticket, Unblocking, Wait, WaitCondition, WaiterCount
from pressure_server.queues.policy import Policy
from pressure_server.queues.shard import Shard
from pressure_server.queues.waiting.waiting_operations import WaitingOperations
from tests.unit.queues.operations_of import Recorder, get, put, wait_of


class Clock:
    """The clock of the shard, and its timers."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[list[Any]] = []

    def call_at(self, when: float, follows: Callable[..., None], *arguments: Any) -> Any:
        entry = [when, follows, arguments]
        self._timers.append(entry)

        def cancel() -> None:
            if entry in self._timers:
                self._timers.remove(entry)

        return SimpleNamespace(cancel=cancel)

    def run_to(self, time: float) -> None:
        """Let time pass, and call what is due in order."""
        while self._timers and min(entry[0] for entry in self._timers) <= time:
            entry = min(self._timers, key=lambda one: cast(float, one[0]))
            self._timers.remove(entry)
            self.now = max(self.now, entry[0])
            entry[1](*entry[2])
        self.now = time


class FakeLane:
    """A lane that notes what its waiting operations ask for."""

    def __init__(self) -> None:
        self.name = b"q"
        self.is_in_flight = False
        self.wake_ups = self.drops = 0
        self.ended: list[Operation] = []
        self.sent_first: list[Operation] = []

    def wake_up(self) -> None:
        self.wake_ups += 1

    def send_first(self, operations: list[Operation]) -> None:
        self.sent_first += operations

    def end(self, operation: Operation) -> None:
        self.ended.append(operation)

    def drop_if_done(self) -> None:
        self.drops += 1


class FakeShard:
    """A shard whose queues do not change, and whose roles nobody hands over."""

    is_stopping = False
    is_up = True
    policy = Policy(put_timeout=3.0, role_timeout=2.0)

    def __init__(self, clock: Clock, limit: int) -> None:
        self._clock = clock
        self.waiters = WaiterCount(limit)
        self.submitted: list[Operation] = []
        self.notifications = self.role_turns = self.loop = self

    def time(self) -> float:
        return self._clock.now

    def call_at(self, when: float, follows: Callable[..., None], operation: Operation) -> Any:
        return self._clock.call_at(when, follows, operation)

    def call_later(self, seconds: float, follows: Callable[..., None]) -> Any:
        return self._clock.call_at(self._clock.now + seconds, follows)

    def submit(self, operation: Operation) -> None:
        self.submitted.append(operation)

    def arm(self, *_watched: object, own: bool = False) -> None: ...

    def leave(self, *_watched: object) -> None: ...

    def ask(self, *_role: object, for_listeners: bool = False) -> None: ...

    def withdraw(self, *_role: object) -> None: ...

    def give_back(self, _name: bytes) -> None: ...


class World:
    """The waiting operations of one lane whose blocks are written down."""

    def __init__(self, limit: int = 100) -> None:
        self.clock = Clock()
        self.lane = FakeLane()
        self.shard = FakeShard(self.clock, limit)
        self.waiting = WaitingOperations(cast(Lane, self.lane), cast(Shard, self.shard))

    @property
    def ended(self) -> list[Operation]:
        """The operations that have ended."""
        return self.lane.ended

    def in_vain(
        self, *operations: Operation, condition: WaitCondition = WaitCondition.MESSAGE, ended: int = 0
    ) -> bool:
        """Take the reply to a block in which the operations lacked something. Return whether to try more.

        `ended` is how many gets that waited have ended with it.
        """
        for operation in operations:
            operation.wait = operation.wait or Wait()
            operation.wait.condition, operation.wait.found_queue = condition, True
            if condition is WaitCondition.ROOM:
                operation.wait.timeout_error = QueueFullError("q")
        served = [get(wait=Wait()) for _ in range(ended)]
        for operation in served:
            wait_of(operation).in_line = True
        progress = Progress(served)
        progress.must_wait = operations
        are_more = self.waiting.requeue(progress)
        for operation in progress.ended[ended:]:
            self.lane.end(operation)
        self.waiting.watch(progress)
        return are_more

    def waiting_gets(self, number: int) -> list[Operation]:
        """Let gets wait."""
        operations = [get(options=WAITS, wait=Wait(None)) for _ in range(number)]
        self.in_vain(*operations)
        return operations

    def waiting_puts(self, number: int) -> list[Operation]:
        """Let puts wait for room."""
        operations = [put(b"m") for _ in range(number)]
        self.in_vain(*operations, condition=WaitCondition.ROOM)
        return operations

    def wait(self, timeout: float, due: Due) -> Operation:
        """Begin a wait by a try in vain."""
        operation = Operation(verbs.GET, b"q", [], 1, WithoutClient(), wait=Wait(timeout), options=WAITS)
        self.replied([operation], due)
        return operation

    def replied(self, in_vain: list[Operation], due: Due) -> None:
        """Take the reply to a block that has tried these operations."""
        for operation in in_vain:
            assert operation.wait is not None
            operation.wait.condition, operation.wait.found_queue = WaitCondition.MESSAGE, True
        progress = Progress([])
        progress.must_wait, progress.news = in_vain, News(due=due)
        self.waiting.requeue(progress)
        for operation in progress.ended:
            self.lane.end(operation)
        self.waiting.watch(progress)


def expiring(world: World, seconds: float | None) -> None:
    """Take a reply that says when a message expires that is in the way of the puts."""
    progress = Progress([])
    progress.news = News(room_after=seconds)
    world.waiting.watch(progress)


def test_puts_are_tried_again_when_a_message_expires() -> None:
    world = World()
    world.waiting_puts(2)
    expiring(world, 1.5)
    world.clock.run_to(101.4)
    assert world.lane.wake_ups == 0
    expiring(world, None)  # a reply that says nothing of it
    world.clock.run_to(101.6)
    assert world.lane.wake_ups == 1


def test_the_last_reply_says_when_a_message_expires() -> None:
    world = World()
    world.waiting_puts(1)
    expiring(world, 0.5)
    expiring(world, 1.0)
    world.clock.run_to(100.9)
    assert world.lane.wake_ups == 0
    world.waiting.stop()
    world.clock.run_to(102.0)
    assert world.lane.wake_ups == 0


def test_a_wait_goes_on_until_a_job_that_is_due_within_milliseconds() -> None:
    world = World()
    operation = world.wait(1.0, Due(1.005, b"note"))
    world.clock.run_to(101.004)
    assert world.ended == []
    world.clock.run_to(101.0065)
    assert world.lane.wake_ups == 1
    (tried,) = world.waiting.next_operations([], woken=True)
    world.clock.run_to(101.02)
    assert world.ended == []  # it is in flight
    assert tried is operation
    world.replied([tried], Due())
    assert world.ended == [operation]


def test_a_wait_ends_in_time_if_no_job_is_due_soon() -> None:
    world = World()
    operation = world.wait(1.0, Due(1.02, b"note"))
    world.clock.run_to(101.0)
    assert world.ended == [operation]


def test_a_wait_is_extended_only_once() -> None:
    world = World()
    operation = world.wait(1.0, Due(1.005, b"note"))
    world.clock.run_to(101.004)
    world.replied([], Due(0.005, b"note"))
    world.clock.run_to(101.0075)
    assert world.lane.sent_first == [operation]


def test_a_job_that_another_command_has_made_ready_is_offered_to_those_in_line() -> None:
    """The reply to an INFO says that nothing is due any longer: the job is ready."""
    world = World()
    world.wait(1.0, Due(0.5, b"note"))
    world.clock.run_to(100.499)
    assert world.waiting.next_operations([], woken=False) == []
    world.replied([], Due())
    world.clock.run_to(100.4995)
    assert world.lane.wake_ups == 1
    assert len(world.waiting.next_operations([], woken=True)) == 1


@pytest.mark.parametrize("verb", [verbs.GET, verbs.RESERVE, verbs.MOVE, verbs.PEEK])
@pytest.mark.parametrize("has_ticket", [False, True])
def test_the_reply_to_a_question_says_anew_when_a_job_is_due(verb: Verb, has_ticket: bool) -> None:
    """Whatever waits. A call that was refused says nothing: the time that is known stays."""
    world = World()
    wait = Wait(None, ticket=Ticket() if has_ticket else None)
    world.replied(
        [Operation(verb, b"q", [b"p:d"], 1, Recorder(), wait=wait, options=WAITS)], Due(0.5, b"note")
    )
    world.clock.run_to(100.2)
    world.waiting.next_operations([], woken=False)
    world.replied([], Due(0.2, b"note"))
    world.clock.run_to(100.3)
    refused = Progress([])
    refused.news = None
    world.waiting.watch(refused)
    assert world.lane.wake_ups == 0
    world.clock.run_to(100.41)
    assert world.lane.wake_ups == 1


def test_a_job_that_was_taken_elsewhere_wakes_nobody() -> None:
    world = World()
    world.wait(1.0, Due(0.5, b"note"))
    world.clock.run_to(100.2)
    world.waiting.next_operations([], woken=False)
    world.replied([], Due(None, b""))
    world.clock.run_to(100.9)
    assert world.lane.wake_ups == 0


def _waiting_put(world: World, *messages: bytes) -> Operation:
    put = Operation(verbs.PUT, b"q", list(messages), len(messages), WithoutClient(), options=UNIQUE)
    assert world.waiting.next_operations([put], woken=False) in ([], [put])
    return put


@pytest.mark.parametrize("leaves", ["cancelled", "expired"])
def test_a_put_of_a_queued_message_is_tried_when_the_put_before_it_leaves(leaves: str) -> None:
    world = World()
    first = _waiting_put(world, b"new")
    first.wait = Wait(1.0)
    first.wait.condition = WaitCondition.ROOM
    progress = Progress([])
    progress.must_wait = [first]
    world.waiting.requeue(progress)
    second = _waiting_put(world, b"queued")
    assert world.lane.wake_ups == 0
    if leaves == "cancelled":
        first.cancelled = True
        world.waiting.remove(first)
    else:
        world.clock.run_to(101.0)
    assert world.lane.wake_ups == 1
    assert world.waiting.next_operations([], woken=True) == [second]


def test_a_put_lets_as_many_gets_be_tried_as_it_has_messages_and_no_puts() -> None:
    world = World()
    gets, puts = world.waiting_gets(20), world.waiting_puts(2)
    fresh = put(b"a b c", options=Options(on_full=OnFull.EXCEED_BOUND))
    tried = world.waiting.next_operations([fresh], woken=False)
    assert tried == [*gets[: 8 + 3], fresh]
    assert (world.waiting.count(Line.CONSUMERS), world.waiting.count(Line.PRODUCERS)) == (9, len(puts))


def test_a_get_lets_puts_be_tried_and_no_gets() -> None:
    world = World()
    world.waiting_gets(2)
    puts, fresh = world.waiting_puts(3), get()
    assert world.waiting.next_operations([fresh], woken=False) == [*puts, fresh]


def test_a_question_lets_no_operation_be_tried() -> None:
    world = World()
    world.waiting_gets(2)
    question = Operation(verbs.LENGTH, b"q", [], 1, Recorder())
    assert world.waiting.next_operations([question], woken=False) == [question]


def test_after_a_wake_up_both_lines_are_tried() -> None:
    world = World()
    gets, puts = world.waiting_gets(2), world.waiting_puts(2)
    assert world.waiting.next_operations([], woken=True) == [*puts, *gets]
    assert len(world.waiting) == 0


def test_what_wakes_all_lets_all_be_tried() -> None:
    world = World()
    gets = world.waiting_gets(30)
    closing = Operation(verbs.CLOSE, b"q", [], 1, Recorder())
    assert world.waiting.next_operations([closing], woken=False) == [*gets, closing]


def test_a_new_put_waits_after_those_that_wait_for_room() -> None:
    world = World()
    (first,) = world.waiting_puts(1)
    late, pushy = put(b"a"), put(b"b", options=Options(on_full=OnFull.FAIL))
    assert world.waiting.next_operations([late, pushy], woken=False) == [pushy]
    assert world.waiting.count(Line.PRODUCERS) == 2
    assert isinstance(wait_of(late).timeout_error, QueueFullError)
    assert late.options.must_exist
    assert world.waiting.next_operations([], woken=True) == [first, late]


def test_a_new_put_that_may_not_wait_is_tried_although_others_wait() -> None:
    world = World()
    world.waiting_puts(1)
    fresh = put(b"a", wait=Wait(0))
    assert world.waiting.next_operations([fresh], woken=False) == [fresh]


def test_a_turn_and_operations_in_progress_go_first() -> None:
    world = World()
    gets = world.waiting_gets(2)
    turn, fresh = Operation(verbs.TURN, b"q", [], 1, Recorder()), get()
    in_progress = put(b"a", b"b", wait=Wait())
    wait_of(in_progress).in_line = True
    tried = world.waiting.next_operations([fresh, in_progress, turn], woken=False)
    assert tried == [in_progress, turn, *gets, fresh]


def test_a_move_that_waits_in_vain_for_room_fails() -> None:
    world = World()
    moving = Operation(verbs.MOVE, b"q", [b"p:d"], 1, Recorder(), wait=Wait(1.0), options=WAITS)
    world.in_vain(moving, condition=WaitCondition.ROOM)
    world.clock.run_to(101.0)
    assert isinstance(moving.error, QueueFullError)


@pytest.mark.parametrize("error", [None, UnblockedError()])
def test_an_operation_that_is_unblocked_ends_as_after_its_time_or_with_the_error(
    error: UnblockedError | None,
) -> None:
    world = World()
    getting, putting = get(options=WAITS, wait=Wait(1.0)), put(b"m")
    world.in_vain(getting)
    world.in_vain(putting, condition=WaitCondition.ROOM)
    for number, operation in enumerate((getting, putting), 1):
        unblocking = Unblocking(error)
        world.waiting.unblock(operation, unblocking)
        assert (world.ended[number - 1 :], unblocking.has_ended_wait) == ([operation], True)
    assert getting.error is error
    assert putting.error is error or (error is None and isinstance(putting.error, QueueFullError))
    assert len(world.waiting) == 0
    world.clock.run_to(200.0)
    assert world.ended == [getting, putting]


def test_a_get_that_is_unblocked_while_it_waits_for_a_role_fails_if_it_waits_for_nothing_else() -> None:
    for options, fails in ((WAITS, False), (DEFAULT, True)):
        world = World()
        getting = get(options=options, wait=Wait(None))
        wait_of(getting).timeout_error = QueueInUseError("q", "by its consumer 'c'")
        world.in_vain(getting, condition=WaitCondition.CONSUMER_ROLE)
        world.waiting.unblock(getting, Unblocking())
        assert world.ended == [getting]
        assert isinstance(getting.error, QueueInUseError) is fails


def test_an_operation_in_flight_is_unblocked_by_its_reply_unless_that_brings_something() -> None:
    world = World()
    empty, served = world.waiting_gets(2)
    assert world.waiting.next_operations([], woken=True) == [empty, served]
    in_vain, too_late = Unblocking(), Unblocking()
    world.waiting.unblock(empty, in_vain)
    world.waiting.unblock(served, too_late)
    assert world.ended == []
    served.results = [b"m"]
    world.in_vain(empty)
    assert world.ended == [empty]
    assert (in_vain.has_ended_wait, too_late.has_ended_wait) == (True, False)


def test_an_operation_that_is_unblocked_gets_a_job_that_is_due_within_milliseconds() -> None:
    world = World()
    operation = world.wait(10.0, Due(0.005, b"note"))
    unblocking = Unblocking()
    world.waiting.unblock(operation, unblocking)
    assert world.ended == []
    world.clock.run_to(100.0065)
    (tried,) = world.waiting.next_operations([], woken=True)
    world.clock.run_to(100.02)
    world.replied([tried], Due())
    assert world.ended == [operation]
    assert unblocking.has_ended_wait


def test_an_operation_that_may_not_wait_ends_at_once() -> None:
    world = World()
    operation = get(options=WAITS, wait=Wait(0))
    world.in_vain(operation)
    assert world.ended == [operation]
    assert len(world.shard.waiters) == 0


def test_the_number_of_waiting_operations_is_limited() -> None:
    world = World(limit=1)
    first, second = get(options=WAITS, wait=Wait(None)), get(options=WAITS, wait=Wait(None))
    world.in_vain(first, second)
    assert world.ended == [second]
    assert isinstance(second.error, WaitLimitError)
    # An operation that waits already is not counted again.
    assert world.waiting.next_operations([], woken=True) == [first]
    world.in_vain(first)
    assert world.ended == [second]


def test_no_operation_begins_to_wait_while_the_server_stops() -> None:
    world = World()
    world.shard.is_stopping = True
    operation = put(b"m")
    world.in_vain(operation, condition=WaitCondition.ROOM)
    assert isinstance(operation.error, StoppingError)


def test_an_operation_whose_client_has_gone_does_not_wait() -> None:
    world = World()
    operation = get(options=WAITS, wait=Wait(None))
    operation.cancelled = True
    world.in_vain(operation)
    assert world.ended == [operation]
    assert len(world.waiting) == 0


def test_a_stop_ends_all_waits() -> None:
    world = World()
    operations = [*world.waiting_puts(2), *world.waiting_gets(2)]
    world.waiting.stop_all()
    assert world.ended == operations
    assert all(operation.is_left_undone for operation in operations)
    assert len(world.waiting) == 0


def test_a_deletion_by_a_native_client_is_looked_at_again() -> None:
    """Its last keys are not watched."""
    world = World()
    world.in_vain(put(b"m"), condition=WaitCondition.REMOVED)
    world.clock.run_to(100.09)
    assert world.lane.wake_ups == 0
    world.clock.run_to(100.11)
    assert world.lane.wake_ups == 1


def test_the_rest_of_a_deletion_waits_for_its_roles_without_a_client() -> None:
    world = World()
    deletion = Operation(verbs.FINISH_DELETE, b"q", [], 1, Recorder())
    world.waiting.finish_delete(deletion)
    (submitted,) = world.shard.submitted
    assert submitted.verb is verbs.FINISH_DELETE
    assert wait_of(submitted).waits_forever_for_role
    world.waiting.finish_delete(Operation(verbs.DELETE, b"q", [], 1, Recorder()))
    assert world.shard.submitted == [submitted]


def test_messages_left_for_other_servers_are_taken_if_those_do_not_take_them() -> None:
    world = World()
    world.waiting_gets(1)
    progress = Progress([])
    progress.news = News(left_for_others=True)
    for _ in range(2):
        world.waiting.watch(progress)
    assert world.waiting.leaves_share
    world.clock.run_to(100.02)
    assert not world.waiting.leaves_share
    assert world.lane.wake_ups == 1


def test_an_operation_joins_untried_and_learns_whether_the_queue_exists() -> None:
    world = World()
    operation = get(options=WAITS, wait=Wait(None))
    world.waiting.join(operation)
    assert world.waiting.existed
    world.waiting.note_existence(exists=False)
    assert not world.waiting.existed
    late = get(options=WAITS, wait=Wait(None))
    world.waiting.join(late)
    world.waiting.note_existence(exists=True)
    assert (operation.options.must_exist, late.options.must_exist) == (False, True)


@pytest.mark.parametrize(("name", "tries"), [(b"q", 0), (b"log+g", 1)])
def test_an_untried_operation_is_tried_if_the_queue_may_be_that_of_a_new_group(
    name: bytes, tries: int
) -> None:
    """Its messages are in the log: no key of the queue shows them."""
    world = World()
    world.lane.name = name
    world.waiting.join(get(options=WAITS, wait=Wait(None)))
    world.waiting.note_existence(exists=True)
    assert world.lane.wake_ups == tries


def test_the_operations_of_one_command_are_not_tried_one_after_the_other() -> None:
    world = World()
    looked = list[int]()
    ticket = Ticket(look_again=lambda: looked.append(1))
    world.in_vain(get(options=WAITS, wait=Wait(None, ticket=ticket)))
    world.waiting.try_all()
    assert looked == [1]
    assert world.lane.wake_ups == 0
    world.waiting_gets(1)
    world.waiting.try_all()
    assert world.lane.wake_ups == 1


def test_operations_that_wait_are_not_tried_while_the_backend_is_lost() -> None:
    world = World()
    (waiting,) = world.waiting_gets(1)
    world.shard.is_up = False
    world.waiting.try_all()
    assert world.lane.wake_ups == 0
    fresh = get()
    assert world.waiting.next_operations([fresh], woken=True) == [fresh]
    world.shard.is_up = True
    world.waiting.try_all()
    assert world.lane.wake_ups == 1
    assert world.waiting.next_operations([], woken=True) == [waiting]


def test_an_operation_whose_ticket_another_has_waits_untried() -> None:
    world = World()
    ticket = Ticket()
    holder, operation = Wait(ticket=ticket), get(options=WAITS, wait=Wait(None, ticket=ticket))
    assert ticket.try_acquire(holder, lambda: None)
    assert not world.waiting.admits(operation)
    assert len(world.waiting) == 1
    holder.end(served=False)
    assert world.lane.wake_ups == 1
    assert world.waiting.next_operations([], woken=True) == [operation]
    assert world.waiting.admits(get())


def test_an_operation_whose_command_is_served_elsewhere_is_dropped() -> None:
    world = World()
    ticket = Ticket(served=True)
    assert not world.waiting.admits(get(options=WAITS, wait=Wait(None, ticket=ticket)))
    assert len(world.waiting) == 0
