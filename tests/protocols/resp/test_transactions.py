"""MULTI, EXEC, DISCARD, WATCH and UNWATCH: the replies of Redis, and what is particular to queues.

tests/clients/transactions.* use them through other client libraries.
"""

import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pressure_server import client as library
from tests.support.native import NativeClient, NativeSteps, QueueClosedError, Steps, run, step_until
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    Valkey,
    keys_left,
    wait_for,
    wait_until_settled,
)
from tests.support.protocols import Reply
from tests.support.side_by_side import Pair, Wire, difference, split, words
from tests.support.waiters import Waiter, blocked, create, is_refused, packed, wait_for_waiting

# Commands of a client A, and those of a client B, which begin with `B `.
LIKE_REDIS = {
    "a transaction": (
        "MULTI|SADD q a b|SADD q a|SCARD q|SISMEMBER q b|SMEMBERS q|SPOP q 2|SPOP q|SPOP q 2|EXEC"
    ),
    "empty": "MULTI|EXEC|MULTI|EXEC|EXEC",
    "discarded": "MULTI|SADD q a|DISCARD|SCARD q|EXEC|DISCARD",
    "without MULTI": "EXEC|DISCARD|UNWATCH|PING",
    "nested": "MULTI|SADD q a|MULTI|SADD q b|EXEC|SCARD q",
    "WATCH after MULTI": "MULTI|WATCH q|SADD q a|EXEC|SCARD q",
    "UNWATCH after MULTI": "WATCH q|MULTI|UNWATCH|SADD q a|EXEC",
    "wrong number of arguments": "MULTI|SADD q|SADD q a|EXEC|SCARD q|EXEC",
    "unknown command": "MULTI|SADD q a|NONSENSE x|SADD q b|EXEC|SCARD q",
    "unknown subcommand": "MULTI|CLIENT NONSENSE|SADD q a|EXEC|SCARD q",
    "refused, then discarded": "MULTI|SADD q|DISCARD|MULTI|SADD q a|EXEC",
    "MULTI with an argument": "MULTI x|MULTI|MULTI x|SADD q a|EXEC|SCARD q",
    "EXEC with an argument": "MULTI|SADD q a|EXEC x|EXEC|SCARD q",
    "DISCARD with an argument": "MULTI|SADD q a|DISCARD x|EXEC|SCARD q",
    "WATCH without an argument": "WATCH|MULTI|WATCH|SADD q a|EXEC|SCARD q",
    "UNWATCH with an argument": "UNWATCH x|MULTI|UNWATCH x|EXEC",
    "errors during EXEC": "MULTI|SADD q a|SPOP q -1|SPOP q x|LPOP r x|SELECT 99|SADD q b|EXEC|SCARD q",
    "errors of blocking commands": "MULTI|BLPOP q x|BLPOP q -1|BLMPOP 0 0 q LEFT|SADD q b|EXEC|SCARD q",
    "nothing blocks": (
        "MULTI|BLPOP q 0|BRPOP q r 0|BLMOVE q r LEFT LEFT 0|BRPOPLPUSH q r 0|BLMPOP 0 2 q r LEFT|"
        "LMPOP 1 q LEFT|EXEC"
    ),
    "blocking commands with a message": (
        "RPUSH q a|RPUSH r b|MULTI|BLPOP p q 0|BRPOP q r 0|RPUSH q c|BLMOVE q r LEFT LEFT 0|BRPOPLPUSH r q 0|"
        "BLMPOP 0 2 p q LEFT COUNT 5|BLPOP p q r 0|EXEC"
    ),
    "lists": (
        "MULTI|RPUSH q a b c|LLEN q|LRANGE q 0 -1|LINDEX q 1|LPOP q|LPOP q 5|LPOP q|LPOP q 5|EXEC|LLEN q"
    ),
    "moves": (
        "MULTI|SADD s a b|SMOVE s d a|SMOVE s d nothing|SISMEMBER s a|SMEMBERS d|SINTER s d|SUNION s d|"
        "SDIFF s d|SINTERCARD 2 s d|SADD s a|SINTER s d|EXEC"
    ),
    "list moves": (
        "MULTI|RPUSH s a|RPOPLPUSH s d|RPOPLPUSH s d|LMOVE d s LEFT RIGHT|LRANGE s 0 -1|LLEN d|EXEC"
    ),
    "deleting": (
        "SADD q a b|SADD r c|MULTI|DEL q r nothing|SCARD q|EXISTS r|SADD q d|SMEMBERS q|UNLINK q|EXISTS q|"
        "EXEC"
    ),
    "keys": (
        "SADD q a|MULTI|KEYS *|SADD r b|DBSIZE|EXISTS q r|TYPE r|SCAN 0 COUNT 100|DEL q|RANDOMKEY|FLUSHDB|"
        "DBSIZE|EXEC"
    ),
    "databases": (
        "MULTI|SADD q a|SELECT 1|SADD q b|SADD q c|SELECT 2|SCARD q|EXEC|SCARD q|SELECT 1|SCARD q|FLUSHDB"
    ),
    "the connection": (
        "MULTI|PING|PING hello|ECHO x|CLIENT SETNAME me|SADD q a|CLIENT GETNAME|HELLO 9|AUTH x|"
        "COMMAND INFO nonsense|EXEC"
    ),
    "COMMAND after MULTI": "MULTI|COMMAND|COMMAND x|DISCARD|MULTI|command|DISCARD|MULTI|CLIENT|EXEC|PING",
    "QUIT after MULTI": "MULTI|SADD q a|QUIT|B SCARD q",
    "RESET after MULTI": "MULTI|SADD q a|RESET|EXEC|SCARD q",
    "empty names and messages": "MULTI|SADD '' ''|SISMEMBER '' ''|SPOP ''|ECHO ''|EXEC",
    "lower case": "multi|sadd q a|exec|Multi|sadd q b|DiScArD|SCARD q",
    "invisible before EXEC": "MULTI|SADD q a|B SCARD q|SADD r b|B EXISTS r|EXEC|B SCARD q|B SMEMBERS r",
    "two clients at a time": "MULTI|SADD q a|B MULTI|B SADD q a|B SADD q b|EXEC|B EXEC|B SCARD q",
    "watched, unchanged": "SADD q a|WATCH q r|B SCARD q|B SPOP r|B SADD q a|B SREM q x|MULTI|SPOP q|EXEC",
    "watched, a put": "SADD q a|WATCH q|B SADD q b|MULTI|SPOP q|EXEC|SCARD q",
    "watched, a get": "SADD q a|WATCH q|B SPOP q|MULTI|SADD q b|EXEC|SCARD q",
    "watched, removed": "SADD q a b|WATCH q|B SREM q b|MULTI|DEL q|EXEC|SCARD q",
    "watched, moved away": "SADD q a b|WATCH q|B SMOVE q r a|MULTI|DEL q|EXEC|SCARD q",
    "watched, moved to": "SADD q a b|WATCH r|B SMOVE q r a|MULTI|DEL r|EXEC|SCARD r",
    "watched, put and taken": "SADD q a|WATCH q|B SADD q b|B SREM q b|MULTI|SPOP q|EXEC|SCARD q",
    "watched, created": "WATCH q|B SADD q a|MULTI|SADD q b|EXEC|SCARD q",
    "watched, deleted": "SADD q a|WATCH q|B DEL q|MULTI|SADD q b|EXEC|EXISTS q",
    "watched, deleted and put again": "SADD q a|WATCH q|B DEL q|B SADD q b|MULTI|SPOP q|EXEC|SCARD q",
    "watched, flushed": "SADD q a|WATCH q|B FLUSHALL|MULTI|SADD q b|EXEC|EXISTS q",
    "watched, in a transaction": "SADD q a|WATCH q|B MULTI|B SADD q b|MULTI|SPOP q|B EXEC|EXEC|SCARD q",
    "watched, changed by itself": "SADD q a|WATCH q|SADD q b|MULTI|SPOP q 9|EXEC|SCARD q",
    "watched, changed after MULTI": "WATCH q|MULTI|SADD q a|B SADD q b|EXEC|SCARD q",
    "watched, the second of two": "WATCH p q|B SADD q a|MULTI|SADD r b|EXEC|EXISTS r",
    "watched again": "WATCH q|B SADD q a|WATCH q|MULTI|SADD q b|EXEC|SCARD q",
    "watched by two clients": "WATCH q|B WATCH q|MULTI|SADD q a|B MULTI|B SADD q b|EXEC|B EXEC|SMEMBERS q",
    "no longer watched": "WATCH q|B SADD q a|UNWATCH|MULTI|SADD q b|EXEC|SCARD q",
    "watched until EXEC": "WATCH q|B SADD q a|MULTI|EXEC|MULTI|SADD q b|EXEC|SCARD q",
    "watched until DISCARD": "WATCH q|B SADD q a|MULTI|DISCARD|MULTI|SADD q b|EXEC|SCARD q",
    "watched until EXECABORT": "WATCH q|B SADD q a|MULTI|NONSENSE|EXEC|MULTI|SADD q b|EXEC|SCARD q",
    "watched until RESET": "WATCH q|B SADD q a|RESET|MULTI|SADD q b|EXEC|SCARD q",
    "watched, changed and refused": "WATCH q|B SADD q a|MULTI|NONSENSE|EXEC|SCARD q",
    "watched, changed, no queue command": "WATCH q|B SADD q a|MULTI|PING|EXEC|MULTI|PING|EXEC",
    "watched, unchanged, no queue command": "WATCH q|MULTI|PING|EXEC",
    "watched, changed, a queue command later": (
        "WATCH q|B SADD q a|MULTI|CLIENT SETNAME me|SADD q b|EXEC|CLIENT GETNAME|SCARD q"
    ),
    "watched, changed in another database": "WATCH q|B SELECT 1|B SADD q a|MULTI|SADD q b|EXEC|B FLUSHALL",
    "watched before SELECT": "WATCH q|SELECT 1|B SADD q a|MULTI|SADD q b|EXEC|SCARD q",
    "watched in two databases": (
        "SELECT 1|WATCH q|SELECT 0|WATCH q|B SELECT 1|B SADD q a|MULTI|SADD q b|EXEC|SCARD q|B FLUSHALL"
    ),
}  # fmt: skip


