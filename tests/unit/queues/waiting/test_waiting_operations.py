"""Waiting operations in memory: which of them are tried, when, and how long they wait."""

from collections.abc import Callable
from typing import cast

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
from pressure_server.queues.operations.block_reply import NO_NEWS, Due, News
from pressure_server.queues.operations.operation import Line, Operation, Verb
from pressure_server.queues.operations.options import DEFAULT, UNIQUE, WAITS, OnFull, Options
from pressure_server.queues.operations.wait import Ticket, Unblocking, Wait, WaitCondition, WaiterCount
from pressure_server.queues.policy import Policy
from pressure_server.queues.shard import Shard
from pressure_server.queues.waiting.waiting_operations import WaitingOperations
from tests.unit.clock import Clock
from tests.unit.queues.operations_of import Recorder, get, put, wait_of


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

    def rest_if_done(self) -> None:
        self.drops += 1


class FakeShard:
    """A shard whose queues do not change, and whose roles nobody hands over."""

    is_stopping = False
    is_up = True
    policy = Policy(put_timeout=3.0, role_timeout=2.0)

    def __init__(self, clock: Clock, limit: int) -> None:
        self.loop = clock
        self.waiters = WaiterCount(limit)
        self.submitted: list[Operation] = []
        self.notifications = self.role_turns = self

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

    def replied(
        self,
        *must_wait: Operation,
        condition: WaitCondition = WaitCondition.MESSAGE,
        news: News | None = NO_NEWS,
    ) -> None:
        """Take the reply to a block in which these operations lacked something."""
        for operation in must_wait:
            wait = operation.wait = operation.wait or Wait()
            wait.condition, wait.found_queue = condition, True
            if condition is WaitCondition.ROOM:
                wait.timeout_error = QueueFullError("q")
        progress = Progress([])
        progress.must_wait, progress.news = must_wait, news
        self.waiting.requeue(progress)
        for operation in progress.ended:
            self.lane.end(operation)
        self.waiting.watch(progress)

    def waiting_gets(
        self, number: int, timeout: float | None = None, due: Due | None = None
    ) -> list[Operation]:
        """Let gets wait. The reply says when a job is due."""
        operations = [get(options=WAITS, wait=Wait(timeout)) for _ in range(number)]
        self.replied(*operations, news=News(due=due))
        return operations

    def waiting_puts(self, number: int) -> list[Operation]:
        """Let puts wait for room."""
        operations = [put(b"m") for _ in range(number)]
        self.replied(*operations, condition=WaitCondition.ROOM)
        return operations


def test_puts_are_tried_again_when_the_message_in_their_way_expires() -> None:
    """The last reply that says when that is counts."""
    world = World()
    world.waiting_puts(2)
    for seconds in (0.5, 1.5, None):
        world.replied(news=News(room_after=seconds))
    world.clock.run_to(101.4)
    assert world.lane.wake_ups == 0
    world.clock.run_to(101.6)
    assert world.lane.wake_ups == 1
    world.replied(news=News(room_after=1.0))
    world.waiting.stop()
    world.clock.run_to(110.0)
    assert world.lane.wake_ups == 1


@pytest.mark.parametrize("ends_by", ["its time", "a request to unblock"])
def test_a_wait_goes_on_until_a_job_that_is_due_within_milliseconds(ends_by: str) -> None:
    world = World()
    (operation,) = world.waiting_gets(1, timeout=1.0, due=Due(1.005, b"note"))
    unblocking = Unblocking()
    if ends_by == "a request to unblock":
        world.clock.run_to(100.999)
        world.waiting.unblock(operation, unblocking)
    world.clock.run_to(101.004)
    assert world.ended == []
    world.clock.run_to(101.0065)
    assert world.lane.wake_ups == 1
    assert world.waiting.next_operations([], woken=True) == [operation]
    world.clock.run_to(101.02)
    assert world.ended == []  # it is in flight
    world.replied(operation)
    assert world.ended == [operation]
    assert unblocking.has_ended_wait is (ends_by == "a request to unblock")


def test_a_wait_is_extended_only_once_and_only_for_a_job_that_is_due_soon() -> None:
    world = World()
    (operation,) = world.waiting_gets(1, timeout=1.0, due=Due(1.02, b"note"))
    world.clock.run_to(101.0)
    assert world.ended == [operation]
    (other,) = world.waiting_gets(1, timeout=1.0, due=Due(1.005, b"note"))
    world.clock.run_to(102.004)
    world.replied(news=News(due=Due(0.005, b"note")))
    world.clock.run_to(102.0075)
    assert world.lane.sent_first == [other]


