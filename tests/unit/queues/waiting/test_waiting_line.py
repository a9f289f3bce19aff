"""The waiting line: order, how many are tried at once, and for what the operations in it wait."""

from collections.abc import Callable
from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.batch import MAX_BYTES, MAX_MESSAGES
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import Options
from pressure_server.queues.operations.wait import Ticket, Wait, WaitCondition
from pressure_server.queues.waiting.waiting_line import WaitingLine
from tests.unit.queues.operations_of import Recorder, get, put, wait_of

# The line's first allowance.
FIRST = 8


def waiting_get(ticket: Ticket | None = None) -> Operation:
    wait = Wait(None, ticket=ticket, found_queue=True)
    wait.condition = WaitCondition.MESSAGE
    return get(wait=wait)


def waiting_put(*commands: bytes) -> Operation:
    wait = Wait(found_queue=True)
    wait.condition = WaitCondition.ROOM
    return put(*commands, wait=wait)


def line_of(operations: list[Operation]) -> WaitingLine:
    line = WaitingLine(b"q")
    for operation in operations:
        line.add(operation)
    return line


def take(
    line: WaitingLine, served: int = 0, on_admitted: Callable[[], None] = lambda: None
) -> list[Operation]:
    return line.take_first(served, on_admitted)


def try_in_vain(line: WaitingLine, operations: list[Operation], ended_count: int = 0) -> bool:
    """Put operations back into the line after a try that brought them nothing."""
    for operation in operations:
        wait_of(operation).condition = WaitCondition.MESSAGE
    return line.requeue(operations, [], ended_count)


@given(st.permutations(range(6)))
def test_operations_are_in_line_in_the_order_of_their_commands(order: list[int]) -> None:
    operations = [waiting_get() for _ in range(6)]
    assert list(line_of([operations[place] for place in order])) == operations


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(1, 40))
def test_operations_are_served_in_their_order_and_none_is_forgotten(rounds: list[int], size: int) -> None:
    """In each round, as many of the operations that are tried get a message, from the first on."""
    operations = [waiting_get() for _ in range(size)]
    line, served = line_of(operations), list[Operation]()
    for messages in rounds:
        tried = take(line)
        served += tried[:messages]
        try_in_vain(line, tried[messages:], min(messages, len(tried)))
    assert [*served, *line] == operations


def test_twice_as_many_are_tried_while_all_of_them_go_on() -> None:
    line, sizes = line_of([waiting_get() for _ in range(5000)]), []
    are_more = True
    while are_more:
        tried = take(line)
        sizes.append(len(tried))
        are_more = line.requeue([], [], len(tried))
    assert sizes[:4] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert max(sizes) <= MAX_MESSAGES
    assert len(line) == 0
    line.add(waiting_get())
    assert not line.requeue([], [], 0)  # none was tried


def test_a_try_in_vain_ends_the_tries_and_sets_the_number_to_that_of_the_served() -> None:
    line = line_of([waiting_get() for _ in range(200)])
    for _ in range(3):
        assert line.requeue([], [], len(take(line)))
    tried = take(line)
    assert len(tried) == 64
    assert not try_in_vain(line, tried[20:], 20)
    assert len(take(line)) == 20
    line.requeue([], [], 0)
    tried = take(line)
    try_in_vain(line, tried)
    assert len(take(line)) == FIRST


def test_only_as_many_commands_of_a_put_are_sent_as_may_be_tried() -> None:
    first, second, third = waiting_put(b"a", b"b"), waiting_put(*[b"c"] * 20), waiting_put(b"d")
    line = line_of([first, second, third])
    assert take(line) == [first, second]
    assert (first.commands_in_call, second.commands_in_call) == (2, FIRST - 2)
    assert list(line) == [third]


def test_a_put_with_unsent_commands_is_tried_again_at_once() -> None:
    operation = waiting_put(*[b"a"] * 30)
    line = line_of([operation])
    sent = []
    for _ in range(3):
        assert take(line) == [operation]
        some = operation.commands_in_call or 0
        sent.append(some)
        operation.results += [1] * some
        wait_of(operation).condition = WaitCondition.ROOM
        wait_of(operation).has_unsent = bool(operation.commands_left())
        assert line.requeue([operation], [], 0) is bool(operation.commands_left())
    assert sent == [8, 16, 6]


