"""CLIENT UNBLOCK: the replies of a wait that it ends, and messages that come at the same moment."""

import select
import time
from typing import Any

import pytest
import redis

from tests.support.faults import stopped
from tests.support.native import NativeSteps, run, step_until
from tests.support.programs import TIMEOUT, Client, Server, StartServer, StartValkey, Valkey, wait_for
from tests.support.protocols import BEANSTALK, MEMCACHED, Wire
from tests.support.waiters import (
    Waiter,
    Words,
    create,
    is_refused,
    packed,
    wait_for_blocked,
    wait_for_waiting,
    waiters,
)

UNBLOCKED = "UNBLOCKED client unblocked via CLIENT UNBLOCK"
# Commands that wait for a message; {} is their timeout.
FOR_MESSAGES: list[Words] = [
    ("BLPOP", "q", "{}"),
    ("BRPOP", "a", "q", "b", "{}"),
    ("BLMPOP", "{}", 1, "q", "LEFT"),
    ("BLMPOP", "{}", 2, "a", "q", "LEFT", "COUNT", 2),
    ("BLMOVE", "q", "a", "LEFT", "LEFT", "{}"),
    ("BRPOPLPUSH", "q", "a", "{}"),
    ("PRESSURE.GET", "q", "TIMEOUT", "{}"),
    ("PRESSURE.RESERVE", "q", "TIMEOUT", "{}"),
    ("PRESSURE.RESERVE", "q", "TIMEOUT", "{}", "COUNT", 2),
    ("PRESSURE.RESERVE", "q", "a", "TIMEOUT", "{}"),
    ("PRESSURE.RESERVE", *(f"q{number}" for number in range(30)), "TIMEOUT", "{}"),
    ("PRESSURE.READ", "l", "GROUP", "g", "reader", "TIMEOUT", "{}"),
]
FOR_ROOM: list[Words] = [
    ("SADD", "f", "x"),
    ("SADD", "f", "x", "y"),
    ("RPUSH", "f", "x"),
    ("LPUSH", "f", "x", "y"),
    ("PRESSURE.PUT", "f", "x"),
    ("PRESSURE.PUT", "f", "x", "TIMEOUT", 0),
    ("LMOVE", "s", "f", "LEFT", "LEFT"),
    ("BLMOVE", "s", "f", "LEFT", "LEFT", 0),
]


def words_with(words: Words, timeout: float) -> Words:
    return tuple(str(word).format(timeout) if word == "{}" else word for word in words)


def named(words: Words) -> str:
    return " ".join(map(str, words[:4]))


def unblock(client: Client, number: int, *how: str) -> Any:
    return client.execute_command("CLIENT", "UNBLOCK", number, *how)


def begin(client: Client, waiter: Waiter, *requests: Words) -> int:
    """Let a client wait, alone. Return its id."""
    number: int = waiter("CLIENT", "ID")
    waiter.socket.sendall(b"".join(packed(*words) for words in requests))
    wait_for_blocked(client, 1)
    return number


