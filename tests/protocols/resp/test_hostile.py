"""Hostile requests of RESP: each is answered and takes little memory.

test_hostile_input.py tests all protocols, unit/handlers/resp/test_parser.py invalid requests, and
test_redis_compatibility.py the errors for small invalid commands.
"""

import select

import pytest

from tests.support.hostile import Victim, bounded_peak, wait_until_alone
from tests.support.measures import MB
from tests.support.programs import StartServer, Valkey
from tests.support.protocols import RESP, Wire
from tests.support.side_by_side import split
from tests.support.waiters import packed

UNKNOWN = b"-ERR unknown command '%b', with args beginning with: "
ARITY = b"-ERR wrong number of arguments for '%b' command"
NO_NAME = b"-ERR '%b' cannot be a queue's name: "

# A request, and the beginning of its reply.
CASES = {
    "unknown command, huge arguments": (packed(b"X" * MB, b"y" * MB), UNKNOWN % (b"X" * 128)),
    "unknown command, many arguments": (packed("NO", *["a"] * 100_000), UNKNOWN % b"NO" + b"'a' 'a' "),
    "too many arguments": (packed("SCARD", *["q"] * 1000), ARITY % b"scard"),
    "a run of refused names": (packed("SADD", "x:ext", "m") * 40, NO_NAME % b"x:ext"),
    "name of 1 MB": (packed("SADD", b"n" * MB, "m"), b":1"),
    "huge count, SPOP": (packed("SPOP", "q", 2**63 - 1), b"*0"),
    "huge count, SSCAN": (packed("SSCAN", "q", "0", "COUNT", 2**63 - 1), b"*2\r\n$1\r\n0"),
    "huge positions": (packed("LRANGE", "q", -(2**63), 2**63 - 1), b"*0"),
    "glob of 200 KB": (packed("KEYS", b"[a-z]" * 40_000), b""),
    "20k globs": (packed("CONFIG", "GET", *[b"a%d" % number for number in range(20_000)]), b""),
    "20k names of a command": (packed("COMMAND", "INFO", *["client"] * 20_000), b""),
    "20k names to delete": (packed("DEL", *[b"q%d" % number for number in range(20_000)]), b":0"),
    "100k messages": (packed("SADD", "q", *[b"m%d" % number for number in range(100_000)]), b":100000"),
}


@pytest.mark.parametrize(("request_", "reply"), CASES.values(), ids=CASES)
def test_a_hostile_command_is_answered_and_takes_little_memory(
    victim: Victim, request_: bytes, reply: bytes
) -> None:
    with bounded_peak(victim.server, 64 * MB):
        hostile = victim.attack(RESP)
        hostile.send(request_)
        assert victim.observer.ping()
        if reply:
            assert hostile.reply().startswith(reply)
        assert victim.observer.ping()
        hostile.close()
        wait_until_alone(victim.observer)


# Commands that name the queue {q}, {n} times in all; and how the reply begins, with its length.
ALGEBRA = {
    "SINTER": ("SINTER {q}", b"*%d\r\n"),
    "SUNION": ("SUNION {q}", b"*%d\r\n"),
    "SDIFF": ("SDIFF {q}", b"*0\r\n"),
    "SINTERCARD": ("SINTERCARD {n} {q}", b":%d\r\n"),
    "in a transaction": ("MULTI|SINTERCARD {n} {q}|EXEC", b"+OK\r\n+QUEUED\r\n*1\r\n:%d\r\n"),
    "SUNIONSTORE": ("SUNIONSTORE d {q}", b":%d\r\n"),
}


@pytest.mark.parametrize(("size", "count", "times"), [(MB, 8, 30), (0, 10_000, 2000)], ids=["large", "long"])
@pytest.mark.parametrize(("commands", "reply"), ALGEBRA.values(), ids=ALGEBRA)
def test_a_queue_that_is_named_many_times_is_read_once(
    victim: Victim, commands: str, reply: bytes, size: int, count: int, times: int
) -> None:
    """The 8 MB are in memory three times: in the backend's reply, as messages, and in the server's reply."""
    victim.observer.rpush("q", *[b"%d" % number + bytes(size) for number in range(count)])
    lines = [line.format(n=times, q="q " * times).split() for line in split(commands)]
    expected = reply.replace(b"%d", b"%d" % count)
    with bounded_peak(victim.server, 64 * MB):
        hostile = victim.attack(RESP)
        hostile.send(b"".join(packed(*line) for line in lines))
        assert hostile.exactly(len(expected)) == expected