def test_puts_of_many_bytes_are_tried_one_after_the_other() -> None:
    operations = [waiting_put(b"x" * (MAX_BYTES // 2 + 1)) for _ in range(5)]
    line = line_of(operations)
    assert take(line) == operations[:2]


def test_an_operation_whose_ticket_is_in_use_keeps_its_place() -> None:
    ticket = Ticket()
    elsewhere = Wait(ticket=ticket)
    assert ticket.try_acquire(elsewhere, lambda: None)
    first, passed, third = waiting_get(), waiting_get(ticket), waiting_get()
    line, admitted = line_of([first, passed, third]), list[bool]()

    def on_admitted() -> None:
        admitted.append(True)

    assert take(line, 0, on_admitted) == [first, third]
    assert list(line) == [passed]
    assert not admitted
    elsewhere.end(served=False)
    assert admitted == [True]
    line.requeue([first, third], [], 0)
    # It is tried after those that have been tried meanwhile.
    assert take(line) == [first, third, passed]


def waiting_move(destination: bytes, *message: bytes) -> Operation:
    wait = Wait(None, destination=destination, at_destination=True, found_queue=True)
    wait.condition = WaitCondition.ROOM
    return Operation(verbs.MOVE, b"q", [b"p:" + destination, *message], 1, Recorder(), wait=wait)


def test_moves_have_an_allowance_for_each_destination_and_wanted_message() -> None:
    to_d = [waiting_move(b"d") for _ in range(2 * FIRST)]
    named = [waiting_move(b"d", b"%d" % number) for number in range(2 * FIRST)]
    to_e = [waiting_move(b"e") for _ in range(2 * FIRST)]
    line = line_of([*to_d, *named, *to_e])
    assert take(line) == [*to_d[:FIRST], *named, *to_e[:FIRST]]
    assert list(line) == to_d[FIRST:] + to_e[FIRST:]


def test_moves_are_tried_on_while_those_to_one_destination_go_on() -> None:
    to_d = [waiting_move(b"d") for _ in range(2 * FIRST)]
    to_e = [waiting_move(b"e") for _ in range(4 * FIRST)]
    line = line_of([*to_d, *to_e])
    assert take(line) == [*to_d[:FIRST], *to_e[:FIRST]]
    assert try_in_vain(line, to_d[:FIRST], ended_count=FIRST)
    assert take(line)[2 * FIRST :] == to_e[FIRST : 3 * FIRST]
    assert not line.requeue([*to_d, *to_e[FIRST:]], [], 0)


class Conditions(RuleBasedStateMachine):
    """Whatever happens, the conditions are those of the operations in line."""

    def __init__(self) -> None:
        super().__init__()
        self.line = WaitingLine(b"q")
        self.in_flight: list[Operation] = []
        self.numbers = count()

    @rule(condition=st.sampled_from(WaitCondition), found=st.booleans(), must_exist=st.booleans(),
          at_destination=st.booleans())  # fmt: skip
    def add(self, condition: WaitCondition, *, found: bool, must_exist: bool, at_destination: bool) -> None:
        wait = Wait(None, found_queue=found, destination=b"d", at_destination=at_destination)
        wait.condition = condition
        self.line.add(get(wait=wait, options=Options(must_exist=must_exist)))

    @rule(served=st.integers(0, 3))
    def take(self, served: int) -> None:
        if not self.in_flight:
            self.in_flight = take(self.line, served)

    @rule(condition=st.sampled_from(WaitCondition), ended=st.integers(0, 10))
    def requeue(self, condition: WaitCondition, ended: int) -> None:
        again, self.in_flight = self.in_flight[ended:], []
        for operation in again:
            wait_of(operation).condition = condition
        self.line.requeue(again, [], ended)

    @rule(place=st.integers(0, 5))
    def remove(self, place: int) -> None:
        operations = list(self.line)
        if operations:
            assert self.line.remove(operations[place % len(operations)])

    @rule(place=st.integers(0, 5))
    def note_missing(self, place: int) -> None:
        operations = list(self.line)
        if operations:
            self.line.note_missing(operations[place % len(operations)])

    @rule()
    def clear(self) -> None:
        before = list(self.line)
        assert self.line.clear() == before

    @invariant()
    def conditions_are_those_of_the_operations(self) -> None:
        waits = [(operation, wait_of(operation)) for operation in self.line]
        expected = {(b"d" if wait.at_destination else b"q", wait.condition) for _, wait in waits}
        assert set(self.line.conditions) == expected
        assert bool(self.line.for_existence) is any(
            not (operation.options.must_exist or wait.found_queue) for operation, wait in waits
        )


TestConditions = Conditions.TestCase
