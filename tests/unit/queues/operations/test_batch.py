"""Batches: what goes in one call, how it is grouped, and what the reply means for each operation."""

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any

import hiredis
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pressure_server.errors import QueueClosedError, QueueDoesNotExistError, QueueInUseError
from pressure_server.lua.layout import Header
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.batch import (
    MAX_BYTES,
    MAX_MESSAGES,
    NOTE,
    SHARE,
    Progress,
    distribute,
    fold,
    pack,
    progress_after_refusal,
    share_mode,
    take_batch,
)
from pressure_server.queues.operations.block_reply import NO_NEWS, Due
from pressure_server.queues.operations.operation import Operation, Owner, Verb
from pressure_server.queues.operations.options import UNIQUE, WAITS, OnFull, Options
from pressure_server.queues.operations.wait import Wait, WaitCondition
from tests.interleavings.backend import Backend
from tests.unit.queues.operations_of import Recorder, get, put, wait_of


def of(verb: Verb, *messages: bytes, owner: Owner | None = None) -> Operation:
    return Operation(verb, b"q", list(messages), max(1, len(messages)), owner or Recorder())


def error(text: str) -> hiredis.ReplyError:
    return hiredis.ReplyError(text)


@pytest.mark.parametrize("verb", [verbs.PUT_BACK, verbs.GIVE_UP])
def test_what_goes_back_has_a_call_of_its_own(verb: Verb) -> None:
    before, backs, after = get(), [of(verb, b"1"), of(verb, b"2")], get()
    waiting = [before, *backs, after]
    assert [take_batch(waiting) for _ in range(3)] == [[before], backs, [after]]


def test_what_an_earlier_call_had_of_an_operation_does_not_count() -> None:
    operation = put(b"a", b"b")
    operation.commands_in_call = 0
    take_batch([operation])
    assert operation.commands_in_call is None


def exceeds_a_limit(batch: Sequence[Operation]) -> bool:
    """Whether a call cannot have all of these operations. Any operation fits if it is alone."""
    messages = sum(len(one.messages) if one.verb.is_put_back else one.wanted for one in batch)
    size = sum(len(message) for one in batch for message in one.messages)
    kinds = {one.verb.is_put_back for one in batch}
    return len(batch) > 1 and (messages > MAX_MESSAGES or size > MAX_BYTES or len(kinds) > 1)


@given(st.lists(st.tuples(st.sampled_from(["get", "put", "back"]), st.integers(1, 3000)), max_size=12))
@example([("put", 2097), ("put", 1)])
def test_a_call_takes_as_many_operations_as_its_limits_allow_in_their_order(
    sizes: list[tuple[str, int]],
) -> None:
    make: dict[str, Callable[[int], Operation]] = {
        "get": get,
        "put": lambda size: put(b"x" * size * 500),
        "back": lambda size: of(verbs.PUT_BACK, *[b"m"] * size),
    }
    operations = [make[kind](size) for kind, size in sizes]
    waiting = list(operations)
    while waiting:
        batch = take_batch(waiting)
        assert batch == operations[: len(batch)]
        assert all(one.is_sealed for one in batch)
        assert not exceeds_a_limit(batch)
        assert not waiting or exceeds_a_limit([*batch, waiting[0]])
        assert not any(one.is_sealed for one in waiting)
        del operations[: len(batch)]


def test_neighbours_with_equal_verb_and_options_share_a_run() -> None:
    first, second, unique, third = put(b"a"), put(b"b c"), put(b"d", options=UNIQUE), put(b"e")
    assert fold([first, second, unique, third]) == [[first, second], [unique], [third]]


@pytest.mark.parametrize(
    "options",
    [Options(waits=True, wait_for_first=True), Options(if_none_taken=True)],
)
def test_operations_with_a_result_of_their_own_do_not_share_a_run(options: Options) -> None:
    first, second = get(options=options), get(options=options)
    assert fold([first, second]) == [[first], [second]]
    moves = [of(verbs.MOVE, b"p:d"), of(verbs.MOVE, b"p:d")]
    assert fold(moves) == [[moves[0]], [moves[1]]]


