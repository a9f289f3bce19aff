"""Operations: which commands become part of one, what it has taken and given back, and how it fails."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.errors import QueueClosedError
from pressure_server.queues.lanes.put_backs import put_back_operations
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.flagged import Flagged
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.options import DEFAULT, UNIQUE, Options
from pressure_server.queues.operations.wait import Wait
from tests.unit.queues.operations_of import Recorder, get, put, taken_by

CLOSED = QueueClosedError("q")


def encode(operation: Operation) -> bytes:
    """Return a line for each command, with its messages."""
    first, lines = 0, b""
    for size in operation.sizes:
        lines += b" ".join(operation.results[first : first + size]) + b"\n"
        first += size
    return lines


def extensible(wait: Wait | None = None, options: Options = DEFAULT) -> Operation:
    return Operation(verbs.PUT, b"q", [b"a"], 1, Recorder(), encode, wait=wait, options=options)


def test_an_equal_command_becomes_part_of_an_operation() -> None:
    operation = extensible()
    assert operation.may_extend(verbs.PUT, b"q", encode, DEFAULT)
    operation.extend([b"b", b"c", b"d", b"e"], 2, 2)
    assert (operation.sizes, operation.messages, operation.wanted) == (
        [1, 2, 2], [b"a", b"b", b"c", b"d", b"e"], 5,
    )  # fmt: skip


def test_no_other_command_becomes_part_of_it_and_none_if_it_is_sent_or_waits_or_stands_alone() -> None:
    operation, sealed, alone = extensible(), extensible(), Options(if_none_taken=True)
    sealed.is_sealed = True
    assert not operation.may_extend(verbs.GET, b"q", encode, DEFAULT)
    assert not operation.may_extend(verbs.PUT, b"r", encode, DEFAULT)
    assert not operation.may_extend(verbs.PUT, b"q", lambda _: b"", DEFAULT)
    assert not operation.may_extend(verbs.PUT, b"q", encode, UNIQUE)
    assert not sealed.may_extend(verbs.PUT, b"q", encode, DEFAULT)
    assert not extensible(Wait()).may_extend(verbs.PUT, b"q", encode, DEFAULT)
    assert not extensible(options=alone).may_extend(verbs.PUT, b"q", encode, alone)


def test_what_is_left_counts_in_commands_for_puts_and_in_messages_for_takes() -> None:
    putting, getting = put(b"a b", b"c"), get(2, commands=2)
    assert (putting.units_in_call, getting.units_in_call) == (2, 4)
    putting.results, getting.results = [2], [b"a", b"b", b"c"]
    assert (putting.units_in_call, getting.units_in_call) == (1, 1)
    assert not putting.can_end
    assert getting.can_end
    putting.commands_in_call = 0
    assert putting.units_in_call == 0


def test_the_bytes_of_a_call_are_those_of_its_commands() -> None:
    operation = put(b"a bb", b"ccc", b"dddd e")
    assert operation.bytes_in_call() == 11
    operation.results, operation.commands_in_call = [2], 1
    assert operation.bytes_in_call() == 3


@pytest.mark.parametrize(
    ("operation", "done", "results", "error"),
    [
        (put(b"a", b"b"), [], [], CLOSED),
        # The commands that are done keep their results, and a take its messages.
        (put(b"a", b"b c", b"d"), [1], [1, CLOSED, CLOSED], None),
        (get(3), [b"a"], [b"a"], None),
    ],
)
def test_a_failure_is_that_of_what_is_not_done(
    operation: Operation, done: list[object], results: list[object], error: Exception | None
) -> None:
    operation.results = done
    operation.fail(CLOSED)
    assert (operation.results, operation.error) == (results, error)


class Call:
    """A call that brings messages. It notes when all have arrived, and what goes back."""

    def __init__(self, number: int = 1) -> None:
        self.arrivals = 0
        self.back: list[Operation] = []
        self.delivery = Delivery(number, self._arrived, self.back.append)

    def _arrived(self) -> None:
        self.arrivals += 1

    def bring(self, operation: Operation, *messages: bytes) -> None:
        operation.results += messages
        self.delivery.add([operation])


@pytest.mark.parametrize("is_shared_out", ["before", "after"])
def test_a_call_is_done_when_its_messages_are_shared_out_and_the_last_has_arrived(is_shared_out: str) -> None:
    call, first, second = Call(), get(), get()
    call.bring(first, b"a")
    call.bring(second, b"b")
    if is_shared_out == "before":
        call.delivery.end_sharing_out()
    first.acknowledge()
    assert call.delivery.undelivered
    assert call.arrivals == 0
    second.acknowledge()
    if is_shared_out == "after":
        assert call.arrivals == 0
        call.delivery.end_sharing_out()
    assert (call.arrivals, call.delivery.undelivered) == (1, {})
    second.acknowledge()
    assert call.arrivals == 1


def test_messages_of_several_calls_are_acknowledged_together() -> None:
    calls, operation = [Call(1), Call(2)], get(2)
    for number, call in enumerate(calls):
        call.bring(operation, b"%d" % number)
        call.delivery.end_sharing_out()
    operation.acknowledge()
    assert [call.arrivals for call in calls] == [1, 1]


def test_only_an_operation_that_has_taken_something_puts_back() -> None:
    call, empty, putting, operation = Call(), get(), put(b"m"), get()
    moving = Operation(verbs.MOVE, b"q", [b"p:d"], 1, Recorder())
    call.bring(operation, b"a")
    putting.results, moving.results = [1], [b"b"]
    for one in (empty, putting, moving, operation):
        one.put_back()
    assert call.back == [operation]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=5), st.data())
def test_only_messages_in_incomplete_replies_go_back(digits: list[list[int]], data: st.DataObject) -> None:
    commands = [[b"x" * digit for digit in some] for some in digits]
    operation = Operation(verbs.GET, b"q", [], 0, Recorder(), encode, commands=0)
    operation.sizes = [len(some) for some in commands]
    messages = [message for some in commands for message in some]
    # The messages come by one or two calls.
    cut = data.draw(st.integers(0, len(messages) - 1))
    for number, some in enumerate((messages[:cut], messages[cut:])):
        if some:
            taken_by(operation, *some, number=number)
    whole = encode(operation)
    size = data.draw(st.integers(0, len(whole) - 1))
    operation.note_handed_over(size)
    complete = whole[:size].count(b"\n")
    kept = sum(operation.sizes[:complete])
    assert operation.messages_handed_over == kept
    assert [m for _, some in operation.taken_by_delivery() for m in some] == messages[kept:]


def test_messages_go_back_by_the_call_that_brought_them() -> None:
    operation = get(3, options=Options(has_flags=True))
    deliveries = [
        taken_by(operation, Flagged(b"a", b"7"), b"b", number=4),
        taken_by(operation, b"c", number=9),
    ]
    backs = list(put_back_operations(operation))
    assert [(number, back.verb, back.messages) for number, back in backs] == [
        (4, verbs.PUT_BACK, [b"4", b"7 a", b"0 b"]),
        (9, verbs.PUT_BACK, [b"9", b"0 c"]),
    ]
    assert operation.deliveries is None
    assert [delivery.undelivered for delivery in deliveries] == [
        {operation: [b"7 a", b"0 b"]}, {operation: [b"0 c"]},
    ]  # fmt: skip
    for _, back in backs:
        back.owner.completed(back)
    assert not any(delivery.undelivered for delivery in deliveries)


def test_messages_that_could_not_go_back_stay_in_the_record(caplog: pytest.LogCaptureFixture) -> None:
    operation = get(2)
    delivery = taken_by(operation, b"a", b"b")
    ((_, back),) = put_back_operations(operation)
    back.error = CLOSED
    with caplog.at_level(logging.ERROR):
        back.owner.completed(back)
    assert delivery.undelivered
    assert "could not put back 2 messages" in caplog.text
