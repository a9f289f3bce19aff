"""Moves, pops of several queues, and set algebra: replies equal those of a real Redis; no message is lost."""

from typing import Any

import pytest

from tests.support.backend_relay import BackendRelay
from tests.support.native import NativeClient, NativeSteps, Steps, run, step_until
from tests.support.programs import TIMEOUT, Client, StartServer, Valkey
from tests.support.side_by_side import Pair, compare, split
from tests.support.waiters import (
    Waiter,
    Words,
    about,
    create,
    is_refused,
    wait_for_blocked,
    wait_for_waiting,
)

# Commands with a placeholder for the timeout.
BLOCKING = [
    "BLPOP q {}", "BLPOP q r s {}", "BRPOP q {}", "BRPOP q r {}", "BLMOVE q r LEFT RIGHT {}",
    "BRPOPLPUSH q r {}", "BLMPOP {} 1 q LEFT", "BLMPOP {} 2 q r RIGHT COUNT 2",
]  # fmt: skip
INVALID_TIMEOUTS = [
    "-1", "-1e300", "nan", "NaN", "-nan", "x", "''", "1x", "1e", "1.2.3", "0,5", r"\x201", r"1\x20", r"\xff",
]  # fmt: skip
# Redis 7.0 overflows at these: it calls them negative, or waits.
HUGE = ["1e13", "1e15", "1e19", "1e300", "1e400", "9007199254741", "9223372036854775807"]
# Redis calls infinity negative, and takes -0.001 for 0, which waits for ever.
STRICTER = {
    "inf": "not a float or out of range",
    "-inf": "not a float or out of range",
    "-0.001": "negative",
    "0x10": "not a float or out of range",
}
SHORT_TIMEOUTS = ["0.001", "0.02", ".02", "2e-2", "+0.02", "00.02", "1e-9", "0.0000001"]

MOVES = """
LMOVE q r LEFT|LMOVE q r LEFT UP|LMOVE q r UP LEFT|LMOVE q r left right|LMOVE q r LEFT RIGHT
LMOVE q q LEFT RIGHT|LMOVE q r '' LEFT|LMOVE q r LEFT RIGHT LEFT|RPOPLPUSH q|RPOPLPUSH q r|RPOPLPUSH q q
RPOPLPUSH q r s|BLMOVE q r LEFT UP 0.02|BLMOVE q r UP LEFT 0|BLMOVE q r LEFT LEFT|BLMOVE q r LEFT LEFT x
BLMOVE q r UP UP x|BRPOPLPUSH q r|BRPOPLPUSH q r s 1|BLPOP q|BLPOP 0.01|BRPOP|SMOVE q r|SMOVE q r m
SMOVE q q m|SMOVE q r m n|LMPOP|LMPOP 1|LMPOP 1 q|LMPOP 0 q LEFT|LMPOP -1 q LEFT|LMPOP x q LEFT|LMPOP 2 q LEFT
LMPOP 1 q UP|LMPOP 1 q r LEFT|LMPOP 1 q LEFT COUNT|LMPOP 1 q LEFT COUNT 0|LMPOP 1 q LEFT COUNT -1
LMPOP 1 q LEFT COUNT x|LMPOP 1 q LEFT NONSENSE 1|LMPOP 1 q LEFT COUNT 1 COUNT 1|LMPOP 1 q left count 1
LMPOP 2 q r RIGHT|LMPOP 3 q r LEFT|LMPOP 1.5 q LEFT|LMPOP 99999999999999999999 q LEFT
LMPOP 1 q LEFT COUNT 99999999999999999999|LMPOP '' q LEFT|LMPOP 1 q LEFT 1|BLMPOP 0.02|BLMPOP 0.02 1
BLMPOP 0.02 1 q|BLMPOP 0.02 0 q LEFT|BLMPOP 0.02 -1 q LEFT|BLMPOP 0.02 x q LEFT|BLMPOP 0.02 2 q LEFT
BLMPOP 0.02 1 q UP|BLMPOP 0.02 1 q LEFT COUNT 0|BLMPOP 0.02 1 q LEFT COUNT x|BLMPOP x 0 q LEFT
BLMPOP -1 1 q UP|BLMPOP 0.02 1 q LEFT COUNT 1 x|BLMPOP 0.02 2 q r RIGHT|SINTER|SUNION|SDIFF|SINTERCARD
SINTER q|SINTER q r|SUNION q|SUNION q r q|SDIFF q|SDIFF q r|SINTERCARD 1|SINTERCARD 1 q|SINTERCARD 0 q
SINTERCARD -1 q|SINTERCARD x q|SINTERCARD 2 q|SINTERCARD 1 q r|SINTERCARD 2 q r LIMIT|SINTERCARD '' q
SINTERCARD 2 q r LIMIT x|SINTERCARD 2 q r LIMIT -1|SINTERCARD 2 q r LIMIT 0|SINTERCARD 2 q r NONSENSE 1
SINTERCARD 1 q LIMIT 99999999999999999999|SINTERCARD 1 q limit 1|SINTERCARD 1.0 q
COMMAND GETKEYS LMOVE a b LEFT LEFT|COMMAND GETKEYS BLMOVE a b LEFT LEFT 0|COMMAND GETKEYS BLPOP a b c 0
COMMAND GETKEYS SMOVE a b m|COMMAND GETKEYS RPOPLPUSH a b|COMMAND GETKEYS SINTER a b c
COMMAND GETKEYS LMPOP 2 a b LEFT|COMMAND GETKEYS BLMPOP 0 2 a b LEFT|COMMAND GETKEYS SINTERCARD 2 a b LIMIT 1
"""

