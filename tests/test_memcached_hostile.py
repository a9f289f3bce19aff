"""Hostile clients of a memcached listener: what only memcached's protocol allows.

What all protocols share is in test_hostile_input.py; what is no request at all in test_memcached_parser.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.support.bystander import served
from tests.support.hostile import Victim, bounded_peak, leavings, wait_until_alone
from tests.support.measures import MB
from tests.support.memcached_wire import MemcachedWire
from tests.support.programs import TIMEOUT, StartServer, Valkey, wait_for, wait_until_settled
from tests.support.protocols import LISTEN, MEMCACHED, Wire
from tests.support.waiters import wait_for_blocked


@dataclass(frozen=True)
class Case:
    """Requests, and the beginning of the replies."""

    name: str
    requests: bytes
    replies: bytes


BAD_FORMAT = b"CLIENT_ERROR bad command line format\r\n"
END = b"END\r\n"
STORE = b"set evil 0 0 1\r\nx\r\n"
BLOCK = STORE + b"\r\n"

CASES = [
    Case("flags too large", b"set q 4294967296 0 19\r\n" + BLOCK, BAD_FORMAT),
    Case("flags negative", b"set q -1 0 19\r\n" + BLOCK, BAD_FORMAT),
    Case("flags of 2 KB", b"set q " + b"9" * 2000 + b" 0 19\r\n" + BLOCK, BAD_FORMAT),
    Case("expiry garbage", b"set q 0 never 19\r\n" + BLOCK, BAD_FORMAT),
    Case("key of 251 bytes", b"get " + b"k" * 251 + b"\r\n", BAD_FORMAT),
    Case("key of control characters", b"get a\x01\x7f\r\n", BAD_FORMAT),
    Case("one bad key among many", b"get " + b"k " * 1000 + b"\x01\r\n", BAD_FORMAT),
    Case("options that contradict", b"get q/open/abort/peek\r\n", b"CLIENT_ERROR peek and abort can be "),
    Case("options a hundred times", b"get q" + b"/close" * 40 + b"\r\n", END),
    Case("options and no name", b"get /open\r\n", END),
    Case("options of several queues", b"get a/open b/open\r\n", b"CLIENT_ERROR a get with options such "),
    Case("closing what is not open", b"get q/close\r\n", END),
    Case("a wait of 11 days", b"set w 0 0 1\r\nx\r\nget w/t=999999999\r\n", b"STORED\r\nVALUE w/t=9"),
    Case("10 000 empty lines", b"\r\n" * 10_000, b"ERROR\r\n" * 10_000),
    Case("zeros", bytes(1000) + b"\n", b"ERROR\r\n"),
    Case("RESP", b"*3\r\n$4\r\nSADD\r\n$4\r\nevil\r\n$1\r\nx\r\n", b"ERROR\r\n" * 7),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_hostile_command_is_answered_and_its_block_is_not_executed(victim: Victim, case: Case) -> None:
    with victim.bounded_peak(64 * MB):
        hostile = victim.attack(MEMCACHED)
        hostile.send(case.requests)
        assert victim.observer.ping()
        assert hostile.read(len(case.replies)) == case.replies
        hostile.close()
        victim.wait_until_alone()
    assert victim.observer.exists("evil") == 0


def test_noreply_holds_for_errors_too(victim: Victim) -> None:
    """A client that does not read replies would take an error for the next command's."""
    hostile = victim.attack(MEMCACHED)
    for line in (
        b"set q -1 0 1 noreply\r\nx\r\n", b"set " + b"k" * 251 + b" 0 0 1 noreply\r\nx\r\n",
        b"set q 0 0 1 noreply\r\nxyz\r\n", b"set q 0 0 33554433 noreply\r\n" + bytes(33554433) + b"\r\n",
        b"set q -1 0 1 noreply\r\nx\r\n" * 100, b"delete q 5 noreply\r\n", b"delete \x01 noreply\r\n",
        b"delete none noreply\r\n", b"flush none noreply\r\n", b"flush_all noreply\r\n",
        b"incr q 1 noreply\r\n", b"touch q 1 noreply\r\n", b"append q 0 0 1 noreply\r\nx\r\n",
        b"verbosity 1 noreply\r\n",
    ):  # fmt: skip
        hostile.send(line + b"scard q\r\n")
        assert hostile.read_line() == b"0\r\n", line
    hostile.send(b"delete noreply\r\n")
    assert hostile.read_line() == b"NOT_FOUND\r\n"


def test_a_queue_s_name_cannot_forge_a_reply(victim: Victim) -> None:
    """Redis's clients may give a queue any name."""
    victim.observer.rpush("a\r\nEND\r\nSTAT pid 1", "m")
    hostile = victim.attack(MEMCACHED)
    for request in (b"stats\r\n", b"dump_stats\r\n"):
        hostile.send(request)
        lines = []
        while (line := hostile.read_line()) != END:
            assert line, "the server has closed"
            lines.append(line)
        assert any(b"a__END__STAT_pid_1" in line for line in lines)
        hostile.send(b"version\r\n")
        assert hostile.read_line().startswith(b"VERSION")


# ---------------------------------------------------------------- clients that have much open


