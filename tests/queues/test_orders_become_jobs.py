"""Queues of the types lifo and random with more messages than one call makes jobs of (distinct.lua).

What makes jobs of the messages waits until all are: the newest one is known only then.
"""

from contextlib import ExitStack

import pytest
from redis import ResponseError

from tests.support.faults import stopped
from tests.support.native import NativeClient
from tests.support.programs import Client, Server, Valkey, wait_for, wait_until_settled
from tests.support.protocols import RESP, Wire
from tests.support.waiters import Waiter, about, create, packed, wait_for_blocked

MANY = [b"%05d" % number for number in range(3200)]
COPY = b"00007"
UNADOPTED = "__pressure__:q:ext:unadopted"


@pytest.fixture
def lifo(client: Client) -> Client:
    create(client, "q", "TYPE", "LIFO")
    client.sadd("q", *MANY)
    return client


@pytest.mark.parametrize(
    ("command", "message", "then"),
    [
        ("PRESSURE.PUT q 00007", None, [COPY, MANY[-1]]),
        ("LMOVE other q RIGHT LEFT", COPY, [COPY, MANY[-1]]),
        ("PRESSURE.RESERVE q", MANY[-1], [MANY[-2], MANY[-3]]),
        ("PRESSURE.RESERVE none q", MANY[-1], [MANY[-2], MANY[-3]]),
        ("PRESSURE.PEEK q READY", MANY[-1], [MANY[-1], MANY[-2]]),
    ],
)
def test_what_makes_jobs_finds_the_newest_message(
    lifo: Client, waiter: Waiter, command: str, message: bytes | None, then: list[bytes]
) -> None:
    lifo.rpush("other", COPY)
    reply = waiter(*command.split())
    assert message is None or message == reply or message in reply
    assert lifo.spop("q", 2) == then


def test_a_copy_that_waits_for_room_is_the_newest_message(server: Server, client: Client) -> None:
    create(client, "q", "TYPE", "LIFO", "BOUND", len(MANY))
    client.sadd("q", *MANY)
    with Waiter(server.port) as waiter:
        waiter.send("RPUSH", "q", COPY)
        wait_for_blocked(client, 1)
        assert client.spop("q") == MANY[-1]
        assert waiter.reply() == 3200
    assert client.spop("q", 2) == [COPY, MANY[-2]]


def test_a_ring_keeps_copies_and_drops_the_oldest(client: Client) -> None:
    create(client, "q", "TYPE", "LIFO", "BOUND", len(MANY), "OVERFLOW", "OVERWRITE")
    client.sadd("q", *MANY)
    client.rpush("q", *MANY[:1500])
    assert client.lrange("q", 0, -1) == [*MANY[:1500][::-1], *MANY[1500:][::-1]]


def test_commands_of_one_pipeline_find_the_newest_message(lifo: Client) -> None:
    pipeline = lifo.pipeline(transaction=False)
    pipeline.execute_command("PRESSURE.PUT", "q", COPY)
    pipeline.sadd("q", "x")
    pipeline.spop("q")
    pipeline.execute_command("PRESSURE.RESERVE", "q")
    pipeline.spop("q")
    pipeline.scard("q")
    replies = pipeline.execute()
    assert [replies[2], replies[3][2], *replies[4:]] == [b"x", COPY, MANY[-1], 3199]


def test_commands_that_share_a_call_with_what_makes_jobs_find_the_newest_message(
    server: Server, lifo: Client, backend: Valkey
) -> None:
    commands = (("LLEN", "q"), ("PRESSURE.PAUSE", "q", 0), ("SPOP", "q"), ("PRESSURE.RESERVE", "q"))
    with ExitStack() as stack:
        waiters = [stack.enter_context(Waiter(server.port)) for _ in commands]
        with stopped(backend.process):
            for waiter, command in zip(waiters, commands, strict=True):
                waiter.send(*command)
                lifo.ping()
        replies = [waiter.reply() for waiter in waiters]
    assert [*replies[:3], replies[3][2]] == [3200, b"OK", MANY[-1], MANY[-2]]


