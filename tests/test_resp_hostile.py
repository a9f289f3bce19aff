"""Hostile requests that only RESP knows: whatever is asked for is answered, and takes little memory.

What all protocols share is in test_hostile_input.py; what is no request at all in test_resp_parser.py.
"""

from __future__ import annotations

import select
from dataclasses import dataclass

import pytest

from tests.support.hostile import Victim
from tests.support.measures import MB
from tests.support.programs import TIMEOUT
from tests.support.protocols import RESP
from tests.support.waiters import packed


@dataclass(frozen=True)
class Case:
    """A request, and the beginning of the reply."""

    name: str
    request: bytes
    reply: bytes


UNKNOWN = b"-ERR unknown command '%b', with args beginning with: "
ARITY = b"-ERR wrong number of arguments for '%b' command"
INTEGER = b"-ERR value is not an integer or out of range"
NO_NAME = b"-ERR '%b' cannot be a queue's name: "
NO_DATABASE = b"-ERR DB index is out of range"

CASES = [
    Case("unknown command, huge arguments", packed(b"X" * MB, b"y" * MB), UNKNOWN % (b"X" * 128)),
    Case("unknown command, many arguments", packed("NO", *["a"] * 100_000), UNKNOWN % b"NO" + b"'a' 'a' "),
    Case("unknown subcommand", packed("CLIENT", "A\nB"), b"-ERR unknown subcommand 'A B'. Try"),
    Case("too few words", packed("SADD", "q"), ARITY % b"sadd"),
    Case("too many words", packed("SCARD", *["q"] * 1000), ARITY % b"scard"),
    Case("too few words, subcommand", packed("CLIENT", "SETNAME"), ARITY % b"client|setname"),
    Case("name of a protocol key", packed("SADD", "q:bound", "5"), NO_NAME % b"q:bound"),
    Case("name of a statistic", packed("SPOP", "q:stats:produced_bytes"), b"-ERR 'q:stats:produced_bytes' "),
    Case("name with line breaks", packed("SCARD", "a\r\nb:bound"), NO_NAME % b"a\\r\\nb:bound"),
    Case("a run of refused names", packed("SADD", "x:ext", "m") * 40, NO_NAME % b"x:ext"),
    Case("name of 1 MB, refused", packed("SCARD", b"a" * MB + b":bound"), b"-ERR '" + b"a" * 128),
    Case("name of 1 MB", packed("SADD", b"n" * MB, "m"), b":1"),
    Case("name empty", packed("SADD", "", "m"), b":1"),
    Case("name of any bytes", packed("SADD", bytes(range(256)), bytes(range(256))), b":1"),
    Case("database too large", packed("SELECT", "99999999"), NO_DATABASE),
    Case("database 9999", packed("SELECT", "9999"), NO_DATABASE),
    Case("database negative", packed("SELECT", "-1"), NO_DATABASE),
    Case("database beyond 64 bits", packed("SELECT", b"9" * 5000), INTEGER),
    Case("number of 1 MB", packed("LRANGE", "q", b"1" * MB, "2"), INTEGER),
    Case("negative count", packed("SPOP", "q", "-1"), b"-ERR value is out of range, must be positive"),
    Case("huge count, SPOP", packed("SPOP", "q", 2**63 - 1), b"*0"),
    Case("huge count, SSCAN", packed("SSCAN", "q", "0", "COUNT", 2**63 - 1), b"*2\r\n$1\r\n0"),
    Case("huge positions", packed("LRANGE", "q", -(2**63), 2**63 - 1), b"*0"),
    Case("client name with a line break", packed("CLIENT", "SETNAME", "a\nb"), b"-ERR Client names cannot"),
    Case("glob of many stars", packed("KEYS", b"*a" * 500 + b"b"), b"*0"),
    Case("glob of 200 KB", packed("KEYS", b"[a-z]" * 40_000), b""),
    Case("20k globs", packed("CONFIG", "GET", *[b"a%d" % number for number in range(20_000)]), b""),
    Case("20k names of a command", packed("COMMAND", "INFO", *["client"] * 20_000), b""),
    Case("20k names to delete", packed("DEL", *[b"q%d" % number for number in range(20_000)]), b":0"),
    Case("100k messages", packed("SADD", "q", *[b"m%d" % number for number in range(100_000)]), b":100000"),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_hostile_command_is_answered_and_takes_little_memory(victim: Victim, case: Case) -> None:
    with victim.bounded_peak(64 * MB):
        hostile = victim.attack(RESP)
        hostile.send(case.request)
        assert victim.observer.ping()
        if case.reply:
            assert hostile.reply().startswith(case.reply)
        assert victim.observer.ping()
        hostile.close()
        victim.wait_until_alone()


ALGEBRA = {
    "SINTER": (packed("SINTER", *["q"] * 30), b"*8\r\n"),
    "SUNION": (packed("SUNION", *["q"] * 30), b"*8\r\n"),
    "SDIFF": (packed("SDIFF", *["q"] * 30), b"*0\r\n"),
    "SINTERCARD": (packed("SINTERCARD", 30, *["q"] * 30), b":8\r\n"),
    "SINTERCARD in a transaction": (
        packed("MULTI") + packed("SINTERCARD", 30, *["q"] * 30) + packed("EXEC"),
        b"+OK\r\n+QUEUED\r\n*1\r\n:8\r\n",
    ),
}


@pytest.mark.parametrize("name", ALGEBRA)
def test_a_queue_named_thirty_times_takes_memory_once(victim: Victim, name: str) -> None:
    """Its 8 MB are in memory as the backend's reply, as the server's, and once between."""
    request, reply = ALGEBRA[name]
    for number in range(8):
        victim.observer.rpush("q", b"%d" % number + bytes(MB))
    with victim.bounded_peak(64 * MB):
        hostile = victim.attack(RESP)
        hostile.send(request)
        assert hostile.read(len(reply)) == reply


@pytest.mark.slow
def test_requests_that_were_not_read_are_answered_when_the_replies_are_read(victim: Victim) -> None:
    """The client sends more echoes than fit before it reads the first reply."""
    words = [b"%d" % number + b"x" * 1000 for number in range(20_000)]
    requests = b"".join(packed("ECHO", word) for word in words)
    hostile = victim.attack(RESP, small_buffers=True)
    sent = hostile.send_until_blocked(requests)
    assert sent < len(requests)
    hostile.socket.setblocking(False)
    got = bytearray()
    expected = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    while len(got) < len(expected):
        writers = [hostile.socket] if sent < len(requests) else []
        readable, writable, _ = select.select([hostile.socket], writers, [], TIMEOUT)
        assert readable or writable
        if readable:
            got += hostile.socket.recv(65536)
        if writable:
            sent += hostile.socket.send(requests[sent : sent + 65536])
    assert bytes(got) == expected