LISTS = """
RPUSH q a b c d|LMOVE q r LEFT RIGHT|LRANGE q 0 -1|LRANGE r 0 -1|LMOVE q r LEFT RIGHT|LRANGE r 0 -1
LMOVE q q LEFT RIGHT|LRANGE q 0 -1|LMOVE r q LEFT RIGHT|LRANGE q 0 -1|BLMOVE q r LEFT RIGHT 0|LRANGE r 0 -1
BLMOVE q q LEFT RIGHT 0.5|LRANGE q 0 -1|BLPOP q r 0|BLPOP nothing r 0.5|LMPOP 2 nothing q LEFT|LLEN q
RPUSH q 1 2 3 4 5|LMPOP 1 q LEFT COUNT 2|BLMPOP 0 2 nothing q LEFT COUNT 2|BLMPOP 0.1 1 q LEFT|LLEN q|LPOP r
RPUSH r x|RPOPLPUSH r s|LRANGE s 0 -1|BRPOPLPUSH s r 0|LRANGE r 0 -1|BRPOP r 0|RPUSH r ''|LMOVE r s LEFT RIGHT
LPOP s|RPUSH r \\x00\\xff\\x0d\\x0a|BLMOVE r s LEFT RIGHT 1|BLPOP s 1|BLPOP s s 0.01
"""

SETS = """
SADD q a b c d|SADD r c d e|SADD s d|SINTER q r|SINTER q r s|SINTER q nothing|SINTER q q|SUNION q r s
SUNION nothing q|SDIFF q r|SDIFF q nothing|SDIFF nothing q|SDIFF q q|SDIFF r q s|SINTERCARD 2 q r
SINTERCARD 2 q r LIMIT 1|SINTERCARD 2 q r LIMIT 0|SINTERCARD 2 q r LIMIT 5|SINTERCARD 2 q nothing
SINTERCARD 3 q r s|SINTERCARD 1 q LIMIT 2|SMOVE q r a|SMEMBERS q|SMEMBERS r|SMOVE q r a|SMOVE q r c|SMEMBERS q
SMEMBERS r|SMOVE q nothing x|EXISTS nothing|SMOVE q q b|SMOVE q q x|SMEMBERS q|SMOVE q new b|SMEMBERS new
SCARD q|SINTER q r|SUNION q new|SDIFF r s new
"""


@pytest.mark.clients
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("line", BLOCKING)
def test_invalid_and_short_timeouts_have_the_replies_of_redis(pair: Pair, line: str, protocol: int) -> None:
    compare(pair, [line.format(timeout) for timeout in INVALID_TIMEOUTS + SHORT_TIMEOUTS], protocol)