@pytest.mark.clients
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("name", LIKE_REDIS)
def test_replies_are_those_of_redis(pair: Pair, name: str, protocol: int) -> None:
    clients: dict[str, tuple[Wire, Wire]] = {}
    differing: list[str] = []
    for line in split(LIKE_REDIS[name]):
        client, command = ("B", line.removeprefix("B ")) if line.startswith("B ") else ("A", line)
        if client not in clients:
            clients[client] = pair.connect(protocol)
        expected, actual = (comparable(command, wire.do(words(command))) for wire in clients[client])
        if expected != actual:
            differing.append(difference(line, expected, actual))
    assert not differing, "".join(differing)


def comparable(command: str, reply: Reply) -> Reply:
    """Return the reply with the members of sets in a fixed order, and the replies of EXEC in their own."""
    if command != "EXEC":
        return reply.unordered()
    return Reply(reply.line, tuple(item.unordered() for item in reply.items))


def transact(waiter: Waiter, *commands: str) -> Any:
    """Run the commands in a transaction, and return the reply of EXEC."""
    send_transaction(waiter, *commands)
    return waiter.reply()


def send_transaction(waiter: Waiter, *commands: str) -> None:
    """Send the commands in a transaction, without reading the reply of EXEC."""
    waiter("MULTI")
    for command in commands:
        queued = waiter(*command.split())
        assert queued == b"QUEUED", queued
    waiter.send("EXEC")


