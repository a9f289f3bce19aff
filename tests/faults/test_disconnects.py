"""Clients that leave while they wait: the server drops their commands and loses no message.

test_leaving.py has gets that wait, or are in flight, by themselves.
"""

import socket

import pytest

from tests.support.faults import stopped
from tests.support.programs import Client, Server, Valkey, wait_for, wait_until_settled
from tests.support.waiters import (
    Waiter,
    Words,
    about,
    create,
    packed,
    wait_for_blocked,
    wait_for_waiting,
)

GETS: list[Words] = [
    ("BLPOP", "q", 0),
    ("BLMPOP", 0, 3, "other", "q", "third", "LEFT", "COUNT", 5),
    ("BLMOVE", "q", "moved", "LEFT", "RIGHT", 0),
]
PUTS: list[Words] = [
    ("SADD", "q", *(f"x{n}" for n in range(10))),
    ("PRESSURE.PUT", "q", "x", "NX", "TIMEOUT", 60),
]

each_disconnect = pytest.mark.parametrize("how", ["close", "half-close", "reset"])


def begin_to_leave(waiter: Waiter, how: str) -> None:
    """Close the connection, or with "half-close" only its sending side."""
    if how == "half-close":
        waiter.socket.shutdown(socket.SHUT_WR)
    elif how == "reset":
        waiter.reset()
    else:
        waiter.close()


def end_leaving(waiter: Waiter, how: str) -> None:
    """Return when the server has closed the connection."""
    if how == "half-close":
        waiter.half_close()


def leave(waiter: Waiter, how: str, client: Client) -> None:
    """Leave, and return when nobody waits on the server any more."""
    begin_to_leave(waiter, how)
    end_leaving(waiter, how)
    wait_for_waiting(client, "q")
    wait_for_blocked(client, 0)


def drain(client: Client, queue: str) -> list[bytes]:
    """Take all messages of a queue."""
    messages: list[bytes] = []
    while taken := client.lpop(queue, 1000):
        messages += taken
    return messages


@each_disconnect
@pytest.mark.parametrize("put", PUTS, ids=lambda words: str(words[0]))
def test_a_waiting_put_puts_nothing_after_its_client_leaves(
    server: Server, client: Client, put: Words, how: str
) -> None:
    create(client, "q", "BOUND", 2)
    client.rpush("q", "a", "b")
    waiter = Waiter(server.port)
    waiter.send(*put)
    wait_for_waiting(client, "q", producers=1)
    leave(waiter, how, client)
    assert drain(client, "q") == [b"a", b"b"]
    assert about(client, "q")[b"produced_messages"] == 2


@each_disconnect
def test_a_put_whose_client_leaves_keeps_only_the_messages_put_before(
    server: Server, client: Client, how: str
) -> None:
    create(client, "q", "BOUND", 2)
    waiter = Waiter(server.port)
    waiter.send("SADD", "q", *range(10))
    wait_for(lambda: client.scard("q") == 2, "the first two messages to be put")
    assert client.spop("q") == b"0"
    wait_for(lambda: client.smembers("q") == {b"1", b"2"}, "the third message to be put")
    leave(waiter, how, client)
    assert drain(client, "q") == [b"1", b"2"]
    assert client.scard("q") == 0


@each_disconnect
@pytest.mark.parametrize("get", GETS, ids=lambda words: str(words[0]))
def test_a_message_taken_for_a_client_that_leaves_goes_to_the_next_in_line(
    backend: Valkey,
    server: Server,
    client: Client,
    direct: Client,
    waiter: Waiter,
    get: Words,
    how: str,
) -> None:
    create(client, "q")
    leaving = Waiter(server.port)
    leaving.send(*get)
    wait_for_waiting(client, "q", consumers=1)
    waiter.send("BLPOP", "q", 0)
    wait_for_waiting(client, "q", consumers=2)
    wait_until_settled(direct)
    with Waiter(server.port) as putting:
        with stopped(backend.process):
            # The put and the get are in flight together.
            putting.send("SADD", "q", "m")
            client.ping()
            begin_to_leave(leaving, how)
            wait_for_blocked(client, 1)
        end_leaving(leaving, how)
        assert putting.reply() == 1
    if get[0] == "BLMOVE":
        # The move takes and puts in one step, so the next in line gets another message.
        assert drain(client, "moved") == [b"m"]
        client.sadd("q", "m")
    assert waiter.reply() == [b"q", b"m"]
    assert not drain(client, "q")


def test_a_reservation_that_the_client_has_read_outlives_a_connection_that_breaks(
    client: Client, server: Server
) -> None:
    create(client, "q", "TYPE", "JOBS")
    for number in range(4):
        client.rpush("q", b"%d" % number + bytes(3_000_000))  # more than the kernel accepts
    with Waiter(server.port) as worker:
        worker.socket.sendall(4 * packed("PRESSURE.RESERVE", "q", "DETACHED", "token"))
        job = worker.reply()[1]
        worker.reset()
    wait_for(lambda: client.llen("q") >= 3, "the others to go back")
    assert client.llen("q") == 3
    assert client.execute_command("PRESSURE.ACK", "q", job, "TOKEN", "token") == 1
