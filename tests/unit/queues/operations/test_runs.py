"""Runs: what is packed for the library, and which operation gets what of its reply."""

from collections.abc import Sequence

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.errors import QueueFullError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.flagged import attach_flags, flags_of, recovery_form
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import DEFAULT, UNIQUE, WAITS, Options
from pressure_server.queues.operations.runs import (
    distribute_counts,
    distribute_messages,
    distribute_moved,
    distribute_peeked,
    distribute_removed,
    distribute_values,
    pack_commands,
    pack_count,
)
from pressure_server.queues.operations.wait import Wait, WaitCondition
from tests.unit.queues.operations_of import Recorder, get, put, wait_of

FLAGS = Options(has_flags=True)


def results(*operations: Operation) -> list[list[object]]:
    return [operation.results for operation in operations]


def contains(*messages: bytes) -> Operation:
    """Return a command that asks whether each of the messages is queued."""
    return Operation(verbs.CONTAINS, b"q", list(messages), len(messages), Recorder())


def begun(
    *commands: bytes,
    results: Sequence[int] = (),
    messages_done: int = 0,
    in_call: int | None = None,
    options: Options = DEFAULT,
) -> Operation:
    """Return a put of which some commands are done, and some messages of the next one.

    `in_call` commands go with the next call.
    """
    operation = put(*commands, options=options)
    operation.results, operation.commands_in_call = [*results], in_call
    if messages_done:
        operation.wait = Wait(messages_done=messages_done)
    return operation


def move(*, waits: bool = True) -> Operation:
    wait = Wait(None, destination=b"d")
    options = WAITS if waits else DEFAULT
    return Operation(verbs.MOVE, b"q", [b"p:d"], 1, Recorder(), wait=wait, options=options)


IN_PROGRESS = (b"a b", b"c d e", b"f")
IN_PORTIONS = (b"a b", b"c d", b"e", b"f g")


@pytest.mark.parametrize(
    ("operations", "packed"),
    [
        ([put(b"a")], [b"", b"a"]),
        ([put(b"a", b"b"), put(b"c")], [b"", b"a", b"b", b"c"]),
        # Sizes are packed if a command has several messages.
        ([put(b"a b")], [b"2", b"a", b"b"]),
        ([put(b"a"), put(b"b c", b"d")], [b"1 2 1", b"a", b"b", b"c", b"d"]),
        # What has been put is not packed again.
        ([begun(*IN_PROGRESS, results=[2]), put(b"g")], [b"3 1 1", b"c", b"d", b"e", b"f", b"g"]),
        ([begun(*IN_PROGRESS, results=[2], messages_done=1), put(b"g")], [b"2 1 1", *b"d e f g".split()]),
        ([begun(*IN_PROGRESS, results=[2], messages_done=2), put(b"g")], [b"", b"e", b"f", b"g"]),
        # Only the commands that go with the call are packed.
        ([begun(*IN_PORTIONS, results=[2], in_call=2)], [b"2 1", b"c", b"d", b"e"]),
        ([begun(*IN_PORTIONS, results=[2], messages_done=1, in_call=2)], [b"", b"d", b"e"]),
    ],
)
def test_a_put_is_packed_as_sizes_and_messages(operations: list[Operation], packed: list[bytes]) -> None:
    assert pack_commands(operations) == packed


def test_a_take_is_packed_as_the_number_of_messages_still_wanted() -> None:
    first, second = get(3), get(1, commands=2)
    assert pack_count([first]) == [b"3"]
    assert pack_count([first, second]) == [b"5"]
    first.results, second.results = [b"a", b"b"], [b"c"]
    assert pack_count([first, second]) == [b"2"]
    assert pack_count([get(5000)]) == [b"5000"]


def test_the_rest_of_an_operation_that_is_split_is_left_wherever_it_stands_in_its_run() -> None:
    split, whole = contains(*(b"%d" % number for number in range(3))), contains(b"x")
    split.commands_in_call = 2
    assert distribute_values([split, whole], [1, 0, 1])
    assert (split.results, whole.results) == ([1, 0], [1])
    taking, last = get(3), get()
    taking.commands_in_call = 2
    assert distribute_messages([taking, last], [b"a", b"b", b"c"])
    assert (taking.results, last.results) == ([b"a", b"b"], [b"c"])