def test_deletions_of_jobs_go_before_what_other_workers_reserve() -> None:
    """Otherwise each would be a run of its own."""
    workers = [Recorder() for _ in range(3)]
    reserves = [of(verbs.RESERVE, b"=1", owner=worker) for worker in workers]
    deletes = [of(verbs.DELETE_JOB, b"1", owner=Recorder()) for _ in workers]
    mixed = [one for pair in zip(reserves, deletes, strict=True) for one in pair]
    assert fold(mixed) == [deletes, reserves]
    own = [of(verbs.RESERVE, b"=1", owner=workers[0]), of(verbs.DELETE_JOB, b"1", owner=workers[0]), get()]
    assert fold(own) == [[one] for one in own]


@given(
    st.lists(
        st.tuples(st.sampled_from([verbs.RESERVE, verbs.DELETE_JOB, verbs.GET]), st.integers(0, 3)),
        max_size=14,
    )
)
def test_folding_keeps_the_order_of_each_owner_and_of_what_does_not_overtake(
    chosen: list[tuple[Verb, int]],
) -> None:
    owners = [Recorder() for _ in range(4)]
    operations = [of(verb, b"1", owner=owners[number]) for verb, number in chosen]
    folded = [operation for run in fold(operations) for operation in run]
    assert len(folded) == len(operations)
    for owner in owners:
        assert [o for o in folded if o.owner is owner] == [o for o in operations if o.owner is owner]
    rest = [o for o in operations if not o.verb.overtakes]
    assert [o for o in folded if not o.verb.overtakes] == rest
    for run in fold(operations):
        assert len({operation.verb for operation in run}) == 1


@pytest.mark.parametrize(
    ("operations", "mode"),
    [
        ([put(b"a"), get(wait=Wait(None))], SHARE),
        ([put(b"a"), get()], SHARE),
        ([put(b"a")], SHARE),
        ([put(b"a"), get(wait=Wait(0))], NOTE),
        ([get(wait=Wait(None))], NOTE),
    ],
)
def test_takes_are_limited_to_the_server_s_share_if_all_may_wait(
    operations: list[Operation], mode: bytes
) -> None:
    assert share_mode(operations, limit_to_share=True) == mode
    assert share_mode(operations, limit_to_share=False) == NOTE


def test_a_run_is_packed_as_its_name_a_count_and_its_arguments() -> None:
    runs = [[put(b"a"), put(b"b")], [get(2, options=WAITS)], [of(verbs.LENGTH)]]
    expected = [b"put", b"3", b"", b"a", b"b", b"get waits", b"1", b"2", b"length", b"0"]
    assert pack(runs) == expected
    options = Options(must_exist=True, unique=True, on_full=OnFull.FAIL)
    assert options.words == b" existing unique now"


def waiting_get() -> Operation:
    return get(options=WAITS)


def begun_get() -> Operation:
    operation = get(3)
    operation.results = [b"a"]
    return operation