@pytest.fixture
def queues(client: Client) -> None:
    """An empty queue and an empty group; a full queue, and one with a message for it."""
    create(client, "q")
    create(client, "l", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "l", "g")
    create(client, "f", "BOUND", 1)
    client.rpush("f", "full")
    client.rpush("s", "moved")


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("words", FOR_MESSAGES, ids=named)
def test_a_client_that_waits_for_a_message_gets_the_reply_of_its_timeout_or_an_error(
    client: Client, waiter: Waiter, words: Words
) -> None:
    expected = waiter(*words_with(words, 0.001))
    for how in ((), ("TIMEOUT",), ("timeout",), ("ERROR",)):
        number = begin(client, waiter, words_with(words, 0))
        assert unblock(client, number, *how) == 1
        found = waiter.reply()
        if how == ("ERROR",):
            assert str(found) == UNBLOCKED
        else:
            assert (type(found), str(found)) == (type(expected), str(expected))
        assert unblock(client, number, *how) == 0
    wait_for_waiting(client, "q")
    wait_for_blocked(client, 0)


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("words", FOR_ROOM, ids=named)
def test_a_client_that_waits_for_room_hears_that_the_queue_is_full_or_gets_an_error(
    client: Client, waiter: Waiter, words: Words
) -> None:
    assert unblock(client, begin(client, waiter, words)) == 1
    assert is_refused(waiter.reply(), "FULL")
    assert unblock(client, begin(client, waiter, words), "ERROR") == 1
    assert str(waiter.reply()) == UNBLOCKED
    wait_for_blocked(client, 0)
    assert client.lrange("f", 0, -1) == [b"full"]
    assert client.lrange("s", 0, -1) == [b"moved"]
    assert client.rpop("f") == b"full"
    assert waiter("RPUSH", "f", "later") == 1


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_a_put_that_was_done_in_part_says_so(client: Client, waiter: Waiter, how: str) -> None:
    create(client, "q", "BOUND", 2)
    number = begin(client, waiter, ("RPUSH", "q", "1", "2", "3"))
    assert unblock(client, number, how) == 1
    reply = str(waiter.reply())
    assert reply.startswith("FULL" if how == "TIMEOUT" else UNBLOCKED)
    assert reply.endswith("2 of the command's messages had been put already")
    assert client.lrange("q", 0, -1) == [b"1", b"2"]


def test_equal_puts_that_wait_together_end_together(client: Client, waiter: Waiter) -> None:
    create(client, "q", "BOUND", 1)
    puts: list[Words] = [("RPUSH", "q", number) for number in range(4)]
    assert unblock(client, begin(client, waiter, *puts, ("PING",))) == 1
    assert waiter.reply() == 1
    assert all(is_refused(waiter.reply(), "FULL") for _ in range(3))
    assert waiter.reply() == b"PONG"
    assert client.lrange("q", 0, -1) == [b"0"]


@pytest.mark.parametrize("words", [("BLPOP", "q", 0), ("BLPOP", "a", "q", 0)])
def test_commands_after_the_one_that_waited_are_executed(
    client: Client, waiter: Waiter, words: Words
) -> None:
    create(client, "q")
    assert unblock(client, begin(client, waiter, words, ("RPUSH", "q", "m"), words)) == 1
    assert [waiter.reply() for _ in range(3)] == [None, 1, [b"q", b"m"]]


def test_others_in_the_line_keep_their_places(server: Server, client: Client) -> None:
    create(client, "q")
    with waiters(server, 5) as waiting:
        numbers = [one("CLIENT", "ID") for one in waiting]
        for count, one in enumerate(waiting, 1):
            one.send("BLPOP", "q", 0)
            wait_for_waiting(client, "q", consumers=count)
        assert unblock(client, numbers[0]) == 1
        assert unblock(client, numbers[2], "ERROR") == 1
        client.rpush("q", "1", "2", "3")
        expected = [None, [b"q", b"1"], UNBLOCKED, [b"q", b"2"], [b"q", b"3"]]
        found = [one.reply() for one in waiting]
        assert [str(one) if isinstance(one, Exception) else one for one in found] == expected


def test_clients_that_do_not_wait_are_not_unblocked(client: Client, waiter: Waiter) -> None:
    number = waiter("CLIENT", "ID")
    assert unblock(client, number) == 0
    assert unblock(client, number, "ERROR") == 0
    assert waiter("CLIENT", "UNBLOCK", number) == 0
    assert unblock(client, 0) == 0
    assert unblock(client, -1) == 0
    assert unblock(client, 987654321) == 0
    waiter("MULTI")
    waiter("CLIENT", "UNBLOCK", number)
    (refused,) = waiter("EXEC")
    assert str(refused) == "ERR CLIENT UNBLOCK is not allowed in a transaction"
    assert waiter("PING") == b"PONG"


