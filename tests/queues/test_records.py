"""Call records: calls are done once, and messages go back, also if a command of the backend fails."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import redis

from pressure_server.lua import scripts as lua_scripts
from pressure_server.lua.scripts import Library, library
from tests.support.programs import Client, StartValkey, keys_left, records, wait_for
from tests.support.scripts import RECORDS, Block, Run, call, call_library
from tests.support.waiters import Waiter

QUEUES = [f"__pressure__:q{number}" for number in range(5)]
A, B, *_ = QUEUES
# Lets one command of the script fail, whose number is in the key `fails`, and then sets the key `failed`. The
# one that writes the record cannot fail: the library has checked before that it may write it.
FAILING = """
local failing
do
  function failing(real_call, real_pcall)
    local function fails(command, key, field)
      if command == 'HSET' and string.find(key, '!calls:', 1, true) and tonumber(field) then
        return false
      end
      return real_call('EXISTS', 'fails') == 1 and real_call('DECR', 'fails') == 0
        and real_call('SET', 'failed', 1)
    end
    return function(...)
      if fails(...) then error({ err = 'ERR it fails' }) end
      return real_call(...)
    end, function(...)
      if fails(...) then return { err = 'ERR it fails' } end
      return real_pcall(...)
    end
  end
end
"""
COMMANDS = b"redis.call, redis.pcall"


def on(base: str, *runs: Run) -> Block:
    return Block([base], runs)


def queued(direct: Client, base: str) -> list[bytes]:
    """Return the messages of a queue, oldest first."""
    found: list[bytes] = direct.lrange(base, 0, -1)
    return found[::-1]


def recovered(direct: Client, field: str = "") -> Any:
    """Put back the messages of a record, or of all records of a dead server. Return the block's reply."""
    if not field:
        direct.hset(RECORDS, "epoch", 0)
    (reply,) = call(direct, Block([RECORDS], [(field,)], "recover"))
    return reply


def test_a_call_that_is_sent_again_is_answered_from_its_record(direct: Client) -> None:
    blocks = [on(A, ("put", "", "x", "y")), on(B, ("get waits", "1")), on(A, ("get", "1"))]
    first = call(direct, *blocks, number=1)
    assert call(direct, *blocks, number=1, again=True) == first
    assert queued(direct, A) == [b"y"]
    assert call(direct, on(A, ("get", "1")), number=2, again=True) == [[0, [b"y"]]]


def test_a_call_that_changes_nothing_has_no_record(direct: Client) -> None:
    call(direct, on(A, ("put", "", "x")))
    blocks = on(A, ("length",)), on(B, ("get waits", "1")), on(A, ("put existing unique", "", "x"))
    call(direct, *blocks, number=1)
    assert not records(direct)