@pytest.mark.clients
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("table", [MOVES, LISTS, SETS], ids=["without data", "lists", "sets"])
def test_replies_are_those_of_redis(pair: Pair, table: str, protocol: int) -> None:
    compare(pair, split(table), protocol, unordered=table == SETS)


@pytest.mark.parametrize("line", BLOCKING)
def test_timeouts_that_redis_misreads_are_refused(waiter: Waiter, line: str) -> None:
    refusals = dict.fromkeys(HUGE, "out of range") | STRICTER
    for timeout, refusal in refusals.items():
        reply = waiter(*line.format(timeout).split())
        assert str(reply) == f"ERR timeout is {refusal}", timeout


@pytest.mark.parametrize("line", BLOCKING)
@pytest.mark.parametrize("timeout", ["-0", "9007199254740"])
def test_long_and_endless_timeouts_wait(client: Client, waiter: Waiter, line: str, timeout: str) -> None:
    create(client, "q")
    waiter.send(*line.format(timeout).split())
    wait_for_waiting(client, "q", consumers=1)
    client.rpush("q", "m")
    reply = waiter.reply()
    assert reply in (b"m", [b"q", b"m"], [b"q", [b"m"]])


# Moves of one message from q to d. SMOVE moves 1.
ALL_MOVES: list[Words] = [
    ("LMOVE", "q", "d", "LEFT", "LEFT"),
    ("RPOPLPUSH", "q", "d"),
    ("BLMOVE", "q", "d", "RIGHT", "LEFT", TIMEOUT),
    ("BRPOPLPUSH", "q", "d", TIMEOUT),
    ("SMOVE", "q", "d", "1"),
]
each_move = pytest.mark.parametrize("words", ALL_MOVES, ids=lambda words: words[0])


@each_move
@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("PRESSURE.CREATE d BOUND 1 OVERFLOW ERROR|SADD d there", "FULL"),
        ("PRESSURE.CREATE d|SADD d there|PRESSURE.CLOSE d", "CLOSED"),
    ],
    ids=["full", "closed"],
)
def test_a_move_that_is_refused_changes_nothing(
    client: Client, waiter: Waiter, words: Words, target: str, code: str
) -> None:
    for line in target.split("|"):
        waiter(*line.split())
    client.rpush("q", "1", "2")
    assert is_refused(waiter(*words), code)
    assert (client.lrange("q", 0, -1), client.lrange("d", 0, -1)) == ([b"1", b"2"], [b"there"])
    assert about(client, "q")[b"consumed_messages"] == 0


@each_move
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_move_to_a_full_queue_waits_for_room_and_creates_no_queue(
    client: Client, waiter: Waiter, words: Words, is_deleted: bool
) -> None:
    create(client, "d", "BOUND", 1)
    client.rpush("q", "1", "2")
    client.sadd("d", "there")
    waiter.send(*words)
    wait_for_blocked(client, 1)
    assert client.lrange("q", 0, -1) == [b"1", b"2"]
    if is_deleted:
        client.delete("d")
        assert is_refused(waiter.reply(), "NOQUEUE")
        assert (client.lrange("q", 0, -1), client.exists("d")) == ([b"1", b"2"], 0)
    else:
        assert client.spop("d") == b"there"
        assert waiter.reply() in (b"1", 1)
        assert (client.lrange("q", 0, -1), client.lrange("d", 0, -1)) == ([b"2"], [b"1"])


def hold(client: Client, direct: Client, role: str) -> Steps[Any]:
    """Begin a native get from q or put on d, which then holds its role."""
    held, _, queue = role.partition(" of ")
    native = NativeSteps(direct, queue, "native-holder")
    steps: Steps[Any] = native.get() if held == "consumer" else native.put(b"native")
    step_until(steps, lambda: about(client, queue)[held.encode()] == b"native-holder")
    return steps