def test_a_client_that_waits_for_replicas_gets_their_number(client: Client, waiter: Waiter) -> None:
    for how, reply in (("TIMEOUT", "0"), ("ERROR", UNBLOCKED)):
        assert unblock(client, begin(client, waiter, ("WAIT", 1, 0)), how) == 1
        assert str(waiter.reply()) == reply


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
@pytest.mark.parametrize("names", ["q", "q r"])
def test_a_beanstalk_client_is_unblocked(
    backend: Valkey, start_server: StartServer, how: str, names: str
) -> None:
    server = start_server(
        "--backend", backend.url, "--listen", "resp://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0"
    )
    with server.client() as client, Wire(BEANSTALK, server) as worker:
        for name in names.split():
            worker(b"watch %b\r\n" % name.encode())
        worker(b"ignore default\r\n")
        worker.send(b"reserve\r\n")
        wait_for_blocked(client, 1)
        (number,) = [int(one["id"]) for one in client.client_list() if one["protocol"] == "beanstalk"]
        assert unblock(client, number, how) == 1
        assert worker.reply() == (b"TIMED_OUT" if how == "TIMEOUT" else b"INTERNAL_ERROR")
        assert "replied INTERNAL_ERROR" not in server.log
        worker.send(b"reserve\r\n")
        client.rpush("q", "m")
        assert worker.message() == b"m"


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
@pytest.mark.parametrize("option", [b"", b"/open", b"/peek"])
def test_a_memcached_client_is_unblocked(
    backend: Valkey, start_server: StartServer, how: str, option: bytes
) -> None:
    server = start_server(
        "--backend", backend.url, "--listen", "resp://127.0.0.1:0", "--listen", "memcached://127.0.0.1:0"
    )
    with server.client() as client, Wire(MEMCACHED, server) as worker:
        worker.send(b"get q%b/t=100000\r\n" % option)
        wait_for_blocked(client, 1)
        (number,) = [int(one["id"]) for one in client.client_list() if one["protocol"] == "memcached"]
        assert unblock(client, number, how) == 1
        assert worker.reply() == (b"END" if how == "TIMEOUT" else b"SERVER_ERROR " + UNBLOCKED.encode())


@pytest.mark.parametrize("words", [("BLPOP", "q", 0), ("BLPOP", "a", "q", 0)])
def test_while_the_backend_does_not_answer_it_is_not_known_whether_the_client_gets_something(
    start_valkey: StartValkey, start_server: StartServer, words: Words
) -> None:
    """The put's call also serves the waiting client, so what that gets is in flight with it."""
    valkey = start_valkey()
    server = start_server("--backend", valkey.url)
    with server.client() as client, waiters(server, 2) as (waiting, putting):
        create(client, "q")
        number = begin(client, waiting, words)
        with stopped(valkey.process):
            putting.send("RPUSH", "q", "m")
            wait_for(lambda: "rpush" in {one["cmd"] for one in client.client_list()}, "the put")
            with pytest.raises(redis.ResponseError, match="BACKEND the backend has not answered in time"):
                unblock(client, number, "ERROR")
            assert unblock(client, number) == 0  # it is being unblocked
        assert waiting.reply() == [b"q", b"m"]
        assert putting.reply() == 1
        assert unblock(client, number) == 0


@pytest.mark.parametrize(
    ("role", "requests"),
    [
        ("producer", [("SADD", "q", "x")]),
        ("consumer", [("SPOP", "q")]),
        ("consumer", [("MULTI",), ("SPOP", "q"), ("EXEC",)]),
        ("consumer", [("DEL", "q")]),
    ],
)
@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_a_client_that_waits_for_a_role_hears_who_has_it(
    backend: Valkey, direct: Client, start_server: StartServer, role: str, requests: list[Words], how: str
) -> None:
    server = start_server("--backend", backend.url, "--role-timeout", "60")
    with server.client() as client, Waiter(server.port) as waiter:
        client.rpush("q", "first", "second")
        native = NativeSteps(direct, "q", "native-holder")
        steps: Any = native.put(b"third") if role == "producer" else native.get()
        step_until(steps, lambda: not direct.llen(f"__pressure__:q:{role}_free"))
        next(steps)  # writes the holder's name
        number = begin(client, waiter, *requests)
        assert unblock(client, number, how) == 1
        *_, reply = [waiter.reply() for _ in requests]
        if how == "ERROR":
            assert str(reply) == UNBLOCKED
        else:
            assert is_refused(reply, "INUSE")
            assert "native-holder" in str(reply)
        wait_for_blocked(client, 0)
        run(steps)
        if requests == [("DEL", "q")]:
            # What is left is deleted all the same, when the role is free.
            wait_for(lambda: not client.exists("q"), "the queue to be deleted")