def test_an_error_while_messages_become_jobs_loses_none(lifo: Client, direct: Client) -> None:
    direct.set("__pressure__:q:ext:jobs", "damaged")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        lifo.execute_command("PRESSURE.RESERVE", "q")
    direct.delete("__pressure__:q:ext:jobs")
    assert len(lifo.spop("q", 5000)) == len(MANY)


def test_a_range_is_read_while_messages_become_jobs(lifo: Client, direct: Client) -> None:
    lifo.execute_command("PRESSURE.ALTER", "q", "MAX-DELIVERIES", 3)
    assert direct.zcard(UNADOPTED) > 1000
    assert lifo.lrange("q", 0, 1) == [MANY[-1], MANY[-2]]


def test_messages_of_native_clients_are_older_than_one_that_is_moved_there(
    client: Client, direct: Client
) -> None:
    create(client, "q", "TYPE", "LIFO")
    client.rpush("other", "last")
    direct.lpush("__pressure__:q", *MANY[:2100])
    assert client.lrange("q", 0, 0) == [MANY[2099]]
    assert client.lmove("other", "q", "RIGHT", "LEFT") == b"last"
    assert client.spop("q", 2) == [b"last", MANY[2099]]


def test_a_scan_misses_nothing_when_messages_become_jobs(lifo: Client) -> None:
    cursor, found = lifo.sscan("q", 0, count=700)
    lifo.lpush("q", COPY)
    while cursor:
        cursor, some = lifo.sscan("q", cursor, count=700)
        found += some
    assert set(found) == set(MANY)


@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
def test_a_transaction_purges_all_messages(client: Client, order: str) -> None:
    create(client, "q", "TYPE", order)
    client.sadd("q", *MANY)
    pipeline = client.pipeline(transaction=True)
    pipeline.execute_command("PRESSURE.PURGE", "q")
    pipeline.scard("q")
    assert pipeline.execute() == [3200, 0]
    assert about(client, "q")[b"consumed_messages"] == 3200


def test_messages_are_less_urgent_than_urgent_jobs(client: Client, direct: Client) -> None:
    create(client, "q", "TYPE", "LIFO")
    create(client, "jobs", "TYPE", "JOBS")
    client.sadd("q", "a", "b")
    NativeClient(direct, "q").put(b"c")
    client.execute_command("PRESSURE.PUT", "jobs", "urgent", "PRIORITY", 5)
    assert client.execute_command("PRESSURE.RESERVE", "q", "jobs")[2] == b"urgent"


@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
def test_messages_that_go_back_beside_a_copy_keep_their_order(
    server: Server, client: Client, direct: Client, order: str
) -> None:
    large = b"x" * 8_000_000
    create(client, "q", "TYPE", order)
    client.sadd("q", "a", "b", large)
    with Wire(RESP, server, small_buffers=True) as wire:
        wire.send(packed("LPOP", "q", 3))
        wait_for(lambda: client.scard("q") == 0, "the messages to be taken")
        assert client.sadd("q", "b") == 1
        wire.reset()
    wait_until_settled(direct)
    taken, expected = client.spop("q", 9), [large, b"b", b"a", b"b"]
    assert taken == expected if order == "LIFO" else sorted(taken) == sorted(expected)


def test_a_message_that_goes_back_while_others_become_jobs_is_the_newest(
    server: Server, lifo: Client, direct: Client
) -> None:
    large = b"x" * 8_000_000
    lifo.sadd("q", large)
    with Wire(RESP, server, small_buffers=True) as wire:
        wire.send(packed("LPOP", "q", 1))
        wait_for(lambda: lifo.scard("q") == len(MANY), "the message to be taken")
        lifo.execute_command("PRESSURE.PAUSE", "q", 0)
        wire.reset()
    wait_until_settled(direct)
    assert lifo.spop("q", 2) == [large, MANY[-1]]
    info = about(lifo, "q")
    assert (info[b"produced_messages"], info[b"consumed_messages"]) == (3201, 2)