@pytest.mark.parametrize(
    ("runs", "reply", "fates", "outcomes"),
    [
        # A take that found too few messages ends, although a later run was done in part.
        (
            [[get(3)], [put(b"b", options=UNIQUE)], [get(2)]], [1, [b"a"], b"new", [b"b"]],
            "ended ended sent", [[b"a"], [1], [b"b"]],
        ),
        ([[waiting_get(), waiting_get()]], [0, [b"a"]], "ended waits", [[b"a"], []]),
        # What a waiting run gets later in the call counts; it may fail there, too.
        ([[waiting_get()], [put(b"a")]], [[0, 1, [b"a"]], [], 0], "ended ended", [[b"a"], [1]]),
        (
            [[waiting_get()], [of(verbs.CLOSE)]], [[0, 1, error("CLOSED")], [], 1],
            "ended ended", [QueueClosedError, [1]],
        ),
        # An error of a run fails its operations, and no others.
        (
            [[get(), get()], [put(b"a")]], [0, error("NOQUEUE"), 0],
            "ended ended ended", [QueueDoesNotExistError, QueueDoesNotExistError, [1]],
        ),
        # Operations that cannot wait for a role fail, and those that have messages end.
        ([[of(verbs.INFO)]], [-1, error("INUSE consumer native")], "ended", [QueueInUseError]),
        ([[begun_get()]], [-1, error("INUSE consumer native")], "ended", [[b"a"]]),
    ],
)  # fmt: skip
def test_each_operation_of_a_call_ends_or_waits_or_is_sent_again(
    runs: list[list[Operation]], reply: list[Any], fates: str, outcomes: list[object]
) -> None:
    progress = distribute(runs, reply)
    assert progress is not None
    found: dict[str, list[Operation]] = {"ended": [], "waits": [], "sent": []}
    operations = [operation for run in runs for operation in run]
    for operation, fate in zip(operations, fates.split(), strict=True):
        found[fate].append(operation)
    assert found == {"ended": progress.ended, "waits": progress.must_wait, "sent": progress.resend}
    assert [one.results if one.error is None else type(one.error) for one in operations] == outcomes
    assert all(one.wait is None or one.wait.condition is None for one in progress.ended)


def test_a_reply_has_news_of_roles_of_due_jobs_and_of_the_log() -> None:
    reading = get(name=b"log+group", options=WAITS)
    words = [0, 0, b"producer", 0, b"consumer", 0, b"due 1500 note of it", 0, b"source 6"]
    progress = distribute([[reading]], [words, []])
    assert progress is not None
    assert progress.held_roles == {WaitCondition.PRODUCER_ROLE, WaitCondition.CONSUMER_ROLE}
    assert progress.news is not None
    assert progress.news.due == Due(1.5, b"note of it")
    assert progress.source == b"log"
    nothing = distribute([[get(options=WAITS)]], [0, []])
    assert nothing is not None
    assert (nothing.news, nothing.source) == (NO_NEWS, None)


def test_an_error_ends_a_run_that_is_alone_without_progress() -> None:
    operation = of(verbs.LENGTH)
    assert distribute([[operation]], [-2, error("NOQUEUE")]) is None
    assert isinstance(operation.error, QueueDoesNotExistError)


@pytest.mark.parametrize(
    ("text", "condition", "requires"),
    [
        ("INUSE producer native", WaitCondition.PRODUCER_ROLE, True),
        ("INUSE consumer native", WaitCondition.CONSUMER_ROLE, True),
        ("CREATING", WaitCondition.CREATED, True),
        ("DELETING", WaitCondition.REMOVED, False),
    ],
)
def test_an_error_that_others_can_end_is_waited_for(
    text: str, condition: WaitCondition, requires: bool
) -> None:
    operation = put(b"a")
    progress = distribute([[operation]], [-1, error(text)])
    assert progress is not None
    assert (progress.must_wait, progress.ended) == ([operation], [])
    wait = wait_of(operation)
    assert (wait.condition, wait.at_destination) == (condition, False)
    assert isinstance(wait.timeout_error, QueueInUseError)
    assert operation.options.must_exist is requires


def test_an_error_at_the_destination_of_a_move_is_about_that_queue() -> None:
    moving = Operation(verbs.MOVE, b"q", [b"p:d"], 1, Recorder(), wait=Wait(None, destination=b"d"))
    progress = distribute([[moving]], [-1, error("OTHER INUSE producer native")])
    assert progress is not None
    assert progress.must_wait == [moving]
    assert wait_of(moving).at_destination
    assert (moving.options.must_exist, moving.options.destination_must_exist) == (False, True)
    assert "queue 'd'" in str(wait_of(moving).timeout_error)
    distribute([[moving]], [-1, error("OTHER CLOSED")])
    assert "queue 'd'" in str(moving.error)