def test_set_algebra_on_too_many_queues_is_refused(victim: Victim) -> None:
    hostile = victim.attack(RESP)
    names = [f"q{number}" for number in range(1001)]
    for words in (["SUNION"], ["SINTERCARD", 1001], ["SDIFFSTORE", "d"]):
        assert hostile(packed(*words, *names)) == b"-ERR too many queues: at most 1000"
    assert hostile(packed("SUNION", *names[1:])) == b"*0"


def test_what_set_algebra_reads_counts_as_the_client_s_memory(
    start_server: StartServer, backend: Valkey
) -> None:
    server = start_server("--backend", backend.url, "--max-buffered-bytes", "64mb")
    with server.client() as client:
        names = [f"q{number}" for number in range(12)]
        for name in names:
            client.rpush(name, *[bytes(MB) + b"%d" % number for number in range(8)])
        for evicted, words in enumerate(("SUNION", "SINTERCARD 12", "SDIFFSTORE d"), 1):
            with Wire(RESP, server) as hostile:
                hostile.send(packed(*words.split(), *names))
                assert hostile.rest()[:5] in (b"-OOM ", b"")
                assert client.info("stats")["evicted_clients"] == evicted


def commands_of_others(victim: Victim, hostile: Wire) -> int:
    """Return how many commands of another client are done before the reply comes."""
    done = 0
    while not select.select([hostile.socket], [], [], 0)[0]:
        assert victim.observer.rpush("other", "x") == 1
        assert victim.observer.lpop("other") == b"x"
        done += 1
    return done


# Commands that are done in portions: the messages in the queue, the request, and the reply.
_EVEN, _WORDS = range(0, 10_000, 2), range(200_000)
PORTIONS = {
    "LPOP": (
        range(50_000),
        packed("LPOP", "q", 2**60),
        b"*50000\r\n" + b"".join(b"$%d\r\n%d\r\n" % (len(str(one)), one) for one in range(50_000)),
    ),
    "SMISMEMBER": (
        _EVEN,
        packed("SMISMEMBER", "q", *_WORDS),
        b"*200000\r\n" + b":1\r\n:0\r\n" * 5000 + b":0\r\n" * 190_000,
    ),
    "SREM": (_EVEN, packed("SREM", "q", *_WORDS), b":5000\r\n"),
}


@pytest.mark.parametrize(("messages", "request_", "reply"), PORTIONS.values(), ids=PORTIONS)
def test_a_command_on_very_many_messages_leaves_time_for_others(
    victim: Victim, messages: range, request_: bytes, reply: bytes
) -> None:
    victim.observer.rpush("q", *messages)
    hostile = victim.attack(RESP)
    hostile.send(request_)
    assert commands_of_others(victim, hostile) > 1  # in one step it would be none, or one
    assert hostile.exactly(len(reply)) == reply


PATTERNS = [b"*" + b"a" * 4000 + b"b*", b"*" + b"a?" * 2000 + b"b*", b"*" + b"[a-b]" * 800 + b"c*"]


@pytest.mark.parametrize("pattern", PATTERNS, ids=["text", "?", "classes"])
def test_a_pattern_leaves_time_for_others(victim: Victim, pattern: bytes) -> None:
    victim.observer.rpush("q", b"a" * (4 * MB))
    for number in range(4):
        victim.observer.rpush(b"a" * MB + b"%d" % number, "x")
    hostile = victim.attack(RESP)
    hostile.send(packed("SSCAN", "q", 0, "MATCH", pattern) + packed("KEYS", pattern))
    for _ in range(5):
        assert victim.observer.rpush("other", "x") == 1
        assert victim.observer.lpop("other") == b"x"
    assert hostile.exactly(len(nothing := b"*2\r\n$1\r\n0\r\n*0\r\n")) == nothing


def test_very_many_watched_queues_are_refused(victim: Victim) -> None:
    hostile = victim.attack(RESP)
    names = [f"q{number}" for number in range(10_001)]
    assert hostile(packed("WATCH", *names[1:], *names[1:])) == b"+OK"
    assert hostile(packed("WATCH", "q0")) == b"-ERR too many watched queues"
    assert hostile(packed("MULTI")) == b"+OK"
    assert hostile(packed("SADD", "q5", "x")) == b"+QUEUED"
    assert hostile(packed("EXEC")) == b"*1\r\n:1"
