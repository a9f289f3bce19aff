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
from tests.unit.queues.operations_of import Recorder, get, put, wait_of

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
        self.existence: list[tuple[bytes, bool]] = []
        self.woken: list[bytes] = []
        self.later: list[Callable[[], None]] = []
        self.run = "first"
        self.followers_of_durability: list[Callable[[BackendError | None], None]] = []
        self.waited_for: list[str] = []
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

    def forget(self, _lane: Lane) -> None: ...

    # What is noted.

    def note_existence(self, name: bytes, *, exists: bool) -> bool:
        self.existence.append((name, exists))
        return True

    def wake_up(self, names: Iterable[bytes]) -> None:
        self.woken += names

    def after_iterations(self, _number: int, follows: Callable[[], None]) -> None:
        self.later.append(follows)

    @property
    def unsafe_run(self) -> str:
        return self.run

    def when_durable(self, follows: Callable[[BackendError | None], None], run: str = "") -> None:
        self.followers_of_durability.append(follows)
        self.waited_for.append(run or self.run)

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
        return self.call.arguments()[len(BlockField) :]

    def send(self, *operations: Operation) -> list[bytes]:
        """Submit operations, and return the runs of the next block."""
        self.submit(*operations)
        return self.pack()

    def put_back(self, operation: Operation) -> None:
        """See Delivery."""
        self.lane.put_backs.put_back(operation)

    def reply(self, *reply: Any, delivery: Delivery | None = None) -> None:
        self.lane.received(list(reply), delivery)

    def fail(self, error: Exception) -> None:
        """Let the block in flight end without a reply, or be refused."""
        self.lane.received(error, None)


@pytest.fixture
def driven() -> Driven:
    return Driven()


def length() -> Operation:
    return Operation(verbs.LENGTH, b"q", [], 1, Recorder())


def waiting_get() -> Operation:
    return get(options=WAITS, wait=Wait(None))


def ended(*operations: Operation) -> list[bool]:
    """Return which of the operations have ended; none may have ended twice."""
    owners = [cast(Recorder, operation.owner) for operation in operations]
    assert all(len(owner.ended) <= 1 for owner in owners)
    return [bool(owner.ended) for owner in owners]


def test_one_operation_makes_the_same_block_as_the_general_path(driven: Driven) -> None:
    general = Driven()
    general.shard.peer_count = 1
    assert general.send(put(b"a b")) == driven.send(put(b"a b")) == [b"put", b"3", b"2", b"a", b"b"]
    for call in (driven.call, general.call):
        assert (call.keys, call.has_changes, call.takes) == ([b"p:q"], True, False)


def test_all_pending_operations_go_in_one_block_and_none_while_it_is_in_flight(driven: Driven) -> None:
    operations = put(b"a"), get(), get()
    assert driven.send(*operations[:2]) == [b"put", b"2", b"", b"a", b"get", b"1", b"1"]
    assert driven.send(operations[2]) == []
    driven.reply(NO_BOUND, 0, [b"a"])
    assert ended(*operations) == [True, True, False]
    assert [operation.end_order for operation in operations[:2]] == [1, 2]
    assert driven.shard.courier.asked == [False]
    assert driven.pack() == [b"get", b"1", b"1"]
    assert driven.lane.is_in_use
    driven.reply(NO_BOUND, [])
    assert not driven.lane.is_in_use


def test_the_keys_of_a_move_are_those_of_both_queues(driven: Driven) -> None:
    driven.send(Operation(verbs.MOVE, b"q", [b"p:d"], 1, Recorder(), wait=Wait(None, destination=b"d")))
    assert driven.call.keys == [b"p:q", b"p:d"]


def test_of_a_client_that_has_gone_a_get_is_not_sent_and_a_put_is_done(driven: Driven) -> None:
    gone, putting, stays = get(), put(b"m"), get()
    driven.submit(gone, putting, stays)
    for operation in (gone, putting):
        driven.lane.cancel(operation)
    assert driven.pack() == [b"put", b"2", b"", b"m", b"get", b"1", b"1"]
    driven.reply(NO_BOUND, 0, [b"a"])
    assert stays.results == [b"a"]
    assert ended(gone) == [False]


