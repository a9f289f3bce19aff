"""How often a message has been reserved is counted on queues of every type, and may be limited."""

import pytest

from tests.support.module_servers import module_server
from tests.support.programs import Client, Server, wait_for, wait_until_settled
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, RESP, Wire, stored
from tests.support.series import Series, run_series
from tests.support.waiters import Waiter, about, create, packed

# How each queue is made; the first is one that a put makes.
QUEUES = ["", "TYPE FIFO", "TYPE JOBS", "TYPE LIFO", "TYPE RANDOM", "MAX-BYTES 1000000"]
# How a reservation ends without an acknowledgement.
RELEASE, LEAVE, TIME_OUT, BURY = "release", "leave", "time out", "bury and kick"


shared_server = module_server(*LISTEN)


def make(client: Client, options: str, *messages: str) -> None:
    if options:
        create(client, "q", *options.split())
    client.rpush("q", *messages)


def deliver(server: Server, client: Client, end: str) -> int:
    """Reserve the next message and let the reservation end. Return how often it has been reserved."""
    with Waiter(server.port) as worker:
        ttr = ("TTR", "0.05") if end == TIME_OUT else ()
        _, job, _, count = worker("PRESSURE.RESERVE", "q", "TIMEOUT", 10, *ttr)
        if end == RELEASE:
            assert worker("PRESSURE.RELEASE", "q", job) == 1
        elif end == BURY:
            assert worker("PRESSURE.BURY", "q", job) == 1
            assert worker("PRESSURE.KICK", "q") == 1
        elif end == TIME_OUT:
            wait_for(lambda: client.llen("q") == 1, "the reservation to end")
    wait_for(lambda: client.llen("q") == 1, "the message to be back")
    return int(count)


@pytest.mark.parametrize("end", [RELEASE, LEAVE, TIME_OUT, BURY])
@pytest.mark.parametrize("options", QUEUES)
def test_each_reservation_is_counted(server: Server, client: Client, options: str, end: str) -> None:
    make(client, options, "poison")
    assert [deliver(server, client, end) for _ in range(4)] == [1, 2, 3, 4]


def test_messages_that_come_back_together_have_counts_of_their_own(server: Server, client: Client) -> None:
    client.rpush("q", "a", "b", "a", "c")
    for expected in (1, 2):
        with Waiter(server.port) as worker:
            found = worker("PRESSURE.RESERVE", "q", "COUNT", 3)
            assert [job[2:] for job in found] == [[b"a", expected], [b"b", expected], [b"a", expected]]
        wait_for(lambda: client.llen("q") == 4, "the messages to be back")
    with Waiter(server.port) as worker:
        found = worker("PRESSURE.RESERVE", "q", "COUNT", 4)
        assert [job[2:] for job in found] == [[b"a", 3], [b"b", 3], [b"a", 3], [b"c", 1]]


def test_other_protocols_show_the_count(server: Server, client: Client) -> None:
    make(client, "", "m")
    assert deliver(server, client, RELEASE) == 1
    with Wire(MEMCACHED, server) as wire:
        assert wire(b"get q/open\r\n") == b"VALUE q/open 0 1\r\nm\r\nEND"
        assert wire(b"get q/abort\r\n") == b"END"
    with Wire(BEANSTALK, server) as wire:
        wire(b"watch q\r\n")
        assert wire(b"reserve\r\n").startswith(b"RESERVED ")
        assert b"\nreserves: 3\n" in wire(b"stats-job %b\r\n" % wire.job)


def test_flags_stay_beside_the_count(server: Server, client: Client) -> None:
    with Wire(MEMCACHED, server) as wire:
        assert wire(stored(b"q", b"m", more=b"7 0")) == b"STORED"
        assert [deliver(server, client, RELEASE) for _ in range(2)] == [1, 2]
        assert wire(b"get q\r\n") == b"VALUE q 7 1\r\nm\r\nEND"


def test_an_undelivered_message_keeps_its_count(server: Server, client: Client, direct: Client) -> None:
    large = "x" * 8_000_000
    make(client, "", large)
    assert deliver(server, client, RELEASE) == 1
    with Wire(RESP, server, small_buffers=True) as wire:
        wire.send(packed("LPOP", "q"))
        wait_for(lambda: client.llen("q") == 0, "the message to be taken")
        wire.reset()
    wait_until_settled(direct)
    assert deliver(server, client, RELEASE) == 2


@pytest.mark.parametrize("options", QUEUES[:1] + QUEUES[2:])
def test_the_number_of_deliveries_is_limited_later(server: Server, client: Client, options: str) -> None:
    make(client, options, "poison")
    assert [deliver(server, client, RELEASE) for _ in range(2)] == [1, 2]
    create(client, "failed")
    client.execute_command("PRESSURE.ALTER", "q", "MAX-DELIVERIES", 3, "DEAD-LETTER", "failed")
    assert about(client, "q")[b"max_deliveries"] == 3
    with Waiter(server.port) as worker:
        _, job, message, count = worker("PRESSURE.RESERVE", "q")
        assert (message, count) == (b"poison", 3)
        assert worker("PRESSURE.RELEASE", "q", job) == 1
    assert client.lrange("failed", 0, -1) == [b"poison"]
    assert client.llen("q") == 0


# A queue that was created as a list, or a log, stays one; to take a limit away changes no type.
ALTERING: Series = [
    *(line for kind in ("FIFO", "LOG") for line in (
        (f"PRESSURE.CREATE {kind} TYPE {kind}", b"OK"),
        (f"PRESSURE.ALTER {kind} MAX-DELIVERIES 3", f"TYPE queue '{kind}' was created as a {kind.lower()}"),
        (f"PRESSURE.ALTER {kind} MAX-DELIVERIES 0", b"OK"),
    )),
    ("RPUSH plain m", 1),
    ("PRESSURE.ALTER plain MAX-DELIVERIES 0", b"OK"),
    ("PRESSURE.ALTER plain DEAD-LETTER failed", "TYPE queue 'plain' has no MAX-DELIVERIES"),
]  # fmt: skip


def test_what_changes_no_type(client: Client, worker: Waiter) -> None:
    run_series(worker, ALTERING)
    kinds = {name: about(client, name)[b"type"] for name in ("FIFO", "LOG", "plain")}
    assert kinds == {"FIFO": b"fifo", "LOG": b"log", "plain": b"fifo"}
