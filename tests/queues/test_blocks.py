"""Calls of the library with several blocks: blocks are independent, and a call stays short."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pressure_server.lua import scripts as lua_scripts
from pressure_server.lua.scripts import Library
from tests.support import scripts
from tests.support.programs import Client, StartValkey, Valkey, records
from tests.support.scripts import RECORDS, Block, Run

QUEUES = 5


def base(number: int) -> str:
    return f"__pressure__:q{number}"


def call(direct: Client, *blocks: tuple[str, Sequence[Run]], number: int = 0) -> list[Any]:
    """Return the replies to blocks, each a queue and its runs. With a number, the call has a record."""
    return scripts.call(direct, *(Block([key], runs) for key, runs in blocks), number=number)


@pytest.mark.parametrize("broken", range(QUEUES))
def test_an_error_in_one_block_does_not_stop_the_others(direct: Client, broken: int) -> None:
    call(direct, *((base(number), [("put unique", "", "old")]) for number in range(QUEUES)))
    direct.delete(base(broken))
    direct.set(base(broken), "no list")
    blocks = [
        (base(number), [("put unique", "", "new"), ("get", "1"), ("length",)]) for number in range(QUEUES)
    ]
    replies = call(direct, *blocks, number=1)
    error = replies.pop(broken)
    assert isinstance(error, redis.ResponseError)
    assert str(error).startswith("WRONGTYPE ")
    assert [reply[1:] for reply in replies] == [[[1], [b"old"], 1]] * (QUEUES - 1)
    assert list(records(direct)) == [(RECORDS.encode(), b"1")]


def test_a_block_is_not_affected_by_the_block_before(direct: Client) -> None:
    # The first block uses the mirror and marks, takes messages and waits; fast and slow blocks follow.
    call(direct, (base(0), [("put flags now", "", "7 0 x"), ("put unique", "", "y")]))
    replies = call(
        direct,
        (base(0), [("contains", "y"), ("get flags", "2"), ("get waits", "1")]),
        (base(1), [("put", "", "a", "b")]),
        (base(1), [("get", "1")]),
        (base(2), [("get waits", "1")]),
        (base(1), [("length",), ("get flags", "1")]),
        number=3,
    )
    assert replies[0][1:3] == [[1], [b"x", b"y", b"7 0"]]
    assert replies[1][1] in (0, [1, 2])
    assert replies[2][1] == [b"a"]
    assert replies[3][1] in ([], None)
    assert replies[4][1:] == [1, [b"b", b""]]


def test_a_put_that_waits_for_room_does_not_create_its_queue_again(direct: Client) -> None:
    call(direct, (base(0), [("create", "1", "block", "")]))
    (reply,) = call(direct, (base(0), [("put wait", "3", "a", "b", "c"), ("delete",)]))
    (_, run, outcome), part, deleted = reply
    assert (run, part[:2], deleted) == (1, [b"part", 1], 1)
    assert str(outcome) == "NOQUEUE"
    assert direct.keys("*:q0*") == []


def test_pushes_before_one_that_waits_for_room_reply_the_lengths_of_the_queue(direct: Client) -> None:
    call(direct, (base(0), [("create", "3", "block", ""), ("put", "", "old")]))
    (reply,) = call(direct, (base(0), [("put wait", "1 1 2", "a", "b", "c", "d")]))
    assert reply == [-1, [b"part", 0, 0, [2, 3]]]


def test_a_call_that_takes_long_leaves_blocks_undone(direct: Client) -> None:
    names = [base(number) for number in range(40)]
    for name in names:
        call(direct, (name, [("put", "", *map(str, range(3000)))]))
    # No queue has these messages, so each block walks through the whole list.
    replies = call(direct, *((name, [("remove", *("no",) * 100)]) for name in names))
    assert 0 < len(replies) < len(names)
    assert all(reply[1] == [0] * 100 for reply in replies)
    del names[10:]
    call(direct, *((name, [("put", "", "x" * 300_000)]) for name in names))
    for name in names:
        call(direct, (name, [("get", "3000")]))
    replies = call(direct, *((name, [("get", "1")]) for name in names))
    assert 3 <= sum(reply[1] == [b"x" * 300_000] for reply in replies) <= 5
    assert len(replies) < len(names)


@pytest.mark.parametrize("wanted", ["0", "1000", "1001", "4000"])
def test_a_get_takes_any_number_of_messages(direct: Client, wanted: str) -> None:
    count = int(wanted)
    call(direct, (base(0), [("put unique", "", *map(str, range(3000)))]))
    call(direct, (base(0), [("get", "1")]))
    ((left, taken),) = call(direct, (base(0), [("get", wanted)]), number=1)
    assert taken == [b"%d" % number for number in range(1, 3000)][:count]
    assert left <= 0
    assert bool(records(direct)) == bool(count)
    assert direct.scard(f"{base(0)}:ext:members") == direct.llen(base(0))


def test_without_memory_only_puts_are_refused(start_valkey: StartValkey) -> None:
    with start_valkey().client() as direct:
        for number in range(4):
            call(direct, (base(number), [("put", "", "a", "b")]), number=1)
        assert call(direct, (base(0), [("get", "1")]), number=2)[0][1] == [b"a"]
        direct.config_set("maxmemory", "1")
        replies = call(
            direct,
            (base(0), [("put_back", "2", "a")]),
            (base(1), [("get", "1")]),
            (base(2), [("put", "", "c")]),
            (base(3), [("length",)]),
            (base(3), [("get", "1"), ("put unique", "", "c")]),
            number=5,
        )
        assert replies[0][1] == 1
        assert replies[1][1] == [b"a"]
        assert isinstance(replies[2], redis.OutOfMemoryError)
        assert replies[3][1] == 2
        assert isinstance(replies[4], redis.OutOfMemoryError)
        assert direct.lrange(base(0), 0, -1) == [b"b", b"a"]
        assert [direct.llen(base(number)) for number in (1, 2, 3)] == [1, 2, 2]


def state(direct: Client, number: int) -> dict[str, Any]:
    """Return the values of a queue's keys by suffix, except the times at which it and its jobs were made."""
    found: dict[str, Any] = {}
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"string": direct.get,
        b"set": direct.smembers,
        b"hash": direct.hgetall,
        b"list": lambda key: direct.lrange(key, 0, -1),
        b"zset": lambda key: direct.zrange(key, 0, -1, withscores=True),
    }
    for key in direct.keys(f"{base(number)}*"):
        suffix = key.decode().removeprefix(base(number))
        found[suffix] = read[direct.type(key)](key)
    found.pop(":ext:made", None)
    for name, value in found.get(":ext:jobs", {}).items():
        if not name.endswith(b":"):
            found[":ext:jobs"][name] = value.partition(b" ")[2]
    return found