def test_a_put_that_fails_after_a_part_says_how_much_was_put() -> None:
    operation = put(b"a b", b"c d", b"e")
    operation.results = [2]
    operation.wait = Wait(messages_done=1)
    distribute([[operation]], [-1, error("CLOSED")])
    done, in_part, not_begun = operation.results
    assert done == 2
    assert "1 of the command's messages" in str(in_part)
    assert isinstance(not_begun, QueueClosedError)
    assert "1 of" not in str(not_begun)
    assert operation.has_errors


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("OOM command not allowed", {verbs.PUT, verbs.MOVE}),
        ("MISCONF cannot write", {verbs.PUT, verbs.MOVE, verbs.GET, verbs.DELETE}),
        ("NOREPLICAS too few", {verbs.PUT, verbs.MOVE, verbs.GET, verbs.DELETE}),
        ("LOADING the data", {verbs.PUT, verbs.MOVE, verbs.GET, verbs.DELETE, verbs.LENGTH}),
    ],
)
def test_a_call_that_is_refused_fails_only_what_caused_it(text: str, refused: set[Verb]) -> None:
    operations = [put(b"a"), of(verbs.MOVE, b"p:d"), get(), of(verbs.DELETE), of(verbs.LENGTH)]
    progress = progress_after_refusal(fold(operations), text)
    assert [o.verb for o in progress.ended] == [o.verb for o in operations if o.verb in refused]
    assert [o.verb for o in progress.resend] == [o.verb for o in operations if o.verb not in refused]
    assert progress.news is None
    reading = of(verbs.LENGTH)
    assert progress_after_refusal([[reading]], "OOM").ended == [reading]


class Queue:
    """A queue of the model, and operations on it that are done as a lane does them."""

    def __init__(self, bound: int) -> None:
        self.backend = Backend(Random(0), lambda _: None)
        self.call([[of(verbs.CREATE, b"%d" % bound)]])

    def call(self, runs: Sequence[Sequence[Operation]]) -> Any:
        """Return the reply to these runs; they are tried again if the call ended before them."""
        packed = pack(runs)
        header = [b""] * len(Header)
        header[Header.BOUND], header[Header.OVERFLOW] = b"0", b"block"
        block = [b"1", b"%d" % len(packed), b"", *packed]
        (_, reply) = self.backend.call([b"p:q"], [*header, *block])
        return reply

    def do(self, operations: Sequence[Operation]) -> list[list[str]]:
        """Do operations until each has ended. Return their results."""
        pending = list(operations)
        for _ in range(1000):
            if not pending:
                break
            runs = fold(take_batch(pending))
            progress = distribute(runs, self.call(runs)) or Progress(runs[0])
            assert not progress.must_wait
            pending[:0] = progress.resend
        assert not pending
        return [list(map(str, operation.results)) for operation in operations]


def _made(shapes: list[tuple[str, list[int]]]) -> list[Operation]:
    """Return puts and gets, each with commands of these sizes."""
    numbers = count()

    def command(size: int) -> bytes:
        return b" ".join(b"%d" % next(numbers) for _ in range(size))

    made: dict[str, Callable[[list[int]], Operation]] = {
        "put": lambda sizes: put(*map(command, sizes), options=Options(on_full=OnFull.FAIL)),
        "get": lambda sizes: get(sizes[0], len(sizes)),
    }
    return [made[kind](sizes) for kind, sizes in shapes]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "get"]), st.lists(st.integers(1, 3), min_size=1, max_size=3)),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 4),
)
def test_operations_in_one_call_have_the_results_that_they_have_one_by_one(
    shapes: list[tuple[str, list[int]]], bound: int
) -> None:
    together, alone = Queue(bound), Queue(bound)
    results = [result for operation in _made(shapes) for result in alone.do([operation])]
    assert together.do(_made(shapes)) == results
    assert together.backend.queues == alone.backend.queues
