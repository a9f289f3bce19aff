"""Queues that give the newest message, or any: lifo and random, for all clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.native import NativeClient
from tests.support.programs import Client, Server, wait_for
from tests.support.series import Series, run_series
from tests.support.waiters import Waiter, create, wait_for_blocked

LIFO: Series = [
    ("PRESSURE.CREATE q TYPE LIFO BOUND 6 OVERFLOW ERROR", b"OK"),
    ("LPUSH q a b c", 3),
    ("SADD q c d", 1),
    ("LRANGE q 0 -1", [b"d", b"c", b"b", b"a"]),
    ("LINDEX q 0", b"d"),
    ("SPOP q", b"d"),
    ("PRESSURE.PUT q urgent PRIORITY 1", 5),
    ("LPUSH q e f", 6),
    ("LPUSH q g", "FULL "),
    ("SPOP q 3", [b"urgent", b"f", b"e"]),
    ("PRESSURE.PEEK q READY", [3, b"c"]),
    ("PRESSURE.RESERVE q", [b"q", 3, b"c", 1]),
    ("LPUSH q h", 3),
    ("PRESSURE.RELEASE q 3", 1),
    ("BLPOP q 1", [b"q", b"h"]),
    ("LMOVE q other LEFT LEFT", b"c"),
    ("SREM q a", 1),
    ("SPOP q 9", [b"b"]),
    ("PRESSURE.GROUP CREATE q g", "TYPE "),
    ("PRESSURE.PUT q m OFFSET", "TYPE "),
]
MESSAGES = [b"%d" % number for number in range(40)]


@pytest.fixture
def connection(server: Server) -> Iterator[Waiter]:
    with Waiter(server.port) as waiter:
        yield waiter


def test_the_newest_message_of_a_lifo_queue_comes_first(connection: Waiter) -> None:
    run_series(connection, LIFO)


def test_every_message_of_a_random_queue_comes_once_in_any_order(client: Client) -> None:
    create(client, "q", "TYPE", "RANDOM")
    orders = set()
    for _ in range(3):
        assert client.sadd("q", *MESSAGES, *MESSAGES[:5]) == len(MESSAGES)
        taken = [client.spop("q") for _ in MESSAGES]
        assert sorted(taken, key=int) == MESSAGES
        orders.add(tuple(taken))
    # By chance two of three would be equal, or in order, once in 40! times.
    assert len(orders | {tuple(MESSAGES)}) == 4
    assert client.spop("q") is None


def test_a_move_from_a_random_queue_takes_the_message_that_it_puts(client: Client) -> None:
    create(client, "q", "TYPE", "RANDOM")
    client.sadd("q", *MESSAGES)
    moved = [client.lmove("q", "other", "LEFT", "LEFT") for _ in range(20)]
    moved += [client.rpoplpush("q", "q") for _ in range(5)]
    assert client.lrange("other", 0, -1) == moved[:20]
    assert Counter(client.lrange("other", 0, -1)) + Counter(client.lrange("q", 0, -1)) == Counter(MESSAGES)


@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
def test_native_clients_put_into_other_orders_and_see_nothing(
    client: Client, server: Server, direct: Client, order: str
) -> None:
    create(client, "q", "TYPE", order)
    native = NativeClient(direct, "q")
    with Waiter(server.port) as waiter:
        waiter.send("BLPOP", "q", 0)
        wait_for_blocked(client, 1)
        native.put(b"a")
        assert waiter.reply() == [b"q", b"a"]
    native.put(b"b")
    native.put(b"c")
    wait_for(lambda: client.scard("q") == 2, "both messages to become jobs")
    assert native.get_non_blocking() is None
    taken = client.spop("q", 2)
    assert taken == [b"c", b"b"] if order == "LIFO" else sorted(taken) == [b"b", b"c"]