@pytest.mark.parametrize("verb", [verbs.GET, verbs.RESERVE, verbs.MOVE, verbs.PEEK])
@pytest.mark.parametrize("has_ticket", [False, True])
@pytest.mark.parametrize(
    ("asked_at", "due", "woken_at"),
    [
        (100.2, Due(0.2, b"note"), 100.4),
        (100.2, Due(), None),  # a job that was taken elsewhere
        # Nothing is due any longer, because another command has made the job ready.
        (100.499, Due(), 100.499),
    ],
)
def test_the_reply_to_a_question_says_anew_when_a_job_is_due(
    verb: Verb, has_ticket: bool, asked_at: float, due: Due, woken_at: float | None
) -> None:
    """Whatever waits. A call that was refused says nothing: the time that is known stays."""
    world, wait = World(), Wait(None, ticket=Ticket() if has_ticket else None)
    waiting = Operation(verb, b"q", [b"p:d"], 1, Recorder(), wait=wait, options=WAITS)
    world.replied(waiting, news=News(due=Due(0.5, b"note")))
    world.clock.run_to(asked_at)
    world.waiting.next_operations([], woken=False)
    world.replied(news=News(due=due))
    world.replied(news=None)
    world.clock.run_to(woken_at - 0.01 if woken_at and woken_at > asked_at else asked_at - 0.0001)
    assert world.lane.wake_ups == 0
    world.clock.run_to(woken_at + 0.0005 if woken_at else 100.9)
    assert world.lane.wake_ups == (woken_at is not None)
    assert len(world.waiting.next_operations([], woken=True)) == 1


def _waiting_put(world: World, *messages: bytes) -> Operation:
    operation = put(b" ".join(messages), options=UNIQUE)
    assert world.waiting.next_operations([operation], woken=False) in ([], [operation])
    return operation


@pytest.mark.parametrize("leaves", ["cancelled", "expired"])
def test_a_put_of_a_queued_message_is_tried_when_the_put_before_it_leaves(leaves: str) -> None:
    world = World()
    first = _waiting_put(world, b"new")
    first.wait = Wait(1.0)
    world.replied(first, condition=WaitCondition.ROOM)
    second = _waiting_put(world, b"queued")
    assert world.lane.wake_ups == 0
    if leaves == "cancelled":
        first.cancelled = True
        world.waiting.remove(first)
    else:
        world.clock.run_to(101.0)
    assert world.lane.wake_ups == 1
    assert world.waiting.next_operations([], woken=True) == [second]


@pytest.mark.parametrize(
    ("fresh", "woken", "gets", "puts"),
    [
        # A put with three messages lets three gets be tried, and the eight that always are.
        (lambda: put(b"a b c", options=Options(on_full=OnFull.EXCEED_BOUND)), False, 11, 0),
        (get, False, 0, 3),
        (lambda: Operation(verbs.LENGTH, b"q", [], 1, Recorder()), False, 0, 0),
        (lambda: Operation(verbs.CLOSE, b"q", [], 1, Recorder()), False, 20, 3),
        (None, True, 8, 3),
    ],
    ids=["a put", "a get", "a question", "what wakes all", "a wake-up"],
)
def test_which_waiting_operations_a_new_one_lets_be_tried(
    fresh: Callable[[], Operation] | None, woken: bool, gets: int, puts: int
) -> None:
    world = World()
    waiting_gets, waiting_puts = world.waiting_gets(20), world.waiting_puts(3)
    made = [] if fresh is None else [fresh()]
    tried = world.waiting.next_operations(made[:], woken=woken)
    assert tried == [*waiting_puts[:puts], *waiting_gets[:gets], *made]
    assert (world.waiting.count(Line.CONSUMERS), world.waiting.count(Line.PRODUCERS)) == (20 - gets, 3 - puts)