def test_commands_after_exec_are_done_after_it(waiter: Waiter) -> None:
    requests = [("MULTI",), *[("RPUSH", "q", number) for number in range(500)], ("EXEC",), ("LLEN", "q")]
    waiter.socket.sendall(b"".join(packed(*request) for request in requests))
    replies = [waiter.reply() for _ in requests]
    assert replies == [b"OK", *[b"QUEUED"] * 500, list(range(1, 501)), 500]


def test_a_client_that_leaves_before_exec_does_nothing(client: Client, server: Server) -> None:
    with Waiter(server.port) as leaving:
        leaving("MULTI")
        leaving("SADD", "q", "a")
    wait_for(lambda: len(client.client_list()) == 1, "the client to be gone")
    assert client.exists("q") == 0


@pytest.mark.parametrize("queues", [("q", "q"), ("q", "r"), ("r", "q")])
def test_other_clients_never_see_half_a_transaction(
    server: Server, backend: Valkey, queues: tuple[str, str]
) -> None:
    """Each transaction puts or takes two messages: one queue's length is even, two queues' are equal."""
    first, second = queues

    def write() -> None:
        with Waiter(server.port) as waiter:
            for number in range(300):
                put = transact(waiter, f"RPUSH {first} {number}", f"RPUSH {second} {number}")
                assert all(isinstance(length, int) for length in put)
                if number % 3 == 2:
                    transact(waiter, *[f"{pop} {queue}" for queue in queues for pop in ("LPOP", "SPOP")])

    def read(connect: Callable[[], Client], prefix: str) -> set[tuple[int, int]]:
        seen: set[tuple[int, int]] = set()
        with connect() as reader:
            while not writing.done():
                seen.add(tuple(reader.pipeline().llen(prefix + first).llen(prefix + second).execute()))
        return seen

    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        readings = [
            threads.submit(read, server.client, ""),
            threads.submit(read, backend.client, "__pressure__:"),
        ]
        writing.result(3 * TIMEOUT)
    for reading in readings:
        lengths = reading.result()
        assert len(lengths) > 3
        assert all(one == worker for one, worker in lengths)
        assert first != second or all(one % 2 == 0 for one, _ in lengths)


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (1, "SADD q b"),
        (1, "RPUSH q b"),
        (1, "PRESSURE.PUT q b"),
        (1, "PRESSURE.PUT q b TIMEOUT 0"),
        (2, "SADD q b c"),
        (2, "SADD q b c d"),
    ],
)
def test_a_put_without_room_fails_as_a_whole_and_the_others_are_done(
    client: Client, waiter: Waiter, bound: int, words: str
) -> None:
    create(client, "q", "BOUND", bound)
    replies = transact(waiter, "SADD q a", words, "SADD r c", "SPOP q", "SADD q d")
    assert [replies[0], *replies[2:]] == [1, 1, b"a", 1]
    assert is_refused(replies[1], "FULL")
    assert client.lrange("q", 0, -1) == [b"d"]


