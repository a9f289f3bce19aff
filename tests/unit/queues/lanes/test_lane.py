"""A lane: which operations go in its blocks, in which order, and what follows from each reply."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import hiredis
import pytest

from pressure_server.backend.trouble import MAX_DEATHS
from pressure_server.errors import (
    BackendAwayError,
    BackendError,
    NotSafeError,
    OutcomeUnknownError,
    QueueDoesNotExistError,
    UnansweredError,
)
from pressure_server.lua.layout import BlockField
from pressure_server.queues.calls.call import Block, Part
from pressure_server.queues.calls.courier import Courier
from pressure_server.queues.lanes.lane import Lane
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.options import WAITS
from pressure_server.queues.operations.wait import Wait, WaiterCount
from pressure_server.queues.policy import Policy
from pressure_server.queues.shard import Shard
from tests.unit.queues.fake_link import call_without_courier
from tests.unit.queues.operations_of import Recorder, get, put

NO_BOUND, BOUND, NO_QUEUE = 0, -1, -2


class FakeCourier(Courier):
    """A courier that notes what lanes ask for."""

    def __init__(self) -> None:
        # Blocks of lanes that are asked for: whether each goes before all others.
        self.asked: list[bool] = []
        self.sent_ahead: list[Part] = []
        self.sent: list[Block] = []

    def ready(self, part: Part, *, goes_first: bool = False) -> None:
        if isinstance(part, Block):
            self.sent.append(part)
        else:
            self.asked.append(goes_first)

    def send_ahead(self, part: Part) -> None:
        self.sent_ahead.append(part)


class FakeShard(Shard):
    """A shard that notes what its lane asks for."""

    courier: FakeCourier

    def __init__(self, *, is_durable: bool) -> None:
        self.is_stopping = False
        self.policy = Policy()
        self.is_durable = is_durable
        self.peer_count = 0
        self.waiters = WaiterCount(10)
        self.courier = FakeCourier()
        self.dropped = 0
        self.existence: list[tuple[bytes, bool]] = []
        self.woken: list[bytes] = []
        self.later: list[Callable[[], None]] = []
        self.followers_of_durability: list[Callable[[BackendError | None], None]] = []
        self.followers_of_return: list[Callable[[], None]] = []
        self.notifications = self.role_turns = cast(Any, self)
        # No time passes.
        self.loop = cast(
            Any, SimpleNamespace(time=lambda: 0.0, call_at=lambda *_: SimpleNamespace(cancel=lambda: None))
        )

    @property
    def is_up(self) -> bool:
        return True

    # Nothing changes, and no role is handed over.

    def arm(self, *_watched: object, own: bool = False) -> None: ...

    def leave(self, *_watched: object) -> None: ...

    def ask(self, *_role: object) -> None: ...

    # What is noted.

    def drop(self, _lane: Lane) -> None:
        self.dropped += 1

    def note_existence(self, name: bytes, *, exists: bool) -> bool:
        self.existence.append((name, exists))
        return True

    def wake_up(self, names: Iterable[bytes]) -> None:
        self.woken += names

    def after_iterations(self, _number: int, follows: Callable[[], None]) -> None:
        self.later.append(follows)

    def when_durable(self, follows: Callable[[BackendError | None], None]) -> None:
        self.followers_of_durability.append(follows)

    def when_back(self, follows: Callable[[], None]) -> None:
        self.followers_of_return.append(follows)


class Driven:
    """A lane of a fake shard. The test replies to its blocks."""

    def __init__(self, *, is_durable: bool = False) -> None:
        self.shard = FakeShard(is_durable=is_durable)
        self.lane = Lane(self.shard, b"q", b"p:q")
        self.call = call_without_courier()

    def submit(self, *operations: Operation) -> None:
        """Submit operations, as the shard does."""
        self.lane.pending += operations
        self.lane.is_idle = False

    def pack(self) -> list[bytes]:
        """Return the runs of the next block; empty if there is none."""
        self.call = call_without_courier()
        self.lane.pack_into(self.call)
        return self.call.arguments.unpacked()[len(BlockField) :]

    def put_back(self, operation: Operation) -> None:
        """See Delivery."""
        self.lane.put_backs.put_back(operation)

    def reply(self, *reply: Any, delivery: Delivery | None = None) -> None:
        self.lane.received(list(reply), delivery)


@pytest.fixture
def driven() -> Driven:
    return Driven()


def length() -> Operation:
    return Operation(verbs.LENGTH, b"q", [], 1, Recorder())


def ended(*operations: Operation) -> list[bool]:
    """Return which of the operations have ended; none may have ended twice."""
    owners = [operation.owner for operation in operations]
    assert all(isinstance(owner, Recorder) and len(owner.ended) <= 1 for owner in owners)
    return [isinstance(owner, Recorder) and bool(owner.ended) for owner in owners]


def test_one_operation_makes_the_same_block_as_the_general_path(driven: Driven) -> None:
    driven.submit(put(b"a b"))
    fast, fast_call = driven.pack(), driven.call
    general = Driven()
    general.shard.peer_count = 1
    general.submit(put(b"a b"))
    assert general.pack() == fast == [b"put", b"3", b"2", b"a", b"b"]
    assert fast_call.keys.unpacked() == general.call.keys.unpacked() == [b"p:q"]
    for call in (fast_call, general.call):
        assert (call.has_changes, call.takes) == (True, False)


def test_all_pending_operations_go_in_one_block_and_none_while_it_is_in_flight(driven: Driven) -> None:
    first, second, third = put(b"a"), get(), get()
    driven.submit(first, second)
    assert driven.pack() == [b"put", b"2", b"", b"a", b"get", b"1", b"1"]
    driven.submit(third)
    assert driven.pack() == []
    driven.reply(NO_BOUND, 0, [b"a"])
    assert ended(first, second, third) == [True, True, False]
    assert driven.shard.courier.asked == [False]
    assert driven.pack() == [b"get", b"1", b"1"]
    assert driven.shard.dropped == 0
    driven.reply(NO_BOUND, [])
    assert (driven.shard.dropped, driven.lane.is_idle) == (1, True)


def test_the_keys_of_a_move_are_those_of_both_queues(driven: Driven) -> None:
    moving = Operation(verbs.MOVE, b"q", [b"p:d"], 1, Recorder(), wait=Wait(None, destination=b"d"))
    driven.submit(moving)
    driven.pack()
    assert driven.call.keys.unpacked() == [b"p:q", b"p:d"]


def test_a_get_of_a_client_that_has_gone_is_not_sent(driven: Driven) -> None:
    gone, stays = get(), get()
    driven.submit(gone, stays)
    driven.lane.cancel(gone)
    assert driven.pack() == [b"get", b"1", b"1"]
    driven.reply(NO_BOUND, [b"a"])
    assert stays.results == [b"a"]
    assert ended(gone) == [False]


def test_a_put_of_a_client_that_has_gone_is_done(driven: Driven) -> None:
    gone = put(b"a")
    driven.submit(gone)
    driven.lane.cancel(gone)
    assert driven.pack() == [b"put", b"2", b"", b"a"]


def test_what_is_left_of_a_block_goes_before_later_operations(driven: Driven) -> None:
    first, second, later = get(2), get(2), put(b"a")
    driven.submit(first, second)
    driven.pack()
    driven.submit(later)
    driven.reply(1, [b"a", b"b", b"c"])
    assert ended(first, second, later) == [True, False, False]
    assert isinstance(second.owner, Recorder)
    assert second.owner.partly == [second]
    assert driven.pack() == [b"get", b"1", b"1", b"put", b"2", b"", b"a"]
    driven.reply(NO_BOUND, [b"d"], 0)
    assert second.results == [b"c", b"d"]


def test_operations_end_in_the_order_of_the_block(driven: Driven) -> None:
    operations = [get() for _ in range(3)]
    driven.submit(*operations)
    driven.pack()
    driven.reply(NO_BOUND, [b"a", b"b", b"c"])
    assert [operation.end_order for operation in operations] == [1, 2, 3]


def test_with_many_operations_pending_the_next_block_leaves_before_the_last_is_handed_out(
    driven: Driven,
) -> None:
    driven.submit(length())
    driven.pack()
    driven.submit(*[length() for _ in range(15)])
    driven.reply(NO_BOUND, 1)
    assert driven.shard.courier.sent_ahead == []
    driven.pack()
    driven.submit(*[length() for _ in range(16)])
    driven.reply(NO_BOUND, 1)
    assert driven.shard.courier.sent_ahead == [driven.lane]


def test_no_block_leaves_ahead_of_messages_that_go_back(driven: Driven) -> None:
    gone = get()
    driven.submit(gone)
    driven.pack()
    driven.lane.cancel(gone)
    driven.submit(*[length() for _ in range(20)])
    driven.reply(NO_BOUND, [b"a"])
    assert driven.shard.courier.sent_ahead == []


@pytest.mark.parametrize(
    ("state", "bounded", "exists"),
    [(NO_BOUND, False, True), (BOUND, True, True), (NO_QUEUE, True, False)],
)
def test_a_reply_says_whether_the_queue_exists_and_has_a_bound(
    driven: Driven, state: int, bounded: bool, exists: bool
) -> None:
    driven.submit(length())
    driven.pack()
    driven.reply(state, 1)
    assert (driven.lane.may_be_bounded, driven.lane.bound_state) == (bounded, state)
    assert driven.shard.existence == [(b"q", exists)]
    driven.lane.forget_queue()
    assert (driven.lane.may_be_bounded, driven.lane.bound_state) == (True, None)


def test_a_reply_that_leaves_something_says_nothing_of_the_queue(driven: Driven) -> None:
    driven.submit(get(3))
    driven.pack()
    driven.reply(2, [b"a"])
    assert driven.shard.existence == []


def test_an_operation_waits_and_is_tried_with_the_put_that_serves_it(driven: Driven) -> None:
    waiting = get(options=WAITS, wait=Wait(None))
    driven.submit(waiting)
    driven.pack()
    driven.reply(NO_BOUND, [])
    assert isinstance(waiting.owner, Recorder)
    assert waiting.owner.waiting == [waiting]
    assert driven.shard.dropped == 0
    driven.submit(put(b"a"))
    assert driven.pack() == [b"get existing waits", b"1", b"1", b"put", b"2", b"", b"a"]
    driven.reply([NO_BOUND, 1, [b"a"]], [], 0)
    assert (waiting.results, driven.shard.dropped) == ([b"a"], 1)


def test_a_wake_up_tries_waiting_operations_even_if_it_comes_during_a_call(driven: Driven) -> None:
    waiting = get(options=WAITS, wait=Wait(None))
    driven.submit(waiting)
    driven.pack()
    driven.reply(NO_BOUND, [])
    driven.lane.wake_up()
    assert driven.shard.courier.asked == [False]
    assert driven.pack() == [b"get existing waits", b"1", b"1"]
    driven.lane.wake_up()
    driven.reply(NO_BOUND, [])
    assert driven.shard.courier.asked == [False, False]
    assert driven.pack() == [b"get existing waits", b"1", b"1"]


def test_a_wake_up_of_a_lane_on_which_no_operation_waits_does_nothing(driven: Driven) -> None:
    driven.lane.wake_up()
    assert driven.shard.courier.asked == []


def test_a_refused_block_fails_its_operations(driven: Driven) -> None:
    first, second = put(b"a"), get()
    driven.submit(first, second)
    driven.pack()
    driven.lane.received(hiredis.ReplyError("NOQUEUE"), None)
    assert ended(first, second) == [True, True]
    assert isinstance(first.error, QueueDoesNotExistError)


def test_if_the_backend_is_out_of_memory_only_puts_fail(driven: Driven) -> None:
    putting, getting = put(b"a"), get()
    driven.submit(putting, getting)
    driven.pack()
    driven.lane.received(hiredis.ReplyError("OOM command not allowed"), None)
    assert ended(putting, getting) == [True, False]
    assert driven.pack() == [b"get", b"1", b"1"]


def test_only_what_changes_something_has_an_unknown_outcome(driven: Driven) -> None:
    putting, asking = put(b"a"), length()
    driven.submit(putting, asking)
    driven.pack()
    driven.lane.received(OutcomeUnknownError(), None)
    assert type(putting.error) is OutcomeUnknownError
    assert type(asking.error) is UnansweredError


def test_changes_end_when_they_are_durable() -> None:
    driven = Driven(is_durable=True)
    putting = put(b"a")
    driven.submit(putting)
    driven.pack()
    driven.reply(NO_BOUND, 0)
    assert ended(putting) == [False]
    (follows,) = driven.shard.followers_of_durability
    follows(None)
    assert ended(putting) == [True]
    assert putting.results == [1]


def test_changes_that_are_not_durable_fail() -> None:
    driven = Driven(is_durable=True)
    putting = put(b"a")
    driven.submit(putting)
    driven.pack()
    driven.reply(NO_BOUND, 0)
    error = NotSafeError("fsync", "the disk is full")
    driven.shard.followers_of_durability[0](error)
    assert (putting.results, putting.error) == ([], error)


def test_what_changes_nothing_does_not_wait_to_be_durable() -> None:
    driven = Driven(is_durable=True)
    asking, empty = length(), get()
    driven.submit(asking, empty)
    driven.pack()
    driven.reply(NO_BOUND, 1, [])
    if driven.shard.followers_of_durability:
        driven.shard.followers_of_durability[0](None)
    assert ended(asking, empty) == [True, True]
    only = Driven(is_durable=True)
    question = length()
    only.submit(question)
    only.pack()
    only.reply(NO_BOUND, 1)
    assert ended(question) == [True]
    assert only.shard.followers_of_durability == []


def taken(driven: Driven, number: int, *messages: bytes) -> Operation:
    """Return a get that has got messages by the call of that number."""
    operation = get(len(messages))
    delivery = Delivery(number, lambda: None, driven.put_back)
    driven.submit(operation)
    driven.pack()
    driven.reply(NO_BOUND, list(messages), delivery=delivery)
    delivery.end_sharing_out()
    assert operation.deliveries
    return operation


def test_messages_go_back_together_and_those_of_later_calls_first(driven: Driven) -> None:
    """So those that were taken first are at the head again."""
    first, second, third = (taken(driven, number, b"%d" % number) for number in (1, 2, 3))
    for operation in (second, first, third):
        operation.put_back()
    assert driven.lane.has_put_backs
    driven.submit(length())
    assert driven.pack() == [], "nothing is sent until all have gathered"
    (follows,) = driven.shard.later
    follows()
    assert driven.shard.courier.asked[-1] is True
    backs = driven.pack()
    assert backs == [word for number in (b"3", b"2", b"1") for word in (b"put_back", b"2", number, number)]
    driven.reply(NO_BOUND, 1, 1, 1)
    assert not driven.lane.has_put_backs
    assert driven.pack() == [b"length", b"0"]


def test_messages_that_a_block_in_flight_takes_go_back_with_the_others(driven: Driven) -> None:
    first, second = taken(driven, 1, b"1"), get()
    driven.submit(second)
    driven.pack()
    first.put_back()
    driven.shard.later.pop()()
    assert driven.pack() == []
    delivery = Delivery(2, lambda: None, driven.put_back)
    driven.reply(NO_BOUND, [b"2"], delivery=delivery)
    second.put_back()
    driven.shard.later.pop()()
    assert driven.pack() == [b"put_back", b"2", b"2", b"2", b"put_back", b"2", b"1", b"1"]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_put_back_without_a_reply_is_sent_again_if_it_was_not_done(driven: Driven, is_done: bool) -> None:
    operation = taken(driven, 1, b"m")
    assert operation.deliveries is not None
    ((delivery, _),) = operation.deliveries
    operation.put_back()
    driven.shard.later.pop()()
    driven.pack()
    call = driven.call
    driven.lane.received(OutcomeUnknownError(), None)
    assert driven.shard.courier.sent == []
    call.resolve(1 if is_done else 0)
    assert len(driven.shard.courier.sent) == (0 if is_done else 1)
    if not is_done:
        (block,) = driven.shard.courier.sent
        assert list(block.arguments) == [b"put_back", b"2", b"1", b"m"]
        block.received([NO_BOUND, 1], None)
    assert not delivery.undelivered
    assert driven.shard.woken == [b"q"]


@pytest.mark.parametrize("error", [BackendAwayError("away"), OutcomeUnknownError()])
def test_only_what_waits_for_a_message_waits_through_an_outage(driven: Driven, error: BackendError) -> None:
    """A removal that has waited for a role may be done already, and must not be done twice."""
    removing = Operation(verbs.REMOVE, b"q", [b"m"], 1, Recorder(), wait=Wait())
    assert removing.wait is not None
    removing.wait.in_line = True
    waiting = get(options=WAITS, wait=Wait(None))
    driven.submit(waiting, removing)
    driven.pack()
    driven.lane.received(error, None)
    assert ended(waiting, removing) == [False, True]
    assert removing.error is not None


def test_a_take_that_may_kill_the_backend_is_given_up(driven: Driven) -> None:
    waiting = get(options=WAITS, wait=Wait(None))
    driven.submit(waiting)
    for _ in range(MAX_DEATHS):
        assert not any(ended(waiting))
        driven.pack()
        driven.lane.received(OutcomeUnknownError(), None)
        driven.lane.wake_up()
    assert type(waiting.error) is OutcomeUnknownError


def test_a_put_back_that_is_refused_is_sent_again_when_the_backend_is_back(driven: Driven) -> None:
    taken(driven, 1, b"m").put_back()
    driven.shard.later.pop()()
    driven.pack()
    driven.lane.received(hiredis.ReplyError("MISCONF no"), None)
    assert driven.shard.courier.sent == []
    driven.shard.followers_of_return.pop()()
    assert len(driven.shard.courier.sent) == 1