@pytest.mark.parametrize(
    ("operations", "reply", "expected"),
    [
        # The length before a run gives the length after each command.
        ([put(b"a b", b"c"), put(b"d")], 10, [[12, 13], [14]]),
        # If all messages are new, each command gets its size.
        ([put(b"a b", b"c", options=UNIQUE), put(b"d", options=UNIQUE)], b"new", [[2, 1], [1]]),
        # A later reply is about the commands that were left.
        ([begun(b"a b", b"c", results=[7])], b"new", [[7, 1]]),
        ([begun(b"a b", b"c", results=[7])], 20, [[7, 21]]),
        ([begun(b"a b", b"c", results=[7])], [5], [[7, 5]]),
    ],
)
def test_each_command_of_a_put_has_a_number(
    operations: list[Operation], reply: object, expected: list[list[int]]
) -> None:
    assert not distribute_counts(operations, reply)
    assert results(*operations) == expected
    assert all(operation.results is not operation.sizes for operation in operations)


def test_a_command_that_found_the_queue_full_fails_alone() -> None:
    first, second = put(b"a b", b"c"), put(b"d e")
    assert not distribute_counts([first, second], [-1, 5, -1])
    refused, done = first.results
    assert isinstance(refused, QueueFullError)
    assert (done, second.results, first.error, second.error) == (5, [refused], None, None)
    assert first.has_errors
    assert second.has_errors


def test_a_put_that_was_done_in_part_waits_for_room_and_notes_how_far_it_is() -> None:
    first, second, third = put(b"a b", b"c d e"), put(b"f"), put(b"g")
    assert distribute_counts([first, second, third], [b"part", 2, 1, [9]])
    assert results(first, second, third) == [[9], [], []]
    assert [wait_of(one).condition for one in (first, second, third)] == [WaitCondition.ROOM] * 3
    assert [wait_of(one).messages_done for one in (first, second, third)] == [2, 0, 0]
    assert [one.options.must_exist for one in (first, second, third)] == [True] * 3
    assert isinstance(wait_of(second).timeout_error, QueueFullError)
    assert not any(wait_of(one).has_unsent for one in (first, second, third))


@pytest.mark.parametrize(
    ("options", "parts", "reply", "expected"),
    [
        (DEFAULT, [(1, 1), (1, 1)], 6, [[7], [8]]),
        (UNIQUE, [(2, 1)], [1, 0], [[2], [0]]),
    ],
)
def test_parts_of_a_command_add_up(
    options: Options, parts: list[tuple[int, int]], reply: object, expected: list[list[int]]
) -> None:
    first, second = put(b"a b c", options=options), put(b"d", options=options)
    for messages, new in parts:
        assert distribute_counts([first, second], [b"part", messages, new, []])
    assert wait_of(first).messages_done == 2
    assert not distribute_counts([first, second], reply)
    assert results(first, second) == expected
    assert (wait_of(first).messages_done, wait_of(first).new_done) == (0, 0)


def test_a_put_of_which_only_some_commands_were_sent_waits_with_the_rest() -> None:
    operation = put(b"a", b"b", b"c")
    operation.commands_in_call = 2
    assert distribute_counts([operation], 0)
    assert operation.results == [1, 2]
    assert (operation.commands_in_call, wait_of(operation).has_unsent) == (0, True)


@pytest.mark.parametrize(
    ("operations", "replies", "expected"),
    [
        ([get(2), get(1, commands=2), get(3)], [b"abcde"], [b"ab", b"cd", b"e"]),
        # A later reply continues with the messages that are left to take.
        ([get(2), get(2)], [b"abc", b"d"], [b"ab", b"cd"]),
    ],
)
def test_messages_are_handed_out_in_order_until_there_are_none(
    operations: list[Operation], replies: list[bytes], expected: list[bytes]
) -> None:
    for reply in replies:
        assert not distribute_messages(operations, [b"%c" % message for message in reply])
    assert [b"".join(operation.results) for operation in operations] == expected


@pytest.mark.parametrize("exists", [True, False])
def test_takes_that_got_nothing_wait_for_a_message(exists: bool) -> None:
    first, second, outlives = get(options=WAITS), get(options=WAITS), get(options=WAITS)
    outlives.wait = Wait(None, outlives_queue=True)
    assert distribute_messages([second, outlives], [] if exists else None)
    for operation in (second, outlives):
        wait = wait_of(operation)
        assert (wait.condition, wait.found_queue) == (WaitCondition.MESSAGE, exists)
        assert wait.timeout_error is None
    # One that waits on the present queue ends if it is deleted.
    assert (second.options.must_exist, outlives.options.must_exist) == (exists, False)
    assert not distribute_messages([first], [b"a"])
    assert first.wait is None


