"""Clients that wait on a queue when it is closed or deleted, or when the server stops."""

import pytest

from tests.support.native import NativeClient
from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey
from tests.support.waiters import (
    Waiter,
    Words,
    all_are_refused,
    create,
    is_refused,
    wait_for_blocked,
    wait_for_waiting,
    waiters,
)

# Commands and native operations that close or delete a queue, and the error that waiting clients receive.
ENDS = [
    ("PRESSURE.CLOSE", "CLOSED"),
    ("native close", "CLOSED"),
    ("PRESSURE.DELETE", "NOQUEUE"),
    ("DEL", "NOQUEUE"),
    ("native delete", "NOQUEUE"),
]


def end_queue(end: str, client: Client, direct: Client) -> None:
    if end == "native close":
        NativeClient(direct, "q").close()
    elif end == "native delete":
        NativeClient(direct, "q").delete()
    else:
        client.execute_command(end, "q")


def assert_ended(waiting: list[Waiter], end: str, code: str) -> None:
    # A native delete closes the queue a moment before the queue is gone.
    all_are_refused(waiting, *({code, "CLOSED"} if end == "native delete" else {code}))


GETS: list[Words] = [
    ("BLPOP", "q", 0),
    ("BLPOP", "other", "q", 0),
    ("BLMPOP", 0, 1, "q", "LEFT"),
    ("BLMOVE", "q", "d", "LEFT", "LEFT", 0),
    ("PRESSURE.GET", "q"),
    ("PRESSURE.GET", "q", "TIMEOUT", 1000),
]


@pytest.mark.parametrize(("end", "code"), ENDS)
def test_waiting_gets_fail_when_the_queue_is_closed_or_deleted(
    server: Server, client: Client, direct: Client, end: str, code: str
) -> None:
    create(client, "q")
    with waiters(server, len(GETS)) as waiting:
        for waiter, words in zip(waiting, GETS, strict=True):
            waiter.send(*words)
        wait_for_waiting(client, "q", consumers=len(GETS))
        end_queue(end, client, direct)
        assert_ended(waiting, end, code)
    wait_for_blocked(client, 0)


@pytest.mark.parametrize(("end", "code"), ENDS)
def test_waiting_puts_fail_when_the_queue_is_closed_or_deleted(
    server: Server, client: Client, direct: Client, end: str, code: str
) -> None:
    create(client, "q", "BOUND", 2)
    client.sadd("q", "1", "2")
    with waiters(server, 4) as waiting:
        for waiter, messages in zip(waiting, ("x", "abcdefghij", "y", "klmnopqrst"), strict=True):
            waiter.send("SADD", "q", *messages)
        wait_for_waiting(client, "q", producers=4)
        end_queue(end, client, direct)
        assert_ended(waiting, end, code)
    wait_for_blocked(client, 0)
    # The puts have neither added messages nor created the queue again.
    assert client.exists("q") == (code == "CLOSED")
    if code == "CLOSED":
        assert client.spop("q", 10) == [b"1", b"2"]


def test_a_closed_queue_is_drained_before_gets_fail(client: Client, waiter: Waiter) -> None:
    client.sadd("q", "1", "2")
    client.execute_command("PRESSURE.CLOSE", "q")
    assert is_refused(waiter("SADD", "q", "3"), "CLOSED")
    assert waiter("BLPOP", "q", 0) == [b"q", b"1"]
    assert waiter("SPOP", "q") == b"2"
    assert waiter("SPOP", "q") is None
    assert waiter("SPOP", "q", 5) == []
    assert is_refused(waiter("BLPOP", "q", 0), "CLOSED")
    assert is_refused(waiter("PRESSURE.GET", "q"), "CLOSED")


@pytest.mark.parametrize("command", ["RPUSH", "SADD"])
def test_puts_that_may_wait_no_longer_report_how_much_was_put(
    server: Server, client: Client, waiter: Waiter, command: str
) -> None:
    create(client, "q", "BOUND", 2)
    waiter.send(command, "q", "x", "y", "z")
    wait_for_waiting(client, "q", producers=1)
    with Waiter(server.port) as behind:
        behind.send(command, "q", "a", "b")
        wait_for_waiting(client, "q", producers=2)
        client.execute_command("PRESSURE.ALTER", "q", "OVERFLOW", "error")
        replies = [waiter.reply(), behind.reply()]
    assert all(is_refused(reply, "FULL") for reply in replies)
    assert ["2 of the command's messages" in str(reply) for reply in replies] == [True, False]
    assert client.lrange("q", 0, -1) == [b"x", b"y"]


def test_a_put_interrupted_by_a_shutdown_reports_how_much_was_put(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url)
    with server.client() as client, Waiter(server.port) as waiter:
        create(client, "q", "BOUND", 2)
        waiter.send("RPUSH", "q", "x", "y", "z")
        wait_for_waiting(client, "q", producers=1)
        server.process.terminate()
        reply = waiter.reply()
    assert is_refused(reply, "STOPPING")
    assert str(reply).endswith("2 of the command's messages had been put already")
    assert server.process.wait(TIMEOUT) == 0
    server.end_well()
    assert direct.lrange("__pressure__:q", 0, -1) == [b"y", b"x"]
