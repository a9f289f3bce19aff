"""Records of calls: what is done once, and what goes back, also if a command of the backend fails."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import pytest
import redis

from pressure_server.lua.scripts import batch_script
from tests.support import scripts
from tests.support.programs import Client, StartValkey, records
from tests.support.scripts import RECORDS, Block, Run, call

QUEUES = [f"__pressure__:q{number}" for number in range(5)]
A, B, *_ = QUEUES
# Makes one command of the backend fail, and notes that it has.
FAILING = """
local real, count = redis, 0
local function fails()
  count = count + 1
  return count == FAILS and real.call('SET', 'failed', 1)
end
local redis = setmetatable({
  call = function(...)
    if fails() then error({ err = 'ERR it fails' }) end
    return real.call(...)
  end,
  pcall = function(...)
    if fails() then return { err = 'ERR it fails' } end
    return real.pcall(...)
  end,
}, { __index = real })
"""


def on(base: str, *runs: Run) -> Block:
    return Block([base], runs)


def queued(direct: Client, base: str) -> list[bytes]:
    """Oldest first."""
    found: list[bytes] = direct.lrange(base, 0, -1)
    return found[::-1]


def recovered(direct: Client, field: str = "") -> Any:
    """The reply of the block that puts back what is in a record, or in all of a server that is dead."""
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
    call(
        direct,
        on(A, ("length",)),
        on(B, ("get waits", "1")),
        on(A, ("put existing unique", "", "x")),
        number=1,
    )
    assert not records(direct)


@pytest.mark.parametrize("epoch", [1, 3, 0])
def test_a_call_of_another_epoch_is_refused_before_it_does_anything(direct: Client, epoch: int) -> None:
    call(direct, on(A, ("put", "", "x")))
    direct.hset(RECORDS, "epoch", 2)
    with pytest.raises(redis.ResponseError, match="BURIED "):
        call(direct, on(A, ("get", "1")), on(B, ("put", "", "y")), number=1, epoch=epoch)
    assert queued(direct, A) == [b"x"]
    assert not direct.exists(B)


def test_a_late_call_of_a_server_that_is_forgotten_leaves_nothing_behind(direct: Client) -> None:
    with pytest.raises(redis.ResponseError, match="BURIED "):
        direct.eval(
            batch_script(), 2, A, RECORDS, "me", 0, "error", 1, 7, "", "", 1, 4, "", "put", 2, "", "x"
        )
    assert not direct.keys("*")


@pytest.mark.parametrize("is_recovered", [False, True])
def test_nothing_goes_back_to_another_queue_of_the_name(direct: Client, is_recovered: bool) -> None:
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


def test_marks_of_a_message_that_was_moved_are_not_those_of_an_equal_one(direct: Client) -> None:
    call(direct, on(A, ("put flags now", "", "5 0 m", "0 0 m")))
    call(direct, Block([A, B], [("move", B)]), on(A, ("get", "1")), number=1)
    recovered(direct, "1")
    assert not direct.exists(f"{A}:ext:marks") or b"5" not in direct.hget(f"{A}:ext:marks", "mm")
    assert call(direct, on(A, ("get flags", "1")))[0][1] in ([b"m", b""], [b"m", b"0"])


def test_nothing_goes_back_to_a_queue_that_a_native_client_has_made_anew(direct: Client) -> None:
    call(direct, on(A, ("put", "", "old")))
    call(direct, on(A, ("get", "1")), number=1)
    direct.delete(*direct.keys(f"{A}*"))
    direct.set(f"{A}:bound", 0)
    assert recovered(direct, "1") == [0, 1, 0, b"", A.encode(), 0]
    assert not queued(direct, A)


def test_a_queue_that_is_deleted_and_made_within_a_transaction_gets_only_its_own(direct: Client) -> None:
    call(direct, on(A, ("put", "", "old")))
    runs = (("on", A), ("get", "1"), ("delete",), ("put", "", "new", "newer"), ("get", "1"))
    assert call(direct, Block([A], runs), number=1) == [[0, [b"old"], 1, 0, [b"new"]]]
    assert recovered(direct, "1")[4:] == [A.encode(), 1]
    assert queued(direct, A) == [b"new", b"newer"]


def test_of_what_a_server_had_taken_the_latest_goes_back_first(direct: Client) -> None:
    for base in (A, B):
        call(direct, on(base, ("put", "", *"abcdefghijklmn")))
    for number in range(1, 12):  # also more than one digit
        call(direct, on(A, ("get", "1")), on(B, ("reserve waits", "=1 0")), number=number)
    while recovered(direct)[0]:
        pass
    assert queued(direct, A) == queued(direct, B) == [bytes([letter]) for letter in b"abcdefghijklmn"]
    assert not records(direct)


def test_what_a_call_has_opened_goes_back_with_what_it_has_taken(direct: Client) -> None:
    call(direct, on(A, ("put", "", *"abcd")), on(B, ("put", "", "x", "y")))
    call(
        direct,
        on(A, ("get", "1"), ("reserve waits", "=1 0", "=1 0")),
        on(B, ("reserve waits", "=1 0")),
        number=3,
    )
    more, done, failed, _, *back = recovered(direct, "3")
    assert (more, done, failed) == (0, 2, 0)
    assert dict(zip(back[::2], back[1::2], strict=True)) == {A.encode(): 3, B.encode(): 1}
    assert (queued(direct, A), queued(direct, B)) == ([b"a", b"b", b"c", b"d"], [b"x", b"y"])
    assert not records(direct)


def test_only_what_a_dead_server_had_taken_is_recovered(direct: Client) -> None:
    call(direct, on(A, ("put", "", "x")))
    call(direct, on(A, ("get", "1")), number=1)
    (reply,) = call(direct, Block([RECORDS], [("",)], "recover"))
    assert reply == [2, 0, 0, b""]
    assert list(records(direct)) == [(RECORDS.encode(), b"1")]


def test_recovery_goes_in_bounded_steps(direct: Client) -> None:
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


def failing(number: int) -> bytes:
    """The batch script, of which that command of the backend fails."""
    return FAILING.replace("FAILS", str(number)).encode() + batch_script()


def test_a_record_is_cut_down_to_what_has_not_arrived(direct: Client) -> None:
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


def test_a_record_is_cut_down_beside_the_recovery_of_another_server(direct: Client) -> None:
    """Their calls have the same numbers."""
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


def test_out_of_memory_a_record_is_cut_down_and_questions_are_answered(start_valkey: StartValkey) -> None:
    with start_valkey().client() as direct:
        call(direct, on(A, ("put", "", "a", "b")))
        call(direct, on(A, ("get", "2")), number=1)
        direct.config_set("maxmemory", "1")
        replies = call(direct, on(A, ("length",)), Block([RECORDS], [("1", A, "1", "b")], "cut"))
        assert replies == [[0, 0], 1]
        assert recovered(direct, "1")[4:] == [A.encode(), 1]


def test_what_is_refused_is_not_taken_for_dropped(start_valkey: StartValkey) -> None:
    with start_valkey().client() as direct:
        call(direct, on(A, ("put", "", "a")), number=1)
        direct.config_set("min-replicas-to-write", 1)
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            direct.eval(batch_script(), 1, RECORDS, "me", 0, "error", 1, "", "", "1")
        direct.config_set("min-replicas-to-write", 0)
        assert direct.eval(batch_script(), 1, RECORDS, "me", 0, "error", 1, "", "", "1") == [0]
        assert not records(direct)


def test_hundreds_that_were_opened_go_back_in_their_order(direct: Client) -> None:
    call(direct, on(A, ("put", "", *map(str, range(300)))))
    for number in range(1, 301):
        call(direct, on(A, ("reserve waits", "=1 0")), number=number)
    fields = tuple(f"o{number}.1" for number in range(300, 0, -1))
    (reply,) = call(direct, Block([RECORDS], [fields], "recover"))
    assert reply[2:] == [0, b"", A.encode(), 300]
    assert queued(direct, A) == [b"%d" % number for number in range(300)]


TAKING: dict[str, tuple[Run, ...]] = {
    "get": (("get", "1"),),
    "get_marked": (("get flags", "2"),),
    "take_opened": (("reserve waits", "=1 0", "=1 0"),),
    "mixed": (
        ("get", "1"),
        ("put", "", "new"),
        ("get waits", "1"),
        ("put unique", "", "newer", "new"),
        ("length",),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAKING)
def test_whatever_command_fails_nothing_is_lost_or_doubled(
    start_valkey: StartValkey, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A call on five queues. Then its server dies, and all that it had taken comes back."""
    errors = 0
    with start_valkey().client() as direct:
        for number in count(1):
            direct.flushall()
            for base in QUEUES:
                call(direct, on(base, ("put flags now", "", "5 0 a", "0 0 b"), ("put unique", "", "c")))
            direct.hset(RECORDS, "epoch", 1)
            direct.delete("failed")
            with monkeypatch.context() as patch:
                patch.setattr(scripts, "batch_script", partial(failing, number))
                try:
                    replies = call(direct, *(on(base, *TAKING[kind]) for base in QUEUES), number=1)
                except redis.ResponseError:
                    replies = [None] * len(QUEUES)
            if not direct.delete("failed"):
                break
            errors += sum(not isinstance(reply, list) for reply in replies)
            assert recovered(direct)[0] == 0
            for base, reply in zip(QUEUES, replies, strict=True):
                left = queued(direct, base)
                assert [one for one in left if one in b"abc"] == [b"a", b"b", b"c"], (number, base, reply)
                if kind == "mixed" and isinstance(reply, list):
                    assert left[3:] == [b"new", b"newer"], (number, base, reply)
            assert not records(direct)
    print(f"{kind}: each of {number - 1} commands failed; {errors} errors")
    assert number > 50
