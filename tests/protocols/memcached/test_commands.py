"""The commands of memcached and kestrel on queues."""

import re
import time
from base64 import b64encode
from collections.abc import Iterator

import pytest

from tests.support.memcached_wire import MemcachedWire
from tests.support.module_servers import module_server
from tests.support.programs import Client, Server
from tests.support.waiters import about, create, wait_for_blocked

shared_server = module_server("--listen", "memcached://127.0.0.1:0?flush_all=yes")


@pytest.fixture
def wire(server: Server) -> Iterator[MemcachedWire]:
    with MemcachedWire(server) as connected:
        yield connected


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (b"version a b", b"VERSION 1.6.18"),
        (b"verbosity 1", b"OK"),
        (b"verbosity x", b"CLIENT_ERROR bad command line format"),
        (b"flush_all", b"OK"),
        (b"flush_all -1", b"OK"),
        (b"flush_all 10", b"CLIENT_ERROR queues cannot be flushed with a delay"),
        (b"flush_all x", b"CLIENT_ERROR invalid exptime argument"),
        (b"delete q 1", b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"),
        (b"delete q 0", b"NOT_FOUND"),
        (b"stats nonsense", b"ERROR"),
        (b"get", b"ERROR"),
        (b"get q/t=1s", b"CLIENT_ERROR t= takes a number of milliseconds"),
        (b"get q/t=1234567890/open", b"CLIENT_ERROR t= takes a number of milliseconds"),
        (b"get q/open/peek", b"CLIENT_ERROR peek and abort can be combined with t= only"),
        (b"get a b/open", b"CLIENT_ERROR a get with options such as /open takes one queue only"),
        (b"incr q 1", b"CLIENT_ERROR incr is not supported on queues"),
        (b"append q 0 0 1\r\nx", b"CLIENT_ERROR append is not supported on queues"),
        (b"set q -1 0 1\r\nx", b"CLIENT_ERROR bad command line format"),
        (b"set q 0 x 1\r\nx", b"CLIENT_ERROR bad command line format"),
        (b"set q/open 0 0 1\r\nx", b"CLIENT_ERROR this cannot be a queue's name"),
        (b"set q:bound 0 0 1\r\nx", b"CLIENT_ERROR 'q:bound' cannot be a queue's name"),
        (b"mg q v", b"EN"),
        (b"mg q v k Oa", b"EN kq Oa"),
        (b"mg q q v\r\nmn", b"MN"),
        (b"mg q T30 v", b"CLIENT_ERROR invalid flag: T is not supported"),
        (b"mg q/open/peek v", b"CLIENT_ERROR peek and abort can be combined with t= only"),
        (b"ms q 1 C1\r\nx", b"CLIENT_ERROR invalid flag: C is not supported"),
        (b"ms q 1 MA\r\nx", b"CLIENT_ERROR messages cannot be changed or replaced"),
        (b"ms q 1 MX\r\nx", b"CLIENT_ERROR invalid mode for ms M token"),
        (b"ms q/open 1\r\nx", b"CLIENT_ERROR this cannot be a queue's name"),
        (b"md q", b"NF"),
        (b"md q I", b"CLIENT_ERROR invalid flag: I is not supported"),
        (b"ma q", b"CLIENT_ERROR ma is not supported on queues"),
        (b"me q", b"CLIENT_ERROR me is not supported on queues"),
        (b"mn", b"MN"),
        (b"scard q", b"0"),
        (b"sismember q two  words", b"0"),
    ],
)
def test_a_command_on_an_empty_database_gets_memcached_s_reply(
    wire: MemcachedWire, request_: bytes, reply: bytes
) -> None:
    assert wire(request_).startswith(reply)
    assert wire(b"get q") == b"END"


def test_meta_commands_put_and_take_messages(wire: MemcachedWire, client: Client) -> None:
    put = b"ms q 1 F5 c k Oab\r\na\r\nms q 1 q\r\nb\r\nms q 1 ME\r\nb\r\nms q 1 ME q\r\nc\r\nmn"
    wire.send(put + b"\r\nquit\r\n")
    assert wire.rest() == b"HD c0 kq Oab\r\nNS\r\nMN\r\n"
    assert client.lrange("q", 0, -1) == [b"a", b"b", b"c"]