def test_a_move_to_a_full_queue_fails_and_leaves_the_message(client: Client, waiter: Waiter) -> None:
    create(client, "d", "BOUND", 1)
    client.sadd("d", "there")
    client.sadd("s", "message")
    replies = transact(waiter, "LMOVE s d LEFT LEFT", "SMOVE s d message", "BLMOVE s d LEFT LEFT 0", "LLEN s")
    assert all(is_refused(reply, "FULL") for reply in replies[:3]), replies
    assert replies[3] == 1
    assert client.lrange("s", 0, -1) == [b"message"]


@pytest.mark.parametrize(
    ("name", "result"), [("SINTER", [b"b"]), ("SUNION", [b"a", b"b", b"c"]), ("SDIFF", [b"a"])]
)
def test_results_of_set_algebra_are_put_with_watch_as_no_transaction_stores_them(
    client: Client, waiter: Waiter, name: str, result: list[bytes]
) -> None:
    client.sadd("p", "a", "b")
    client.sadd("q", "b", "c")
    put, refused = transact(waiter, "SADD r x", f"{name}STORE r p q")
    assert (put, client.lrange("r", 0, -1)) == (1, [b"x"])
    assert "cannot be stored in a transaction" in str(refused)
    waiter("WATCH", "p", "q")
    found = waiter(name, "p", "q")
    assert found == result
    assert transact(waiter, "DEL r", f"SADD r {b' '.join(found).decode()}") == [1, len(found)]
    assert client.lrange("r", 0, -1) == result