def test_a_new_put_waits_after_those_that_wait_for_room_unless_it_may_not_wait() -> None:
    world = World()
    (first,) = world.waiting_puts(1)
    late, pushy = put(b"a"), put(b"b", options=Options(on_full=OnFull.FAIL))
    impatient = put(b"c", wait=Wait(0))
    assert world.waiting.next_operations([late, pushy, impatient], woken=False) == [pushy, impatient]
    assert world.waiting.count(Line.PRODUCERS) == 2
    assert isinstance(wait_of(late).timeout_error, QueueFullError)
    assert late.options.must_exist
    assert world.waiting.next_operations([], woken=True) == [first, late]


def test_a_put_without_a_timeout_is_tried_after_those_that_have_one_unless_its_client_waits() -> None:
    world, told_to_wait = World(), Options(on_full=OnFull.WAIT)
    told = put(b"m", options=told_to_wait)
    world.replied(told, condition=WaitCondition.ROOM)
    same_client, also_told = put(b"n", owner=told.owner), put(b"o", options=told_to_wait)
    assert world.waiting.next_operations([same_client], woken=False) == []
    world.waiting.remove(same_client)
    assert world.waiting.next_operations([also_told], woken=False) == []
    world.waiting.remove(also_told)
    untold, late = put(b"a"), put(b"b")
    assert world.waiting.next_operations([untold], woken=False) == [told, untold]
    # The queue has let it wait.
    world.replied(told, untold, condition=WaitCondition.ROOM)
    assert world.waiting.next_operations([late], woken=False) == []
    assert world.waiting.count(Line.PRODUCERS) == 3


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
    world.replied(moving, condition=WaitCondition.ROOM)
    world.clock.run_to(101.0)
    assert isinstance(moving.error, QueueFullError)


@pytest.mark.parametrize("error", [None, UnblockedError()])
def test_an_operation_that_is_unblocked_ends_as_after_its_time_or_with_the_error(
    error: UnblockedError | None,
) -> None:
    world = World()
    getting, putting = get(options=WAITS, wait=Wait(1.0)), put(b"m")
    world.replied(getting)
    world.replied(putting, condition=WaitCondition.ROOM)
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
        world.replied(getting, condition=WaitCondition.CONSUMER_ROLE)
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
    world.replied(empty)
    assert world.ended == [empty]
    assert (in_vain.has_ended_wait, too_late.has_ended_wait) == (True, False)


@pytest.mark.parametrize(
    ("wait", "has_gone", "is_stopping", "error"),
    [
        (Wait(0), False, False, type(None)),
        (Wait(None), True, False, type(None)),
        (Wait(None), False, True, StoppingError),
    ],
    ids=["no time", "the client has gone", "the server stops"],
)
def test_an_operation_that_may_not_wait_ends_at_once(
    wait: Wait, has_gone: bool, is_stopping: bool, error: type[object]
) -> None:
    world, operation = World(), get(options=WAITS, wait=wait)
    world.shard.is_stopping, operation.cancelled = is_stopping, has_gone
    world.replied(operation)
    assert world.ended == [operation]
    assert type(operation.error) is error
    assert (len(world.shard.waiters), len(world.waiting)) == (0, 0)


def test_the_number_of_waiting_operations_is_limited() -> None:
    world = World(limit=1)
    first, second = get(options=WAITS, wait=Wait(None)), get(options=WAITS, wait=Wait(None))
    world.replied(first, second)
    assert world.ended == [second]
    assert isinstance(second.error, WaitLimitError)
    # An operation that waits already is not counted again.
    assert world.waiting.next_operations([], woken=True) == [first]
    world.replied(first)
    assert world.ended == [second]


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
    world.replied(put(b"m"), condition=WaitCondition.REMOVED)
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
    for _ in range(2):
        world.replied(news=News(left_for_others=True))
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
    world.replied(get(options=WAITS, wait=Wait(None, ticket=ticket)))
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
    world, ticket = World(), Ticket()
    holder, operation = Wait(ticket=ticket), get(options=WAITS, wait=Wait(None, ticket=ticket))
    assert ticket.try_acquire(holder, lambda: None)
    assert not world.waiting.admits(operation)
    assert len(world.waiting) == 1
    holder.end(served=False)
    assert world.lane.wake_ups == 1
    assert world.waiting.next_operations([], woken=True) == [operation]
    assert world.waiting.admits(get())
    served = get(options=WAITS, wait=Wait(None, ticket=Ticket(served=True)))
    assert not world.waiting.admits(served)
    assert len(world.waiting) == 0