PUTS = st.builds(
    lambda name, messages: (name, "", *messages),
    st.sampled_from(["put", "put unique", "put now", "put unique now"]),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=2),
)
GETS = st.tuples(st.sampled_from(["get", "get flags", "get waits"]), st.sampled_from("12"))
READS = st.just(("contains", "a"))


# The health check is about the fixture: each example empties the backend.
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(PUTS | GETS | READS, min_size=1, max_size=12),
    st.sampled_from([None, "other"]),
    st.sampled_from([None, 1, 2, 3]),
)
@example([("put", "", "a"), ("get", "1"), ("get", "1"), ("put unique", "", "a"), ("get", "1")], None, None)
@example([("put unique", "", "a"), ("put unique", "", "b"), ("get flags", "1"), ("get", "2")], "other", None)
@example([("put unique", "", "a"), ("put unique", "", "b", "c"), ("put unique", "", "c", "a")], None, 2)
@example([("get", "1"), ("put", "", "a", "b"), ("put", "", "b"), ("put", "", "a", "b")], None, 2)
def test_the_fast_path_does_the_same_as_the_general_path(
    direct: Client, runs: list[Run], consumer: str | None, ring: int | None
) -> None:
    direct.flushall()
    for number in (0, 1):
        if ring is not None:
            call(direct, (base(number), [("create", f"{ring}", "overwrite", "")]))
        call(direct, (base(number), [("put" if ring == 2 else "put unique", "", "old")]))
        if consumer is not None:
            direct.set(f"{base(number)}:consumer", consumer)
    for run in runs:
        (fast,) = call(direct, (base(0), [run]))
        # A block with a second run takes the general path.
        (general,) = call(direct, (base(1), [run, ("length",)]))
        # The fast path replies "new" where the general path counts one new message for each command.
        new = [1] * (len(run) - 2)
        plain = [[new if part == b"new" else part for part in reply] for reply in (fast, general)]
        # It says that puts into a full ring do not wait.
        assert plain[0][0] == plain[1][0] or (ring, plain[0][0]) == (direct.llen(base(0)), 0)
        assert plain[0][1:] == plain[1][1 : len(fast)]
        assert state(direct, 0) == state(direct, 1)