def test_pressure_commands_work_in_a_transaction(client: Client, waiter: Waiter) -> None:
    replies = transact(
        waiter, "PRESSURE.CREATE q BOUND 3", "PRESSURE.PUT q a", "PRESSURE.PUT q a NX", "PRESSURE.LENGTH q",
        "PRESSURE.GET q", "PRESSURE.GET q", "PRESSURE.GET q TIMEOUT 5", "PRESSURE.EXISTS q",
        "PRESSURE.CLOSE q", "PRESSURE.CLOSED q", "PRESSURE.PUT q b", "PRESSURE.GET q", "PRESSURE.DELETE q",
        "PRESSURE.EXISTS q", "PRESSURE.GET q",
    )  # fmt: skip
    assert replies[:10] == [b"OK", 1, 0, 1, b"a", None, None, 1, b"OK", 1]
    assert is_refused(replies[10], "CLOSED")
    assert is_refused(replies[11], "CLOSED")
    assert replies[12:14] == [b"OK", 0]
    assert is_refused(replies[14], "NOQUEUE")
    assert client.keys() == []


def test_a_waiting_get_receives_only_a_message_left_after_exec(
    client: Client, waiter: Waiter, worker: Waiter
) -> None:
    create(client, "q")
    waiter.send("BLPOP", "q", 0)
    wait_for_waiting(client, "q", consumers=1)
    assert transact(worker, "RPUSH q a", "LPOP q") == [1, b"a"]
    assert transact(worker, "RPUSH q a b", "LLEN q", "LPOP q") == [2, 2, b"a"]
    assert waiter.reply() == [b"q", b"b"]


def test_client_kill_in_a_transaction_may_end_its_own_connection_after_the_reply(
    waiter: Waiter, worker: Waiter
) -> None:
    mine, others = ("CLIENT KILL ADDR {}:{}".format(*one.socket.getsockname()) for one in (waiter, worker))
    assert transact(waiter, f"{mine} SKIPME yes", mine, others) == [0, 0, 1]
    with pytest.raises(ConnectionError):
        worker("PING")
    assert transact(waiter, "SADD q a", f"{mine} SKIPME no", "SADD q b") == [1, 1, 1]
    with pytest.raises(ConnectionError):
        waiter("PING")


def test_commands_see_the_settings_of_earlier_commands(waiter: Waiter) -> None:
    replies = transact(waiter, "CLIENT SETNAME me", "CLIENT INFO", "SELECT 1", "CLIENT INFO", "COMMAND")
    assert b" name=me " in replies[1]
    assert (b" db=0 " in replies[1], b" db=1 " in replies[3]) == (True, True)
    assert len(replies[4]) == waiter("COMMAND", "COUNT")
    assert b" name=me " in waiter("CLIENT", "INFO")


@pytest.mark.parametrize(
    ("role", "command", "left"),
    [
        ("producer", "SADD q served", [b"first", b"second", b"native"]),
        ("consumer", "SPOP q", [b"second"]),
    ],
)
def test_a_transaction_does_nothing_after_the_role_timeout(
    backend: Valkey, direct: Client, start_server: StartServer, role: str, command: str, left: list[bytes]
) -> None:
    server = start_server("--backend", backend.url, "--role-timeout", "0.3")
    with server.client() as client, Waiter(server.port) as waiter:
        client.rpush("q", "first", "second")
        steps = hold_role(direct, role)
        next(steps)  # writes the holder's name
        reply = transact(waiter, "SADD r x", command, "SADD r y", "DEL r")
        assert is_refused(reply, "INUSE"), reply
        assert "native" in str(reply)
        assert client.exists("r") == 0
        run(steps)
        assert client.lrange("q", 0, -1) == left
        assert transact(waiter, "SADD r x", "SCARD r") == [1, 1]