def test_what_is_left_of_a_block_goes_before_later_operations(driven: Driven) -> None:
    first, second, later = get(2), get(2), put(b"a")
    driven.send(first, second)
    driven.submit(later)
    driven.reply(1, [b"a", b"b", b"c"])
    assert ended(first, second, later) == [True, False, False]
    assert cast(Recorder, second.owner).partly == [second]
    assert driven.shard.existence == []  # such a reply does not say whether the queue exists
    assert driven.pack() == [b"get", b"1", b"1", b"put", b"2", b"", b"a"]
    driven.reply(NO_BOUND, [b"d"], 0)
    assert second.results == [b"c", b"d"]


@pytest.mark.parametrize(
    ("pending", "goes_back", "is_ahead"), [(15, False, False), (16, False, True), (16, True, False)]
)
def test_with_many_operations_pending_the_next_block_leaves_before_the_last_is_handed_out(
    driven: Driven, pending: int, goes_back: bool, is_ahead: bool
) -> None:
    """But not before messages that go back."""
    getting = get()
    driven.send(getting)
    if goes_back:
        driven.lane.cancel(getting)
    driven.submit(*[length() for _ in range(pending)])
    driven.reply(NO_BOUND, [b"a"])
    assert driven.shard.courier.sent_ahead == [driven.lane] * is_ahead


@pytest.mark.parametrize(
    ("state", "bounded", "exists"),
    [(NO_BOUND, False, True), (BOUND, True, True), (NO_QUEUE, True, False)],
)
def test_a_reply_says_whether_the_queue_exists_and_has_a_bound(
    driven: Driven, state: int, bounded: bool, exists: bool
) -> None:
    driven.send(length())
    driven.reply(state, 1)
    assert (driven.lane.may_be_bounded, driven.lane.bound_state) == (bounded, state)
    assert driven.shard.existence == [(b"q", exists)]
    driven.lane.forget_queue()
    assert (driven.lane.may_be_bounded, driven.lane.bound_state) == (True, None)


def test_an_operation_waits_and_is_tried_with_the_put_that_serves_it(driven: Driven) -> None:
    waiting = waiting_get()
    driven.send(waiting)
    driven.reply(NO_BOUND, [])
    assert cast(Recorder, waiting.owner).waiting == [waiting]
    assert driven.lane.is_in_use
    assert driven.send(put(b"a")) == [b"get existing waits", b"1", b"1", b"put", b"2", b"", b"a"]
    driven.reply([NO_BOUND, 1, [b"a"]], [], 0)
    assert (waiting.results, driven.lane.is_in_use) == ([b"a"], False)


def test_a_wake_up_tries_waiting_operations_even_if_it_comes_during_a_call(driven: Driven) -> None:
    driven.lane.wake_up()
    assert driven.shard.courier.asked == [], "no operation waits"
    driven.send(waiting_get())
    driven.reply(NO_BOUND, [])
    driven.lane.wake_up()
    assert driven.shard.courier.asked == [False]
    assert driven.pack() == [b"get existing waits", b"1", b"1"]
    driven.lane.wake_up()
    driven.reply(NO_BOUND, [])
    assert driven.shard.courier.asked == [False, False]
    assert driven.pack() == [b"get existing waits", b"1", b"1"]


@pytest.mark.parametrize(
    ("refusal", "of_put", "of_question"),
    [
        (hiredis.ReplyError("NOQUEUE"), QueueDoesNotExistError, QueueDoesNotExistError),
        # If the backend is out of memory, only puts fail.
        (hiredis.ReplyError("OOM command not allowed"), BackendError, None),
        # Only what changes something has an unknown outcome.
        (OutcomeUnknownError(), OutcomeUnknownError, UnansweredError),
    ],
)
def test_a_refused_block_fails_its_operations(
    driven: Driven, refusal: Exception, of_put: type[Exception], of_question: type[Exception] | None
) -> None:
    putting, asking = put(b"a"), length()
    driven.send(putting, asking)
    driven.fail(refusal)
    assert ended(putting, asking) == [True, of_question is not None]
    assert type(putting.error) is of_put
    if of_question is None:
        assert driven.pack() == [b"length", b"0"]
    else:
        assert type(asking.error) is of_question