PUT = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4)
# How many of its jobs a worker has finished, how it takes the next messages, and how many it wants.
WORK = st.tuples(st.integers(0, 3), st.sampled_from(["pop", "reserve", "reserve waits"]), st.integers(1, 3))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PUT | WORK, min_size=2, max_size=12), st.sampled_from([0, 5]), st.booleans(), st.booleans())
@example([["a", "b", "c"], (0, "pop", 1), (1, "pop", 1), (1, "reserve", 1)], 0, True, True)
@example([["a", "b", "c", "a"], (0, "reserve", 2), (2, "reserve", 2), (1, "reserve", 1)], 5, False, True)
def test_workers_of_a_list_get_the_same_on_the_fast_path(
    backend: Valkey, steps: list[Any], bound: int, keeps: bool, unique: bool
) -> None:
    create: Run = ("create", f"{bound}", "error", "", *(("ack", "next") if keeps else ()))
    held: list[str] = []
    # Two databases: the ids of jobs differ between queues.
    with backend.client() as direct, backend.client(db=1) as other:
        direct.flushall()
        for client in (direct, other):
            call(client, (base(0), [create]))
        for step in steps:
            runs: list[Run]
            if isinstance(step, list):
                runs = [("put unique now" if unique else "put now", "", *step)]
            else:
                finished, verb, wanted = step
                done, held = held[:finished], held[finished:]
                runs = [("delete_job", *(f"{job} =1" for job in done))] if done else []
                runs.append((verb if keeps or verb != "pop" else "reserve", *["=1"] * wanted))
            (fast,) = call(direct, (base(0), runs))
            # A block with another run takes the general path.
            (general,) = call(other, (base(0), [*runs, ("length",)]))
            assert fast[0] == general[0]
            assert fast[1:] == general[1 : len(fast)] or fast[1:] == [b"new"]
            assert state(direct, 0) == state(other, 0)
            if not isinstance(step, list):
                held += [job.split(b" ")[0].decode() for job in fast[-1] or []]


def test_a_put_on_a_full_queue_is_decided_after_native_clients_have_acted(
    direct: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = lua_scripts.library().body.replace(b"SCAN = 1000000", b"SCAN = 1")
    monkeypatch.setattr(lua_scripts, "library", lambda: Library(body))
    call(direct, (base(0), [("create", "2"), ("put unique", "", "a", "b")]))
    direct.mset({f"{base(0)}:producer": "native-1", f"{base(0)}:consumer": "native-2"})
    replies = [call(direct, (base(0), [("put unique", "3", "c", "a", "d")]), number=n) for n in range(1, 4)]
    assert [-1] in [reply[0][1] for reply in replies]


def test_a_message_that_came_back_to_a_log_is_moved_before_those_in_the_log(direct: Client) -> None:
    call(direct, (base(0), [("create", "0", "", "", "type", "log"), ("put", "", "a", "b")]))
    call(direct, (base(0), [("get", "1")]), number=1)
    call(direct, (base(0), [("put_back", "1", "a")]), number=2)
    for expected in (b"a", b"b"):
        (reply,) = scripts.call(direct, Block([base(0), base(1)], [("move", base(1))]))
        assert reply == [0, [expected]]
    assert call(direct, (base(0), [("length",)]), (base(1), [("range", "0", "-1")])) == [
        [0, 0],
        [0, [b"a", b"b"]],
    ]


def test_a_message_is_not_moved_from_the_middle_of_a_groups_queue(direct: Client) -> None:
    group = base(0) + "+group"
    call(direct, (base(0), [("create", "0", "", "", "type", "log"), ("put", "", "a", "b")]))
    scripts.call(direct, Block([base(0), group], [("group", "create", group, "head")]))
    (reply,) = scripts.call(direct, Block([group, base(1)], [("move", base(1), "a")]))
    assert str(reply[1]) == "TYPE is-group-no-removal"
    of_group, of_target = call(direct, (group, [("range", "0", "-1")]), (base(1), [("exists",)]))
    assert (of_group[1], of_target[1]) == ([b"a", b"b"], 0)


@pytest.mark.parametrize("kind", ["jobs", "log", "fifo"])
def test_a_get_of_no_message_and_a_question_about_none_are_answered(direct: Client, kind: str) -> None:
    call(direct, (base(0), [("create", "0", "", "", "type", kind), ("put", "", "a", "b")]))
    (reply,) = call(direct, (base(0), [("get", "0"), ("contains",), ("length",)]))
    assert reply[1:] == [[], [], 2]


def test_a_queue_that_cannot_be_used_ends_only_its_own_runs_of_a_transaction(direct: Client) -> None:
    direct.set(base(1), "no list")
    runs: list[Run] = [("put", "", "old"), ("get", "1")]
    for number in range(3):
        runs += [("on", base(number)), ("put", "", "m"), ("length",)]
    (reply,) = scripts.call(direct, Block([base(number) for number in range(3)], runs), number=1)
    assert reply[1:5] == [0, [b"old"], 0, 1]
    assert [str(result).split()[0] for result in reply[5:7]] == ["WRONGTYPE"] * 2
    assert reply[7:] == [0, 1]
    assert direct.lrange(base(0), 0, -1) == direct.lrange(base(2), 0, -1) == [b"m"]
