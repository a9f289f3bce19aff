"""Attacks that only memcached's protocol allows.

test_hostile_input.py has those on all protocols, unit/handlers/memcached/test_parser.py the requests that
are refused.
"""

import re

import pytest

from tests.support.crowd import served
from tests.support.hostile import Victim, bounded_peak, wait_until_alone
from tests.support.measures import MB
from tests.support.memcached_wire import MemcachedWire
from tests.support.programs import TIMEOUT, StartServer, Valkey, wait_for, wait_until_settled
from tests.support.protocols import LISTEN, MEMCACHED

BAD_FORMAT = b"CLIENT_ERROR bad command line format\r\n"
END = b"END\r\n"
BLOCK = b"set evil 0 0 1\r\nx\r\n\r\n"
# By name: requests, and the beginning of the replies.
CASES = {
    "flags of 2 KB": (b"set q " + b"9" * 2000 + b" 0 19\r\n" + BLOCK, BAD_FORMAT),
    "one bad key among many": (b"get " + b"k " * 1000 + b"\x01\r\n", BAD_FORMAT),
    "40 options": (b"get q" + b"/close" * 40 + b"\r\n", END),
    "an option without a queue": (b"get /open\r\n", END),
    "a wait of 11 days": (b"set w 0 0 1\r\nx\r\nget w/t=999999999\r\n", b"STORED\r\nVALUE w/t=9"),
    "10 000 empty lines": (b"\r\n" * 10_000, b"ERROR\r\n" * 10_000),
    "zeros": (bytes(1000) + b"\n", b"ERROR\r\n"),
    "RESP": (b"*3\r\n$4\r\nSADD\r\n$4\r\nevil\r\n$1\r\nx\r\n", b"ERROR\r\n" * 7),
}


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_request_gets_a_reply_and_its_block_is_not_executed(victim: Victim, name: str) -> None:
    requests, replies = CASES[name]
    with bounded_peak(victim.server, 64 * MB):
        hostile = victim.attack(MEMCACHED)
        hostile.send(requests)
        assert victim.observer.ping()
        assert hostile.exactly(len(replies)) == replies
        hostile.close()
        wait_until_alone(victim.observer)
    assert victim.observer.exists("evil") == 0


def test_noreply_silences_errors(victim: Victim) -> None:
    """The client would take an error for the reply to its next command."""
    hostile = victim.attack(MEMCACHED)
    for line in (
        b"set q -1 0 1 noreply\r\nx\r\n", b"set " + b"k" * 251 + b" 0 0 1 noreply\r\nx\r\n",
        b"set q 0 0 33554433 noreply\r\n" + bytes(33554433) + b"\r\n",
        b"set q -1 0 1 noreply\r\nx\r\n" * 100, b"delete q 5 noreply\r\n", b"delete \x01 noreply\r\n",
        b"delete none noreply\r\n", b"flush none noreply\r\n", b"flush_all noreply\r\n",
        b"incr q 1 noreply\r\n", b"touch q 1 noreply\r\n", b"append q 0 0 1 noreply\r\nx\r\n",
        b"verbosity 1 noreply\r\n",
    ):  # fmt: skip
        hostile.send(line + b"scard q\r\n")
        assert hostile.line() == b"0\r\n", line
    hostile.send(b"delete noreply\r\n")
    assert hostile.line() == b"NOT_FOUND\r\n"


def test_a_queue_s_name_cannot_forge_a_line_of_stats(victim: Victim) -> None:
    """Redis clients may give a queue any name."""
    for name in ("a\r\nEND\r\nSTAT pid 1", "a b", "a%20b", b"\xff", "\\xff"):
        victim.observer.rpush(name, "m")
    hostile = victim.attack(MEMCACHED)
    for request in (b"stats\r\n", b"dump_stats\r\n"):
        hostile.send(request)
        lines = []
        while (line := hostile.line()) != END:
            lines.append(line)
        for name in (b"a%0D%0AEND%0D%0ASTAT%20pid%201", b"a%20b", b"a%2520b", b"%FF", b"\\xff"):
            items = (b"STAT queue_%b_items 1\r\n" % name, b"queue '%b' {\r\n" % name)
            assert sum(line in items for line in lines) == 1, name
        hostile.send(b"version\r\n")
        assert hostile.line().startswith(b"VERSION")


MANY = {
    "open reads": b"".join(b"get q%d/open\r\n" % number for number in range(120)),
    "many keys": b"get" + b"".join(b" q%d" % number for number in range(120)) + b"\r\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_open_and_unsent_messages_count_as_the_client_s_memory(
    name: str, backend: Valkey, start_server: StartServer
) -> None:
    """The client asks for 120 MB and may have 64 MiB: it is disconnected, and all messages are put back."""
    limits = ("--max-buffered-bytes", "64mb", "--max-message-bytes", str(4 * MB))
    server = start_server("--backend", backend.url, *limits, *LISTEN)
    with server.client(socket_timeout=TIMEOUT) as observer:
        for number in range(120):
            observer.rpush(f"q{number}", bytes(MB))
        with bounded_peak(server, 128 * MB), MemcachedWire(server) as greedy:
            greedy.send(MANY[name])
            assert b"SERVER_ERROR OOM closing this connection" in greedy.rest()[-300:]
        wait_until_alone(observer)
        wait_for(lambda: sum(observer.llen(f"q{n}") for n in range(120)) == 120, "all messages to be back")
    assert re.search("disconnected a client whose buffers held 6[45] of 64", server.log)
    server.stop()
    assert not re.search("ERROR|Traceback", server.log)


@pytest.mark.slow
def test_thousands_of_open_reads_do_not_delay_other_clients(victim: Victim) -> None:
    count = 1500
    with MemcachedWire(victim.server) as greedy:
        greedy.send(b"".join(b"set q%d 0 0 1 noreply\r\nm\r\n" % number for number in range(count)))
        assert greedy(b"version").startswith(b"VERSION")
        with served(*victim.bystanders()):
            for first in range(0, count, 500):
                greedy.send(b"".join(b"get q%d/open\r\n" % number for number in range(first, first + 500)))
                for number in range(first, first + 500):
                    assert greedy.reply() == b"VALUE q%d/open 0 1\r\nm\r\nEND" % number
    wait_until_alone(victim.observer)
    with victim.backend.client() as direct:
        wait_until_settled(direct)
    assert sum(victim.observer.llen(f"q{number}") for number in range(count)) == count


@pytest.mark.slow
def test_a_client_that_leaves_during_a_get_of_many_keys_takes_all_or_none(victim: Victim) -> None:
    victim.observer.rpush("q", *range(2000))
    for _ in range(5):
        client = MemcachedWire(victim.server)
        client.send(b"get" + b" q" * 1000 + b"\r\n")
        wait_for(lambda: victim.observer.llen("q") < 2000, "the get to begin")
        client.reset()
        wait_until_alone(victim.observer)
        wait_for(lambda: victim.observer.llen("q") in (1000, 2000), "all messages to be back or delivered")
        if victim.observer.llen("q") == 1000:
            victim.observer.lpush("q", *range(1000))
    with victim.backend.client() as direct:
        wait_until_settled(direct)
    assert victim.observer.llen("q") == 2000