STEP = 0.00003
# From a put long before the unblocking to one long after it.
TURNS = range(-30, 31)


def race(
    turn: int, changing: Waiter, change: Words, unblocking: Waiter, unblock: Words, waiting: Waiter
) -> None:
    """Send both requests: the first one is the change if `turn` is negative.

    The second request follows after as many steps. At the ends it follows when the first has had its effect.
    """
    first, second = (changing, change), (unblocking, unblock)
    if turn > 0:
        first, second = second, first
    begun = time.perf_counter()
    first[0].send(*first[1])
    if turn in (TURNS[0], TURNS[-1]):
        select.select([waiting.socket], [], [], TIMEOUT)
    while time.perf_counter() < begun + abs(turn) * STEP:
        pass
    second[0].send(*second[1])


RACED: list[Words] = [
    ("BLPOP", "q", 0),
    ("BLPOP", "a", "q", 0),
    ("BLMPOP", 0, 2, "a", "q", "LEFT", "COUNT", 2),
    ("BLMOVE", "q", "d", "LEFT", "LEFT", 0),
    ("PRESSURE.RESERVE", "q", "a", "TIMEOUT", 0, "DETACHED", "worker"),
    ("PRESSURE.RESERVE", *(f"t{number}" for number in range(20)), "q", "TIMEOUT", 0, "DETACHED", "worker"),
]


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
@pytest.mark.parametrize("words", RACED, ids=named)
def test_a_message_that_comes_as_the_wait_ends_is_delivered_or_stays(
    server: Server, client: Client, words: Words, how: str
) -> None:
    """The put comes before the unblocking, at the same time, and after it."""
    create(client, "q", "TYPE", "JOBS")
    answers: list[int] = []
    with waiters(server, 3) as (waiting, putting, unblocking):
        request = ("CLIENT", "UNBLOCK", waiting("CLIENT", "ID"), how)
        for turn in TURNS:
            message = f"m{turn}"
            waiting.send(*words)
            wait_for_blocked(client, 1)
            race(turn, putting, ("RPUSH", "q", message), unblocking, request, waiting)
            answers.append(unblocking.reply())
            reply = waiting.reply()
            putting.reply()
            left = client.lpop("q")
            if answers[-1]:
                assert str(reply) == (UNBLOCKED if how == "ERROR" else "None")
                assert left == message.encode()
            else:
                assert message in str(reply)
                assert left is None
    assert (answers[0], answers[-1]) == (0, 1)


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_room_that_comes_as_the_wait_ends_is_used_or_stays(server: Server, client: Client, how: str) -> None:
    create(client, "q", "BOUND", 1)
    answers: list[int] = []
    with waiters(server, 3) as (waiting, taking, unblocking):
        request = ("CLIENT", "UNBLOCK", waiting("CLIENT", "ID"), how)
        for turn in TURNS:
            client.rpush("q", "first")
            waiting.send("RPUSH", "q", "second")
            wait_for_blocked(client, 1)
            race(turn, taking, ("LPOP", "q"), unblocking, request, waiting)
            answers.append(unblocking.reply())
            reply = waiting.reply()
            assert taking.reply() == b"first"
            assert client.lpop("q") == (None if answers[-1] else b"second")
            if answers[-1]:
                assert is_refused(reply, "UNBLOCKED" if how == "ERROR" else "FULL")
            else:
                assert reply == 1
    assert (answers[0], answers[-1]) == (0, 1)