@pytest.mark.parametrize(
    ("role", "command", "reply"), [("producer", "LPOP q", b"first"), ("consumer", "RPUSH q third", 3)]
)
def test_a_transaction_waits_only_for_the_roles_that_it_needs(
    client: Client, direct: Client, waiter: Waiter, role: str, command: str, reply: Any
) -> None:
    client.rpush("q", "first", "second")
    steps = hold_role(direct, role)
    assert transact(waiter, "LLEN q", "SISMEMBER q second", command) == [2, 1, reply]
    run(steps)


def test_a_transaction_waits_for_roles_of_two_queues(client: Client, direct: Client, waiter: Waiter) -> None:
    client.rpush("p", "first")
    client.rpush("q", "first", "second")
    putting, getting = hold_role(direct, "producer", "p"), hold_role(direct, "consumer", "q")
    begin_to_wait_for_role(direct, waiter, "SADD r x", "SADD p served", "SPOP q")
    run(putting)
    assert client.llen("p") == 2
    assert client.exists("r") == 0
    assert not waiter.has_reply()
    run(getting)
    assert waiter.reply() == [1, 1, b"second"]
    assert client.lrange("p", 0, -1) == [b"first", b"native", b"served"]


@pytest.mark.parametrize("leave", [Waiter.close, Waiter.reset], ids=["close", "reset"])
def test_a_transaction_whose_client_leaves_during_the_wait_does_nothing(
    backend: Valkey, direct: Client, start_server: StartServer, leave: Callable[[Waiter], None]
) -> None:
    # Much longer than the server needs to notice that the client has gone.
    server = start_server("--backend", backend.url, "--role-timeout", "60")
    with server.client() as client:
        client.rpush("q", "first")
        steps = hold_role(direct, "producer")
        waiter = Waiter(server.port)
        begin_to_wait_for_role(direct, waiter, "SADD r x", "SADD q served")
        leave(waiter)
        wait_for(lambda: len(client.client_list()) == 1, "the client to be gone")
        run(steps)
        # This put needs the role too, so it would come after the transaction's.
        assert client.rpush("q", "last") == 3
        assert client.lrange("q", 0, -1) == [b"first", b"native", b"last"]
        assert client.exists("r") == 0