def test_a_reservation_that_outlives_its_connection_leaves_nothing_in_the_records(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    client.rpush("q", "a")
    assert waiter("PRESSURE.RESERVE", "q", "DETACHED", "token")
    assert client.delete("q")
    fields = [field for key in direct.scan_iter("__pressure__!calls:*") for field in direct.hkeys(key)]
    assert not [field for field in fields if field.startswith(b"j")]


@pytest.mark.parametrize("epoch", [1, 3, 0])
def test_a_call_of_another_epoch_is_refused_before_it_does_anything(direct: Client, epoch: int) -> None:
    call(direct, on(A, ("put", "", "x")))
    direct.hset(RECORDS, "epoch", 2)
    with pytest.raises(redis.ResponseError, match="BURIED "):
        call(direct, on(A, ("get", "1")), on(B, ("put", "", "y")), number=1, epoch=epoch)
    assert queued(direct, A) == [b"x"]
    assert not direct.exists(B)


def test_a_late_call_of_a_forgotten_server_is_refused_and_writes_nothing(direct: Client) -> None:
    words = "me", 0, "error", "0 0", 1, 7, "", "", 1, 4, "", "put", 2, "", "x"
    with pytest.raises(redis.ResponseError, match="BURIED "):
        call_library(direct, [A, RECORDS], words)
    assert (keys_left(direct), direct.exists(A, RECORDS)) == ([], 0)


@pytest.mark.parametrize("is_recovered", [False, True])
def test_no_message_goes_back_to_a_new_queue_of_the_same_name(direct: Client, is_recovered: bool) -> None:
    call(direct, on(A, ("put", "", "old", "older")))
    call(direct, on(A, ("get", "2")), number=1)
    assert call(direct, on(A, ("delete",)))[0][1] == 1
    call(direct, on(A, ("put", "", "a", "b", "c")), on(A, ("get", "2")))
    if is_recovered:
        assert recovered(direct, "1") == [0, 1, 0, b"", A.encode(), 0]
    else:
        assert call(direct, on(A, ("put_back", "1", "old", "older")), number=2) == [[0, 0]]
    assert queued(direct, A) == [b"c"]
    assert (RECORDS.encode(), b"1") not in records(direct)


def test_an_equal_message_does_not_get_the_flags_of_a_moved_one(direct: Client) -> None:
    call(direct, on(A, ("put flags now", "", "5 0 m", "0 0 m")))
    call(direct, Block([A, B], [("move", B)]), on(A, ("get", "1")), number=1)
    recovered(direct, "1")
    assert not direct.exists(f"{A}:ext:marks") or b"5" not in direct.hget(f"{A}:ext:marks", "mm")
    assert call(direct, on(A, ("get flags", "1")))[0][1] in ([b"m", b""], [b"m", b"0"])


def test_no_message_goes_back_to_a_queue_that_a_native_client_created_again(direct: Client) -> None:
    call(direct, on(A, ("put", "", "old")))
    call(direct, on(A, ("get", "1")), number=1)
    direct.delete(*direct.keys(f"{A}*"))
    direct.set(f"{A}:bound", 0)
    assert recovered(direct, "1") == [0, 1, 0, b"", A.encode(), 0]
    assert not queued(direct, A)


def test_a_queue_created_again_in_a_transaction_gets_only_its_own_messages_back(direct: Client) -> None:
    call(direct, on(A, ("put", "", "old")))
    runs = (("on", A), ("get", "1"), ("delete",), ("put", "", "new", "newer"), ("get", "1"))
    assert call(direct, Block([A], runs), number=1) == [[0, [b"old"], 1, 0, [b"new"]]]
    assert recovered(direct, "1")[4:] == [A.encode(), 1]
    assert queued(direct, A) == [b"new", b"newer"]


def test_messages_of_a_dead_server_go_back_in_their_order(direct: Client) -> None:
    for base in (A, B):
        call(direct, on(base, ("put", "", *"abcdefghijklmn")))
    for number in range(1, 12):  # of one digit and of two
        call(direct, on(A, ("get", "1")), on(B, ("reserve waits", "=1 0")), number=number)
    recover_all(direct)
    assert queued(direct, A) == queued(direct, B) == [bytes([letter]) for letter in b"abcdefghijklmn"]


def test_messages_opened_by_a_call_go_back_with_those_taken(direct: Client) -> None:
    call(direct, on(A, ("put", "", *"abcd")), on(B, ("put", "", "x", "y")))
    opening = ("reserve waits", "=1 0", "=1 0")
    call(direct, on(A, ("get", "1"), opening), on(B, ("reserve waits", "=1 0")), number=3)
    more, done, failed, _, *back = recovered(direct, "3")
    assert (more, done, failed) == (0, 2, 0)
    assert dict(zip(back[::2], back[1::2], strict=True)) == {A.encode(): 3, B.encode(): 1}
    assert (queued(direct, A), queued(direct, B)) == ([b"a", b"b", b"c", b"d"], [b"x", b"y"])
    assert not records(direct)


def test_the_messages_of_a_live_server_are_not_recovered(direct: Client) -> None:
    call(direct, on(A, ("put", "", "x")))
    call(direct, on(A, ("get", "1")), number=1)
    (reply,) = call(direct, Block([RECORDS], [("",)], "recover"))
    assert reply == [2, 0, 0, b""]
    assert list(records(direct)) == [(RECORDS.encode(), b"1")]


def test_a_recovery_is_done_in_bounded_steps(direct: Client) -> None:
    call(direct, on(A, ("put", "", *map(str, range(20_000)))))
    for number in range(20):
        call(direct, on(A, ("get", "1000")), number=number + 1)
    steps, messages, more = 0, 0, 1
    while more:
        more, _, failed, _, *back = recovered(direct)
        assert not failed
        steps, messages = steps + 1, messages + sum(back[1::2])
    assert messages == 20_000
    assert 5 <= steps <= 20
    assert queued(direct, A) == [b"%d" % number for number in range(20_000)]


@pytest.fixture
def breakable(start_valkey: StartValkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A backend of its own whose library has commands that `each_failure` lets fail. It is loaded once."""
    body = library().body
    assert body.count(COMMANDS) == 1
    broken = Library(FAILING.encode() + body.replace(COMMANDS, b"failing(" + COMMANDS + b")"))
    monkeypatch.setattr(lua_scripts, "library", lambda: broken)
    with start_valkey().client() as direct:
        yield direct


def each_failure(
    direct: Client, least: int, prepare: Callable[[], object], act: Callable[[], Any]
) -> Iterator[Any]:
    """Let each command of a call fail in turn, on new data. Yield the call's result, or its error."""
    for number in count(1):
        direct.flushall()
        prepare()
        direct.hsetnx(RECORDS, "epoch", 1)
        direct.set("fails", number)
        try:
            result = act()
        except redis.ResponseError as error:
            result = error
        direct.delete("fails")
        if not direct.delete("failed"):
            assert number > least
            return
        yield result


def recover_all(direct: Client) -> None:
    """Put back the messages of a dead server. Reservations are given up in steps."""
    while recovered(direct)[0]:
        pass
    assert not records(direct)


def fill_queues(direct: Client) -> None:
    for base in QUEUES:
        call(direct, on(base, ("put flags now", "", "5 0 a", "0 0 b"), ("put unique", "", "c")))


def take(direct: Client, kind: str) -> list[Any]:
    return call(direct, *(on(base, *TAKING[kind]) for base in QUEUES), number=1)


def test_a_record_is_cut_down_to_undelivered_messages(direct: Client) -> None:
    call(direct, on(A, ("put flags now", "", "5 0 x", "0 0 x", "7 0 y")), on(B, ("put", "", "x", "x", "z")))
    call(direct, on(A, ("get flags", "3")), on(B, ("get", "3")), number=1)
    left = ("1", A, "1", "0 x", B, "2", "x", "z")
    assert call(direct, Block([RECORDS], [left], "cut"), number=2) == [3]
    assert call(direct, on(B, ("put_back", "1", "x", "x")), number=3) == [[0, 1]]
    assert call(direct, Block([RECORDS], [("1", A, "1", "0 x")], "cut"), number=4) == [1]
    assert recovered(direct, "1")[4:] == [A.encode(), 1]
    assert (queued(direct, A), queued(direct, B)) == ([b"x"], [b"x"])
    assert call(direct, on(A, ("get flags", "1"))) == [[0, [b"x", b"0"]]]
    assert call(direct, Block([RECORDS], [("1",)], "cut"), number=5) == [0]


def test_a_call_cuts_a_record_of_its_server_and_recovers_another_server(direct: Client) -> None:
    """The records of both servers have the same number."""
    other = "__pressure__!calls:other"
    call(direct, on(A, ("put", "", "a", "b")), on(B, ("put", "", "x")))
    call(direct, on(A, ("get", "2")), number=1)
    direct.copy(RECORDS, other)
    direct.hset(other, "epoch", 0)
    direct.hdel(RECORDS, "1")
    call(direct, on(B, ("get", "1")), number=1)
    cut, recovered_one = call(
        direct, Block([RECORDS], [("1", B, "1", "x")], "cut"), Block([other], [("",)], "recover")
    )
    assert (cut, recovered_one[0]) == (1, 0)
    assert queued(direct, A) == [b"a", b"b"]
    assert list(records(direct)) == [(RECORDS.encode(), b"1")]


def test_a_record_is_cut_down_when_the_backend_is_out_of_memory(start_valkey: StartValkey) -> None:
    with start_valkey().client() as direct:
        call(direct, on(A, ("put", "", "a", "b")))
        call(direct, on(A, ("get", "2")), number=1)
        direct.config_set("maxmemory", "1")
        replies = call(direct, on(A, ("length",)), Block([RECORDS], [("1", A, "1", "b")], "cut"))
        assert replies == [[0, 0], 1]
        assert recovered(direct, "1")[4:] == [A.encode(), 1]


def test_a_record_is_kept_if_the_backend_refuses_to_drop_it(start_valkey: StartValkey) -> None:
    with start_valkey().client() as direct:
        call(direct, on(A, ("put", "", "a")), number=1)
        direct.config_set("min-replicas-to-write", 1)
        drop = "me", 0, "error", "0 0", 1, "", "", "1"
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            call_library(direct, [RECORDS], drop)
        direct.config_set("min-replicas-to-write", 0)
        assert call_library(direct, [RECORDS], drop) == [0]
        assert not records(direct)


def test_a_call_whose_record_could_not_be_written_is_refused_before_it_does_anything(
    start_valkey: StartValkey,
) -> None:
    with start_valkey().client() as direct:
        call(direct, on(A, ("put", "", "x")))
        direct.hset(RECORDS, "epoch", 1)
        direct.acl_setuser("default", commands=["-hset"])
        with pytest.raises(redis.ResponseError, match="records"):
            call(direct, on(A, ("get", "1")), number=1)
        assert queued(direct, A) == [b"x"]


TAKING: dict[str, tuple[Run, ...]] = {
    "get": (("get", "1"),),
    "get_marked": (("get flags", "2"),),
    "take_opened": (("reserve waits", "=1 0", "=1 0"),),
    "mixed": (
        ("get", "1"), ("put", "", "new"), ("get waits", "1"), ("put unique", "", "newer", "new"), ("length",),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAKING)
def test_no_message_is_lost_or_doubled_whichever_command_of_a_call_fails(
    breakable: Client, kind: str
) -> None:
    """After a call on five queues its server dies, and its messages go back."""
    direct = breakable
    for result in each_failure(direct, 50, lambda: fill_queues(direct), lambda: take(direct, kind)):
        replies = result if isinstance(result, list) else [None] * len(QUEUES)
        recover_all(direct)
        for base, reply in zip(QUEUES, replies, strict=True):
            left = queued(direct, base)
            assert [one for one in left if one in b"abc"] == [b"a", b"b", b"c"], (base, reply)
            if kind == "mixed" and isinstance(reply, list):
                # A run with a result is done, and one with an error is not.
                done = [not isinstance(result, Exception) for result in reply[1:]] + [False] * 5
                new = [b"new"] * done[1]
                new += [m for m in (b"newer", b"new") if done[3] and m not in new]
                assert left[3:] == new, (base, reply)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["pop", "reserve"])
def test_no_message_of_a_worker_is_lost_or_doubled_whichever_command_fails(
    breakable: Client, verb: str
) -> None:
    """It acknowledges one message and takes two, on the fast path. Then the server dies."""
    direct, outcomes = breakable, set()
    replies: list[Any] = []

    def prepare() -> None:
        settings = ("ack", "next") if verb == "pop" else ()
        create = ("create", "0", "block", "", *settings)
        call(direct, on(A, create, ("put unique", "", "a", "b", "c", "d")))
        replies[:] = call(direct, on(A, (verb, "=1")), number=1)

    def act() -> Any:
        ((_, (popped,)),) = replies
        runs = ("delete_job", f"{popped[:13].decode()} =1"), (verb, "=1", "=2")
        replies[:] = call(direct, on(A, *runs), number=2)
        return replies[0]

    for reply in each_failure(direct, 15, prepare, act):
        recover_all(direct)
        is_acknowledged = isinstance(reply, list) and reply[1] == [1]
        left = queued(direct, A)
        assert left[-3:] == [b"b", b"c", b"d"], reply
        assert left[:-3] == [] if is_acknowledged else left[:-3] in ([], [b"a"]), reply
        outcomes.add((is_acknowledged, is_acknowledged and isinstance(reply[2], list)))
    # Nothing was done; only the message was acknowledged; all was done, because a count may fail.
    assert outcomes == {(False, False), (True, False), (True, True)}
    assert replies[0][0] == 0  # the general path would also say when the next job is due


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAKING)
def test_a_call_that_an_error_has_ended_leaves_nothing_for_the_next(breakable: Client, kind: str) -> None:
    """The library's variables live on between calls."""
    direct = breakable

    def do_next() -> tuple[list[Any], bytes]:
        direct.flushall()
        direct.hset(RECORDS, "epoch", 1)
        for base in (A, B):
            call(direct, on(base, ("put", "", "m"), ("get", "1")))
            direct.set(f"{base}:ext:made", "1.5")  # else it is the time
        runs: tuple[Run, ...] = (("put", "", "x", "y"), ("get", "1"), ("get waits", "2"), ("length",))
        replies = call(direct, on(A, *runs), on(B, ("get waits", "1")), number=2)
        return replies, direct.hget(RECORDS, "2")

    expected = do_next()
    for result in each_failure(direct, 50, lambda: fill_queues(direct), lambda: take(direct, kind)):
        assert do_next() == expected, result


ROUNDS: dict[str, tuple[Run, ...]] = {
    "list": (("create", "0", "block", ""), ("put", "", "a", "b")),
    "bounded": (("create", "2", "block", ""), ("put unique", "", "a", "b")),
    "limited": (("create", "0", "block", "", "max_bytes", "100"), ("put flags now", "", "5 0 a", "6 0 b")),
    "jobs": (("create", "0", "block", "", "type", "jobs"), ("put", "", "a", "b")),
    "unique": (("create", "0", "block", "", "type", "jobs", "unique", "queued"), ("put", "", "a", "b")),
    "log": (("create", "0", "block", "", "type", "log"), ("put", "", "a", "b")),
}


# Calls that bring the messages "a" and "b" into a queue; what a call then does, and its fewest commands.
STEADY: dict[str, tuple[list[tuple[Run, ...]], Run, int]] = {
    **{f"{kind}, moved round": ([runs], ("move", A), 10) for kind, runs in ROUNDS.items()},
    "log, came back": ([ROUNDS["log"], (("get", "1"),), (("put_back", "2", "a"),)], ("get", "1"), 8),
    "list to jobs": (
        [(("put flags now", "", "5 0 a", "0 0 b"),)], ("put job", "", "1024 0 60000 0 0 new"), 20,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEADY)
def test_messages_stay_whichever_command_fails(breakable: Client, kind: str) -> None:
    direct, (calls, run, least) = breakable, STEADY[kind]

    def prepare() -> None:
        for number, runs in enumerate(calls, 1):
            call(direct, on(A, *runs), number=number)

    for result in each_failure(direct, least, prepare, lambda: call(direct, on(A, run), number=4)):
        recover_all(direct)
        found: list[bytes] = []
        for _ in range(3):  # those that have come back to a log are taken apart
            found += call(direct, on(A, ("get", "9")))[0][1]
        assert sorted(message for message in found if message != b"new") == [b"a", b"b"], result


def test_a_job_that_an_error_has_left_in_two_states_blocks_nothing(direct: Client) -> None:
    call(direct, on(A, ("create", "0", "block", "", "type", "jobs"), ("put", "", "a")))
    call(direct, on(A, ("reserve waits", "=1 1")), number=1)
    (job,) = direct.zrange(f"{A}:ext:reserved", 0, -1)
    direct.zadd(f"{A}:ext:ready", {job: 1024})
    wait_for(lambda: direct.zscore(f"{A}:ext:reserved", job) < direct.time()[0] * 1000 - 1000, "its time")
    (reply,) = call(direct, on(A, ("get", "2")), number=2)
    assert reply[1] == [b"a"]
    assert call(direct, on(A, ("length",))) == [[0, 0]]


def test_a_message_of_a_group_does_not_move_round_its_queue(direct: Client) -> None:
    group = f"{A}+g"
    call(direct, on(A, ("create", "0", "block", "", "type", "log"), ("group", "create", group, "head")))
    call(direct, on(A, ("put", "", "a", "b")))
    (reply,) = call(direct, on(group, ("move", group)))
    assert str(reply[1]) == "TYPE is-group"
    (reply,) = call(direct, on(group, ("range", "0", "-1")))
    assert reply[1] == [b"a", b"b"]


@pytest.mark.parametrize(("put", "most"), [("put", 17), ("put unique", 20)])
def test_a_put_into_a_full_ring_does_not_wait_and_takes_the_fast_path(
    start_valkey: StartValkey, put: str, most: int
) -> None:
    # A backend of its own: a server on the shared one would add its commands to the number.
    with start_valkey().client() as direct:
        call(direct, on(A, ("create", "2", "overwrite", "")))
        for run in ((put, "", "a", "b"), ("get", "1"), (put, "", "c")):
            call(direct, on(A, run))
        direct.config_resetstat()
        (reply,) = call(direct, on(A, (put, "", "d")), number=1)
        assert reply[0] == 0
        assert sum(int(about["calls"]) for about in direct.info("commandstats").values()) <= most
        assert queued(direct, A) == [b"c", b"d"]


@pytest.mark.parametrize("key", [f"{A}:ext:{name}" for name in ("jobs", "marks", "blocks", "settings")])
def test_a_list_that_cannot_become_a_queue_of_jobs_keeps_its_messages(direct: Client, key: str) -> None:
    call(direct, on(A, ("put", "", "a", "b", "c")))
    direct.delete(key)
    direct.set(key, "wrong")
    with suppress(redis.ResponseError):
        call(direct, on(A, ("put job", "", "1024 0 60000 0 0 new")), number=1)
    assert queued(direct, A) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("name", ["jobs", "reserved", "blocks", "settings"])
def test_messages_that_cannot_be_reserved_stay_in_their_list(direct: Client, name: str) -> None:
    key = f"{A}:ext:{name}"
    call(direct, on(A, ("put", "", "a", "b", "c")))
    direct.delete(key)
    direct.set(key, "wrong")
    (reply,) = call(direct, on(A, ("reserve waits", "=1 0", "=2 1000")), number=1)
    assert str(reply[1]).startswith("WRONGTYPE")
    direct.delete(key)
    assert call(direct, on(A, ("get", "9")), number=2)[0][1] == [b"a", b"b", b"c"]


def test_a_group_misses_no_message_if_its_log_cannot_count_what_it_drops(direct: Client) -> None:
    group, counter = f"{A}+g", f"{A}:stats:consumed_messages"
    call(direct, on(A, *ROUNDS["log"]), Block([A, group], [("group", "create", group, "head")]))
    direct.zadd(counter, {"wrong": 1})
    (reply,) = call(direct, on(group, ("get", "1")), number=1)
    assert reply[1] == [b"a"]
    direct.delete(counter)
    assert call(direct, on(group, ("get", "9")), number=2)[0][1] == [b"b"]