def test_mg_takes_messages_only_with_the_flag_v(wire: MemcachedWire, client: Client) -> None:
    assert wire(b"ms q 1 F5\r\na") == wire(b"ms q 2 T100\r\nbb") == b"HD"
    for _ in range(2):
        assert wire(b"mg q s f k") == b"HD s1 f5 kq"
    assert wire(b"mg q/peek v f") == b"VA 1 f5\r\na"
    assert wire(b"mg q v f s c k Oab t h l u q") == b"VA 1 f5 s1 c0 kq Oab\r\na"
    assert wire(b"mg q v f") == b"VA 2 f0\r\nbb"
    assert wire(b"mg q s") == b"EN"
    assert about(client, "q")[b"consumed_messages"] == 2


def test_equal_meta_commands_in_a_row_are_done_together(wire: MemcachedWire, client: Client) -> None:
    wire.send(b"ms q 1\r\na\r\n" * 100 + b"mg q v\r\n" * 101)
    wire.send(b"mg q v q\r\n" * 3 + b"mn\r\nquit\r\n")
    assert wire.rest() == b"HD\r\n" * 100 + b"VA 1\r\na\r\n" * 100 + b"EN\r\n" + b"MN\r\n"
    assert client.llen("q") == 0


def test_kestrel_s_reads_work_with_mg(wire: MemcachedWire, server: Server, client: Client) -> None:
    assert wire(b"ms q 1\r\na") == wire(b"ms q 1\r\nb") == b"HD"
    assert wire(b"mg q/open v k") == b"VA 1 kq/open\r\na"
    assert wire(b"mg q v").startswith(b"CLIENT_ERROR a message of this queue is open")
    assert wire(b"mg q/abort v") == b"EN"
    assert wire(b"mg q/open v") == b"VA 1\r\na"
    assert wire(b"mg q/close/open v") == b"VA 1\r\nb"
    assert wire(b"mg q/close q\r\nmn") == b"MN"
    wire.send(b"mg q/t=10000 v\r\n")
    wait_for_blocked(client, 1)
    client.rpush("q", "c")
    assert wire.reply() == b"VA 1\r\nc"


def test_what_dalli_5_sends_is_answered(wire: MemcachedWire, client: Client) -> None:
    """Dalli 5.0.6, protocol/request_formatter.rb: set, set_multi, get, get_multi, quiet, delete."""
    assert re.fullmatch(rb"VERSION 1\.6\.\d+", wire(b"version"))
    assert wire(b"ms q 1 c F1 T60 MS\r\na") == b"HD c0"
    wire.send(b"ms q 1 c F0 T60 MS q\r\nb\r\nms c2NobMO8c3NlbA== 1 c b F0 T60 MS q\r\nc\r\nmn\r\n")
    assert wire.reply() == b"MN"
    assert wire(b"mg q v f") == b"VA 1 f1\r\na"
    wire.send(b"mg q v f k q s\r\nmg none v f k q s\r\nmg c2NobMO8c3NlbA== b v f k q s\r\nmn\r\n")
    assert wire.reply() == b"VA 1 f0 kq s1\r\nb"
    assert wire.reply() == b"VA 1 f0 kc2NobMO8c3NlbA== b s1\r\nc"
    assert wire.reply() == b"MN"
    wire.send(b"md q q\r\nmd none q\r\nmn\r\n")
    assert (wire.reply(), wire.reply()) == (b"NF", b"MN")
    assert client.exists("q", "none") == 0


def test_md_deletes_a_queue_and_base64_names_any_queue(wire: MemcachedWire, client: Client) -> None:
    client.rpush("two words\xff", "a")
    name = b64encode("two words\xff".encode())
    assert wire(b"mg %b v k b" % name) == b"VA 1 k%b b\r\na" % name
    assert wire(b"ms %b 1 b q\r\nb\r\nmn" % name) == b"MN"
    assert client.lrange("two words\xff", 0, -1) == [b"b"]
    assert wire(b"md %b b" % name) == b"HD"
    assert not client.exists("two words\xff")
    assert wire(b"md q q\r\nmn") == b"NF"
    assert wire.reply() == b"MN"