@pytest.mark.parametrize(("error", "results"), [(None, [1]), (NotSafeError("fsync", "the disk is full"), [])])
def test_changes_end_when_they_are_durable_or_fail(error: BackendError | None, results: list[int]) -> None:
    driven, putting = Driven(is_durable=True), put(b"a")
    driven.send(putting)
    driven.reply(NO_BOUND, 0)
    assert ended(putting) == [False]
    (follows,) = driven.shard.followers_of_durability
    follows(error)
    assert ended(putting) == [True]
    assert (putting.results, putting.error) == (results, error)


def test_a_put_that_two_runs_of_the_backend_have_done_waits_for_the_first() -> None:
    driven, putting = Driven(is_durable=True), put(b"a", b"b")
    driven.send(putting)
    driven.reply(NO_BOUND, [b"part", 1, 1, []])
    driven.shard.run = "second"
    driven.lane.wake_up()
    driven.pack()
    driven.reply(NO_BOUND, 1)
    assert driven.shard.waited_for == ["first"]


def test_what_changes_nothing_does_not_wait_to_be_durable() -> None:
    driven, asking, empty = Driven(is_durable=True), length(), get()
    driven.send(asking)
    driven.reply(NO_BOUND, 1)
    driven.send(empty)
    driven.reply(NO_BOUND, [])
    assert ended(asking, empty) == [True, True]
    assert driven.shard.followers_of_durability == []


def taken(driven: Driven, number: int, *messages: bytes) -> Operation:
    """Return a get that has got messages by the call of that number."""
    operation = get(len(messages))
    delivery = Delivery(number, lambda: None, driven.put_back)
    driven.send(operation)
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
    assert driven.send(length()) == [], "nothing is sent until all have gathered"
    (follows,) = driven.shard.later
    follows()
    assert driven.shard.courier.asked[-1] is True
    assert driven.pack() == [
        word for number in (b"3", b"2", b"1") for word in (b"put_back", b"2", number, number)
    ]
    driven.reply(NO_BOUND, 1, 1, 1)
    assert not driven.lane.has_put_backs
    assert driven.pack() == [b"length", b"0"]


def test_messages_that_a_block_in_flight_takes_go_back_with_the_others(driven: Driven) -> None:
    first, second = taken(driven, 1, b"1"), get()
    driven.send(second)
    first.put_back()
    driven.shard.later.pop()()
    assert driven.pack() == []
    driven.reply(NO_BOUND, [b"2"], delivery=Delivery(2, lambda: None, driven.put_back))
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
    driven.fail(OutcomeUnknownError())
    assert driven.shard.courier.sent == []
    call.resolve(1 if is_done else 0)
    assert [list(block.arguments) for block in driven.shard.courier.sent] == (
        [] if is_done else [[b"put_back", b"2", b"1", b"m"]]
    )
    for block in driven.shard.courier.sent:
        block.received([NO_BOUND, 1], None)
    assert not delivery.undelivered
    assert driven.shard.woken == [b"q"]


@pytest.mark.parametrize("error", [BackendAwayError("away"), OutcomeUnknownError()])
def test_only_what_waits_for_a_message_waits_through_an_outage(driven: Driven, error: BackendError) -> None:
    """A removal that has waited for a role may be done already, and must not be done twice."""
    removing = Operation(verbs.REMOVE, b"q", [b"m"], 1, Recorder(), wait=Wait())
    wait_of(removing).in_line = True
    waiting = waiting_get()
    driven.send(waiting, removing)
    driven.fail(error)
    assert ended(waiting, removing) == [False, True]
    assert removing.error is not None


def test_a_take_that_may_kill_the_backend_is_given_up(driven: Driven) -> None:
    waiting = waiting_get()
    driven.submit(waiting)
    for _ in range(MAX_DEATHS):
        assert not any(ended(waiting))
        driven.pack()
        driven.fail(OutcomeUnknownError())
        driven.lane.wake_up()
    assert type(waiting.error) is OutcomeUnknownError


def test_a_put_back_that_is_refused_is_sent_again_when_the_backend_is_back(driven: Driven) -> None:
    taken(driven, 1, b"m").put_back()
    driven.shard.later.pop()()
    driven.pack()
    driven.fail(hiredis.ReplyError("MISCONF no"))
    assert driven.shard.courier.sent == []
    driven.shard.followers_of_return.pop()()
    assert len(driven.shard.courier.sent) == 1