@pytest.mark.parametrize("role", ["consumer of q", "producer of d"])
@each_move
def test_a_move_waits_for_a_role_that_a_native_client_holds(
    client: Client, direct: Client, waiter: Waiter, words: Words, role: str
) -> None:
    client.rpush("q", "0", "1", "2")
    create(client, "d")
    steps = hold(client, direct, role)
    waiter.send(*words)
    wait_for_blocked(client, 1)
    assert client.llen("q") == 3
    run(steps)
    reply = waiter.reply()
    queued = client.lrange("q", 0, -1) + client.lrange("d", 0, -1)
    is_consumer = role == "consumer of q"
    assert sorted(queued) == ([b"1", b"2"] if is_consumer else [b"0", b"1", b"2", b"native"])
    assert reply in (1, b"1" if is_consumer else b"0")


@pytest.mark.parametrize("role", ["consumer of q", "producer of d"])
def test_a_move_fails_after_the_role_timeout_and_changes_nothing(
    backend: Valkey, direct: Client, start_server: StartServer, role: str
) -> None:
    server = start_server("--backend", backend.url, "--role-timeout", "0.1")
    with server.client() as client, Waiter(server.port) as waiter:
        client.rpush("q", "1", "2")
        create(client, "d")
        steps = hold(client, direct, role)
        for words in ALL_MOVES:
            reply = waiter(*words)
            assert is_refused(reply, "INUSE"), words
            assert f"queue '{role[-1]}'" in str(reply)
            assert "native-holder" in str(reply)
        assert (client.lrange("q", 0, -1), client.llen("d")) == ([b"1", b"2"], 0)
        run(steps)


def test_a_move_that_waited_for_room_moves_a_native_message(
    client: Client, waiter: Waiter, direct: Client
) -> None:
    create(client, "d", "BOUND", 1)
    client.rpush("d", "full")
    client.rpush("q", "gone")
    waiter.send("BLMOVE", "q", "d", "RIGHT", "LEFT", 0)
    wait_for_waiting(client, "q", consumers=1)
    assert client.lpop("q") == b"gone"
    assert client.lpop("d") == b"full"
    # The move finds no message, and waits again.
    wait_for_waiting(client, "q", consumers=1)
    NativeClient(direct, "q").put(b"next")
    assert waiter.reply() == b"next"
    assert client.lrange("d", 0, -1) == [b"next"]


def test_a_pop_whose_timeout_ends_during_a_call_gets_the_message_of_the_call(
    backend: Valkey, start_server: StartServer
) -> None:
    with BackendRelay(backend.socket, delay=0.05) as relay:
        server = start_server("--backend", relay.url)
        with server.client() as client, Waiter(server.port) as waiter:
            client.rpush("q", "m")
            assert waiter("BLPOP", "none", "q", 0.01) == [b"q", b"m"]
            assert client.llen("q") == 0


def test_too_many_queues_are_refused(waiter: Waiter) -> None:
    names = [f"q{number}" for number in range(1001)]
    assert str(waiter("BLPOP", *names, 0.01)) == "ERR too many queues: at most 1000"
    assert waiter("BLPOP", *names[:1000], 0.01) is None


@pytest.mark.parametrize(
    "words",
    [("BLPOP", "closed", "busy", 0), ("BLMPOP", 0, 2, "closed", "busy", "LEFT")],
    ids=lambda words: words[0],
)
def test_a_pop_passes_over_a_closed_queue(client: Client, waiter: Waiter, words: Words) -> None:
    create(client, "closed")
    client.execute_command("PRESSURE.CLOSE", "closed")
    client.rpush("busy", "1", "2")
    assert waiter(*words)[1] in (b"1", [b"1"])
    assert client.lpop("busy") == b"2"
    assert is_refused(waiter(*words), "CLOSED")


@each_move
def test_a_move_within_a_full_queue_works(client: Client, waiter: Waiter, words: Words) -> None:
    create(client, "q", "BOUND", 2, "OVERFLOW", "ERROR")
    client.rpush("q", "1", "2")
    assert waiter(words[0], "q", "q", *words[3:]) in (b"1", 1)
    expected = [b"1", b"2"] if words[0] == "SMOVE" else [b"2", b"1"]
    assert client.lrange("q", 0, -1) == expected
