"""Closing and deleting a queue: all who wait on it are told, and what is in a closed one is taken first."""

from __future__ import annotations

from collections.abc import Callable

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


def close(client: Client, _direct: Client) -> None:
    client.execute_command("PRESSURE.CLOSE", "q")


def close_natively(_client: Client, direct: Client) -> None:
    NativeClient(direct, "q").close()


def delete(client: Client, _direct: Client) -> None:
    client.execute_command("PRESSURE.DELETE", "q")


def remove(client: Client, _direct: Client) -> None:
    client.delete("q")


def delete_natively(_client: Client, direct: Client) -> None:
    NativeClient(direct, "q").delete()


ENDS = [
    (close, "CLOSED"),
    (close_natively, "CLOSED"),
    (delete, "NOQUEUE"),
    (remove, "NOQUEUE"),
    (delete_natively, "NOQUEUE"),
]


def all_are_told(waiting: list[Waiter], end: Callable[..., None], code: str) -> None:
    """Of that end, and of nothing before it."""
    # A native Delete closes a moment before the queue is gone; so the specification has it.
    all_are_refused(waiting, *({code, "CLOSED"} if end is delete_natively else {code}))


@pytest.mark.parametrize(("end", "code"), ENDS)
@pytest.mark.parametrize(
    "words",
    [
        ("BLPOP", "q", 0),
        ("BLPOP", "other", "q", 0),
        ("BLMPOP", 0, 1, "q", "LEFT"),
        ("BLMOVE", "q", "d", "LEFT", "LEFT", 0),
        ("PRESSURE.GET", "q"),
    ],
    ids=lambda words: "-".join(map(str, words)),
)
def test_who_waits_for_a_message_is_told_of_the_end(
    server: Server,
    client: Client,
    direct: Client,
    words: Words,
    end: Callable[..., None],
    code: str,
) -> None:
    create(client, "q")
    with waiters(server, 3) as waiting:
        for waiter in waiting:
            waiter.send(*words)
        wait_for_waiting(client, "q", consumers=3)
        end(client, direct)
        all_are_told(waiting, end, code)
    wait_for_blocked(client, 0)


@pytest.mark.parametrize(("end", "code"), ENDS)
@pytest.mark.parametrize("messages", [("x",), tuple("abcdefghij")], ids=["one", "many"])
def test_who_waits_for_room_is_told_of_the_end(
    server: Server,
    client: Client,
    direct: Client,
    messages: Words,
    end: Callable[..., None],
    code: str,
) -> None:
    create(client, "q", "BOUND", 2)
    client.sadd("q", "1", "2")
    with waiters(server, 3) as waiting:
        for waiter in waiting:
            waiter.send("SADD", "q", *messages)
        wait_for_waiting(client, "q", producers=3)
        end(client, direct)
        all_are_told(waiting, end, code)
    wait_for_blocked(client, 0)
    # Nobody has put into what is closed, nor made anew what was deleted.
    assert client.exists("q") == (1 if code == "CLOSED" else 0)
    if code == "CLOSED":
        assert client.spop("q", 10) == [b"1", b"2"]


def test_a_closed_queue_is_emptied_before_anybody_is_told(client: Client, waiter: Waiter) -> None:
    client.sadd("q", "1", "2")
    close(client, client)
    assert is_refused(waiter("SADD", "q", "3"), "CLOSED")
    assert waiter("BLPOP", "q", 0) == [b"q", b"1"]
    assert waiter("SPOP", "q") == b"2"
    assert waiter("SPOP", "q") is None
    assert waiter("SPOP", "q", 5) == []
    assert is_refused(waiter("BLPOP", "q", 0), "CLOSED")
    assert is_refused(waiter("PRESSURE.GET", "q"), "CLOSED")


def test_who_waits_for_room_when_the_server_stops_is_told_how_much_is_put(
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