def test_a_waiting_transaction_fails_when_the_server_stops(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--role-timeout", "60")
    with server.client() as client, Waiter(server.port) as waiter:
        client.rpush("q", "first")
        steps = hold_role(direct, "producer")
        begin_to_wait_for_role(direct, waiter, "SADD r x", "SADD q served")
        server.process.send_signal(signal.SIGTERM)
        assert waiter.ends_without_reply()
        # Server.stop might send a second signal, which would kill a server that is about to exit.
        assert server.process.wait(TIMEOUT) == 0
        run(steps)
        assert direct.lrange("__pressure__:q", 0, -1) == [b"native", b"first"]
        assert direct.exists("__pressure__:r") == 0


def test_a_deletion_waits_until_a_native_client_has_noticed(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    client.rpush("q", "first")
    steps = hold_role(direct, "producer")
    send_transaction(waiter, "SADD r x", "DEL q", "EXISTS q")
    wait_for(lambda: not client.exists("q"), "the queue to be deleted")
    assert not waiter.has_reply()
    with pytest.raises(QueueClosedError):
        run(steps)
    assert waiter.reply() == [1, 1, 0]
    assert not any(key.startswith(b"__pressure__:q") for key in keys_left(direct))


def hold_role(direct: Client, role: str, queue: str = "q") -> Steps[Any]:
    """Begin a native put or get, which then holds the role. Return its remaining steps."""
    native = NativeSteps(direct, queue, "native")
    steps: Steps[Any] = native.put(b"native") if role == "producer" else native.get()
    step_until(steps, lambda: not direct.llen(f"__pressure__:{queue}:{role}_free"))
    return steps


def begin_to_wait_for_role(direct: Client, waiter: Waiter, *commands: str) -> None:
    """Send a transaction, and return when the server waits for a role."""
    send_transaction(waiter, *commands)
    wait_for(lambda: blocked(direct), "the server to wait for the role")


NATIVE_CHANGES: dict[str, Callable[[NativeSteps], Steps[Any]]] = {
    "create": lambda native: native.create(),
    "put": lambda native: native.put(b"b"),
    "put without waiting": lambda native: native.put_non_blocking(b"b"),
    "get": lambda native: native.get(),
    "get without waiting": lambda native: native.get_non_blocking(),
    "close": lambda native: native.close(),
    "delete": lambda native: native.delete(),
}


@pytest.mark.parametrize("change", NATIVE_CHANGES)
def test_exec_is_aborted_by_a_native_change_of_a_watched_queue_only(
    client: Client, direct: Client, waiter: Waiter, change: str
) -> None:
    for watched, reply in (("other", [1]), ("q", None)):
        client.delete("q")
        if change != "create":
            client.sadd("q", "a")
        waiter("WATCH", watched)
        run(NATIVE_CHANGES[change](NativeSteps(direct, "q", "native")))
        assert transact(waiter, "SADD r x") == reply


@pytest.mark.parametrize("has_begun", [False, True], ids=["put", "put that had begun"])
def test_a_native_put_aborts_exec_once_its_message_is_queued(
    client: Client, direct: Client, waiter: Waiter, has_begun: bool
) -> None:
    client.sadd("q", "a")
    steps = NativeSteps(direct, "q", "native").put(b"b")
    if has_begun:
        step_until(steps, lambda: not direct.llen("__pressure__:q:producer_free"))
    waiter("WATCH", "q")
    step_until(steps, lambda: direct.llen("__pressure__:q") >= 2)
    # EXEC is aborted before it waits for the producer role, which the native client holds.
    assert transact(waiter, "SPOP q", "SADD q c") is None
    run(steps)
    assert client.lrange("q", 0, -1) == [b"a", b"b"]


def test_an_unfinished_native_put_and_get_abort_exec(client: Client, direct: Client, waiter: Waiter) -> None:
    # The length is the same as before, and the statistics do not count the two messages yet.
    client.sadd("q", "a")
    waiter("WATCH", "q")
    putting, getting = NativeSteps(direct, "q", "p").put(b"b"), NativeSteps(direct, "q", "c").get()
    step_until(putting, lambda: direct.llen("__pressure__:q") >= 2)
    step_until(getting, lambda: direct.llen("__pressure__:q") <= 1)
    assert transact(waiter, "SCARD q") is None


def test_a_watched_queue_that_was_created_and_deleted_is_unchanged(
    backend: Valkey, client: Client, direct: Client, waiter: Waiter
) -> None:
    # Redis aborts EXEC here.
    waiter("WATCH", "q")
    client.sadd("q", "a")
    client.delete("q")
    with library.Queue("q", backend.url) as queue:
        queue.create(0)
    NativeClient(direct, "q").delete()
    assert transact(waiter, "SADD q b") == [1]


def test_a_put_after_a_deletion_creates_the_queue_again(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q", "BOUND", 1)
    client.sadd("q", "a")
    assert transact(waiter, "DEL q", "SADD q b c", "SMEMBERS q") == [1, 2, [b"b", b"c"]]
    run(NativeSteps(direct, "q", "native").put_non_blocking(b"d"))
    assert client.lrange("q", 0, -1) == [b"b", b"c", b"d"]
    replies = transact(waiter, "SADD q b", "SADD r c", "DEL q r nothing", "EXISTS q r", "SCARD q")
    assert replies == [0, 1, 2, 0, 0]
    wait_until_settled(direct)
    assert keys_left(direct) == []


def test_a_transaction_may_use_a_thousand_queues(client: Client, waiter: Waiter) -> None:
    names = [f"q{number}" for number in range(1000)]
    puts = [f"SADD {name} message" for name in names]
    replies = transact(waiter, *puts, "EXISTS " + " ".join(names), "DEL " + " ".join(names), "EXISTS q0")
    assert replies == [1] * 1000 + [1000, 1000, 0]
    assert client.dbsize() == 0


def test_a_transaction_that_is_too_large_is_refused(backend: Valkey, start_server: StartServer) -> None:
    # The maximum is 64 MiB and --max-message-bytes; this transaction has 80 MiB.
    server = start_server("--backend", backend.url, "--max-message-bytes", str(1 << 20))
    message = bytes(1 << 20)
    with server.client() as client, Waiter(server.port) as waiter:
        waiter("MULTI")
        replies = [waiter("RPUSH", "q", message) for _ in range(80)]
        fitting = replies.count(b"QUEUED")
        assert 60 < fitting < 66
        assert all(str(reply) == "ERR the transaction is too large" for reply in replies[fitting:])
        assert is_refused(waiter("EXEC"), "EXECABORT")
        assert client.exists("q") == 0
        assert transact(waiter, "RPUSH q a") == [1]


@pytest.mark.parametrize("kind", ["fifo", "jobs"])
def test_a_transaction_that_keeps_the_backend_busy_does_no_more_than_puts(
    client: Client, waiter: Waiter, kind: str
) -> None:
    # The estimated work of a read (lua/core/call.lua) is at least 15 ms, and of 100 more than a second.
    numbers = [b"%d" % number for number in range(30_000)]
    create(client, "q", "TYPE", kind)
    client.rpush("q", *numbers)
    commands = [("LRANGE", "q", 0, -1)] * 100 + [("LPOP", "q"), ("LREM", "q", 0, "7"), ("RPUSH", "q", "last")]
    waiter.send("MULTI")
    for command in commands:
        waiter.send(*command)
    waiter.send("EXEC")
    *_, replies = [waiter.reply() for _ in range(len(commands) + 2)]
    read = sum(reply == numbers for reply in replies)
    assert 1 < read < 100
    assert all(is_refused(reply, "ERR not done on queue 'q':") for reply in replies[read:-1])
    assert replies[-1] == client.llen("q") == 30_001


def test_messages_of_native_clients_that_become_jobs_are_not_the_work_of_a_transaction(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q", "TYPE", "jobs")
    for first in range(0, 260_000, 20_000):
        direct.lpush("__pressure__:q", *range(first, first + 20_000))
    assert transact(waiter, "LPOP q", "RPUSH done m") == [b"0", 1]


# k is closed and empty, o has three messages, e is open and empty, and q:bound is not a queue's name.
POPS_WITH_A_CLOSED_QUEUE = """
BLPOP k o 0.1|BLPOP o k 0.1|BLPOP e k o 0.1|BRPOP k k o 0.1|BLPOP k 0.1|BLPOP k e 0.1|BLPOP k nothing 0.1
LMPOP 2 k o LEFT COUNT 2|LMPOP 1 k LEFT|LMPOP 2 k e LEFT
BLMPOP 0.1 2 k o LEFT COUNT 2|BLMPOP 0.1 1 k LEFT
BLPOP o q:bound 0.1|LMPOP 2 o q:bound LEFT
"""


@pytest.mark.parametrize("line", split(POPS_WITH_A_CLOSED_QUEUE))
def test_pops_with_a_closed_queue_reply_the_same_in_a_transaction(
    client: Client, waiter: Waiter, line: str
) -> None:
    found: list[tuple[str, list[bytes]]] = []
    ways: list[Callable[[], Any]] = [lambda: waiter(*line.split()), lambda: transact(waiter, line)[0]]
    for do in ways:
        client.flushdb()
        for queue in ("k", "e"):
            create(client, queue)
        client.execute_command("PRESSURE.CLOSE", "k")
        client.rpush("o", "m1", "m2", "m3")
        found.append((str(do()), client.lrange("o", 0, -1)))
        reply, left = found[-1]
        assert sorted(re.findall(r"b'(m\d)'", f"{reply} {left}")) == ["m1", "m2", "m3"]
    # Outside a transaction, a name is checked only when no earlier queue has a message.
    assert found[0] == found[1] or "q:bound" in line