def test_quit_closes_the_connection(wire: MemcachedWire) -> None:
    wire.send(b"version\r\nquit now\r\nversion\r\n")
    assert wire.rest() == b"VERSION 1.6.18\r\n"


def test_sismember_looks_for_the_rest_of_its_line(wire: MemcachedWire) -> None:
    assert wire(b"set q 0 0 10\r\ntwo  words") == b"STORED"
    assert wire(b"sismember q two  words") == b"1"
    assert wire(b"sismember q two words") == b"0"
    assert wire(b"scard q") == b"1"


@pytest.mark.parametrize("overflow", ["error", "block"])
def test_a_full_queue_refuses_a_put_at_once_even_if_it_is_quiet(
    wire: MemcachedWire, client: Client, overflow: str
) -> None:
    create(client, "q", "BOUND", 1, "OVERFLOW", overflow)
    assert wire.store(b"q", b"a") == b"STORED"
    began = time.monotonic()
    for put in (b"set q 0 0 1\r\nb", b"add q 5 60 1\r\nb", b"ms q 1 q\r\nb", b"ms q 1 q ME\r\nb"):
        assert wire(put).startswith(b"SERVER_ERROR FULL queue 'q' is full"), put
    assert time.monotonic() - began < 2
    assert client.lrange("q", 0, -1) == [b"a"]


def test_a_set_into_a_full_ring_drops_the_oldest_message(wire: MemcachedWire, client: Client) -> None:
    create(client, "q", "BOUND", 2, "OVERFLOW", "OVERWRITE")
    for number in range(4):
        assert wire(b"set q %d 0 1\r\n%d" % (number, number)) == b"STORED"
    for number in (2, 3):  # with their flags
        assert wire(b"get q") == b"VALUE q %d 1\r\n%d\r\nEND" % (number, number)


def test_flush_empties_a_queue_and_keeps_its_bound(wire: MemcachedWire, client: Client) -> None:
    create(client, "q", "BOUND", 2)
    assert wire(b"set q 0 0 1\r\na") == wire(b"set q 5 0 1\r\nb") == b"STORED"
    assert wire(b"flush q") == b"END"
    info = about(client, "q")
    assert (info[b"length"], info[b"bound"], info[b"consumed_messages"]) == (0, 2, 2)
    assert info[b"produced_bytes"] == info[b"consumed_bytes"] == 2
    assert client.blpop("q", 0.01) is None
    assert wire(b"set q 0 0 1\r\nd") == b"STORED"


def test_a_closed_queue_refuses_puts_and_can_be_emptied(wire: MemcachedWire, client: Client) -> None:
    assert wire(b"set q 0 0 1\r\na") == b"STORED"
    client.execute_command("PRESSURE.CLOSE", "q")
    for put in (b"set q 0 0 1\r\nb", b"add q 3 60 1\r\nb"):
        assert wire(put).startswith(b"SERVER_ERROR CLOSED queue 'q' is closed")
    assert wire(b"set q 0 0 1 noreply\r\nb\r\nversion") == b"VERSION 1.6.18"
    assert wire.get(b"q") == b"a"
    assert wire(b"get q") == wire(b"get q/open") == b"END"
    assert wire(b"get q/t=10000").startswith(b"SERVER_ERROR CLOSED")


def test_stats_and_dump_stats_have_kestrel_s_lines(wire: MemcachedWire) -> None:
    assert wire(b"set q 0 0 3\r\nabc") == wire(b"set q 0 0 2\r\nde") == b"STORED"
    assert wire(b"get q/open").startswith(b"VALUE")
    lines = dict(line.split(b" ", 2)[1:] for line in wire(b"stats").splitlines()[:-1])
    assert lines[b"queue_q_items"] == lines[b"curr_items"] == b"1"
    assert lines[b"queue_q_bytes"] == b"2"
    assert lines[b"queue_q_total_items"] == b"2"
    assert lines[b"queue_q_open_transactions"] == b"1"
    wire.send(b"dump_stats\r\nquit\r\n")
    dumped = wire.rest()
    assert dumped.startswith(b"queue 'q' {\r\n  items=1\r\n  bytes=2\r\n")
    assert dumped.endswith(b"\r\n}\r\nEND\r\n")