MANY = {
    "open reads": b"".join(b"get q%d/open\r\n" % number for number in range(200)),
    "many keys": b"get" + b"".join(b" q%d" % number for number in range(200)) + b"\r\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_open_and_unsent_messages_count_as_the_client_s_memory(
    name: str, backend: Valkey, start_server: StartServer
) -> None:
    """Of 200 messages of 1 MB 64 MiB may be kept: the client is closed, and all messages are put back."""
    limits = ("--max-buffered-bytes", "64mb", "--max-message-bytes", str(4 * MB))
    server = start_server("--backend", backend.url, *limits, *LISTEN)
    with server.client(socket_timeout=TIMEOUT) as observer:
        for number in range(200):
            observer.rpush(f"q{number}", bytes(MB))
        with bounded_peak(server, 128 * MB), MemcachedWire(server) as greedy:
            greedy.send(MANY[name])
            assert b"SERVER_ERROR OOM closing this connection" in greedy.rest()[-300:]
        wait_until_alone(observer)
        wait_for(lambda: sum(observer.llen(f"q{n}") for n in range(200)) == 200, "all to be back")
    assert "disconnected a client whose buffers held 64 of" in server.log
    server.stop()
    assert not re.search("ERROR|Traceback", server.log)


@pytest.mark.slow
def test_thousands_of_open_reads_hold_up_nobody(victim: Victim) -> None:
    count = 3000
    with MemcachedWire(victim.server) as greedy:
        greedy.send(b"".join(b"set q%d 0 0 1 noreply\r\nm\r\n" % number for number in range(count)))
        assert greedy(b"version").startswith(b"VERSION")
        with served(*victim.bystanders()):
            for first in range(0, count, 500):
                greedy.send(b"".join(b"get q%d/open\r\n" % number for number in range(first, first + 500)))
                for number in range(first, first + 500):
                    assert greedy.reply() == b"VALUE q%d/open 0 1\r\nm\r\nEND" % number
    victim.wait_until_alone()
    with victim.backend.client() as direct:
        wait_until_settled(direct)
    assert sum(victim.observer.llen(f"q{number}") for number in range(count)) == count


# ---------------------------------------------------------------- clients that leave


@leavings
@pytest.mark.parametrize("options", [b"/t=60000", b"/open/t=60000", b"/close/open/t=60000", b"/peek/t=60000"])
def test_a_client_that_leaves_while_it_waits_takes_nothing(
    victim: Victim, options: bytes, leave: Callable[[Wire], object]
) -> None:
    gone = [MemcachedWire(victim.server) for _ in range(3)]
    for client in gone:
        client.send(b"get q%b\r\n" % options)
    wait_for_blocked(victim.observer, 3)
    for client in gone:
        leave(client)
    victim.wait_until_alone()
    assert victim.observer.info("clients")["blocked_clients"] == 0
    with MemcachedWire(victim.server) as client:
        assert client.store(b"q", b"m") == b"STORED"
        assert client(b"get q/t=1000") == b"VALUE q/t=1000 0 1\r\nm\r\nEND"


@leavings
def test_a_client_that_leaves_as_its_message_comes_loses_none(
    victim: Victim, leave: Callable[[Wire], object]
) -> None:
    """The put comes with the leaving: the message is delivered, or it is there."""
    with MemcachedWire(victim.server) as producer:
        for number in range(30):
            client = MemcachedWire(victim.server)
            client.send(b"get q/open/t=60000\r\n")
            wait_for_blocked(victim.observer, 1)
            producer.send(b"set q 0 0 2\r\n%02d\r\n" % number)
            leave(client)
            assert producer.reply() == b"STORED"
            assert producer(b"get q/t=20000") == b"VALUE q/t=20000 0 2\r\n%02d\r\nEND" % number
    victim.wait_until_alone()


@leavings
def test_an_open_message_is_the_next_one_after_its_client_has_left(
    victim: Victim, leave: Callable[[Wire], object]
) -> None:
    with MemcachedWire(victim.server) as other:
        for number in range(5):
            other.store(b"q", b"%d" % number, more=b"%d 0" % number)
            other.store(b"r", b"%d" % number)
        client = MemcachedWire(victim.server)
        assert client(b"get q/open") == b"VALUE q/open 0 1\r\n0\r\nEND"
        assert client(b"get q/close/open") == b"VALUE q/close/open 1 1\r\n1\r\nEND"
        assert client(b"get r/open") == b"VALUE r/open 0 1\r\n0\r\nEND"
        assert other(b"scard q") == b"3"
        leave(client)
        wait_for(lambda: victim.observer.llen("q") == 4, "the open message to be back")
        wait_for(lambda: victim.observer.llen("r") == 5, "the other open message to be back")
        assert [other(b"get q") for _ in range(5)] == [
            *(b"VALUE q %d 1\r\n%d\r\nEND" % (number, number) for number in range(1, 5)),
            b"END",
        ]
        assert [other.take(b"r") for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.slow
@leavings
def test_a_client_that_leaves_while_many_keys_are_read_takes_all_or_none(
    victim: Victim, leave: Callable[[Wire], object]
) -> None:
    """One reply brings all of them, or none."""
    victim.observer.rpush("q", *range(2000))
    for _ in range(5):
        client = MemcachedWire(victim.server)
        client.send(b"get" + b" q" * 1000 + b"\r\n")
        wait_for(lambda: victim.observer.llen("q") < 2000, "the reading to have begun")
        if leave is Wire.half_close:
            client.reset()
        else:
            leave(client)
        victim.wait_until_alone()
        wait_for(lambda: victim.observer.llen("q") in (1000, 2000), "all to be back, or read")
        if victim.observer.llen("q") == 1000:
            victim.observer.lpush("q", *range(1000))
    with victim.backend.client() as direct:
        wait_until_settled(direct)
    assert victim.observer.llen("q") == 2000