def test_each_message_gets_its_flags() -> None:
    first, second = get(options=FLAGS), get(2, options=FLAGS)
    distribute_messages([first, second], [b"a", b"b", b"c", b"0 7 4294967295"])
    assert results(first, second) == [[b"a"], [b"b", b"c"]]
    assert [flags_of(message) for one in (first, second) for message in one.results] == [
        b"0", b"7", b"4294967295",
    ]  # fmt: skip
    assert type(first.results[0]) is bytes


@given(st.lists(st.tuples(st.binary(max_size=5), st.integers(0, 2**32 - 1)), min_size=1, max_size=6))
def test_flags_of_a_reply_are_those_of_its_messages(pairs: list[tuple[bytes, int]]) -> None:
    messages = [message for message, _ in pairs]
    found = attach_flags([*messages, b" ".join(b"%d" % flags for _, flags in pairs)])
    assert [(bytes(message), int(flags_of(message))) for message in found] == pairs
    assert [recovery_form(message) for message in found] == [b"%d %b" % (f, m) for m, f in pairs]
    assert attach_flags([*messages, b""]) == messages


@pytest.mark.parametrize(
    ("waits", "reply", "must_wait"),
    [
        (False, [], False),
        (False, None, False),
        (True, [], True),
        (True, None, True),
        (True, [b"m", b"7"], False),
    ],
)
def test_a_peek_gives_the_oldest_message_to_every_command(
    waits: bool, reply: list[bytes] | None, must_wait: bool
) -> None:
    options = Options(has_flags=True, waits=waits)
    peeks = [Operation(verbs.PEEK, b"q", [], 1, Recorder(), commands=2, options=options) for _ in range(2)]
    has_message = bool(reply)
    exists = reply is not None
    assert distribute_peeked(peeks, reply) is must_wait
    if must_wait:
        assert results(*peeks) == [[], []]
        assert [wait_of(peek).found_queue for peek in peeks] == [exists] * 2
    else:
        assert results(*peeks) == [[[b"m"] if has_message else []] * 2] * 2


def test_a_move_takes_the_message_or_waits_for_one_or_for_room_at_its_destination() -> None:
    operation = move()
    assert distribute_moved([operation], -1)
    wait = wait_of(operation)
    assert (wait.condition, wait.at_destination) == (WaitCondition.ROOM, True)
    assert "'d'" in str(wait.timeout_error)
    assert operation.options.destination_must_exist
    assert distribute_moved([operation], [])
    assert (wait.condition, wait.at_destination, wait.found_queue) == (WaitCondition.MESSAGE, False, True)
    assert distribute_moved([operation], None)
    assert (wait.condition, wait.found_queue) == (WaitCondition.MESSAGE, False)
    assert not distribute_moved([operation], [b"m"])
    assert operation.results == [b"m"]


@pytest.mark.parametrize(
    ("wanted", "after_first", "after_second"), [(b"0", b"0", b"0"), (b"9", b"6", b"2"), (b"-9", b"-6", b"-2")]
)
def test_copies_that_are_removed_in_several_calls_are_summed(
    wanted: bytes, after_first: bytes, after_second: bytes
) -> None:
    operation = Operation(verbs.REMOVE_COPIES, b"q", [wanted, b"m"], 1, Recorder())
    for reply, left, results in (
        ([], wanted, []),
        ([3, 1], after_first, [3]),
        ([4, 1], after_second, [7]),
    ):
        assert not distribute_removed([operation], reply)
        assert (operation.messages[:2], operation.results) == ([left, b"m"], results)
        assert operation.verb.units_left(operation) == 1
    assert not distribute_removed([operation], [1])
    assert (operation.results, operation.verb.units_left(operation)) == ([8], 0)


def test_copies_that_have_been_removed_count_if_the_rest_fails() -> None:
    operation = Operation(verbs.REMOVE_COPIES, b"q", [b"0", b"m"], 1, Recorder())
    distribute_removed([operation], [3, 1])
    operation.fail(QueueFullError("q"))
    assert (operation.results, operation.error) == ([3], None)


def test_each_message_has_its_value_or_an_error() -> None:
    alone, several, sound = contains(b"a"), contains(b"b", b"c"), contains(b"d", b"e")
    error = hiredis.ReplyError("CLOSED")
    assert not distribute_values([alone, several, sound], [error, 1, error, 1, 0])
    assert (str(alone.error)[:9], alone.results) == ("queue 'q'", [])
    assert several.error is None
    assert several.results[0] == 1
    assert str(several.results[1]) == str(alone.error)
    assert [one.has_errors for one in (alone, several, sound)] == [True, True, False]
    assert sound.results == [1, 0]
