"""Hostile requests of RESP: each is answered and takes little memory.

test_hostile_input.py tests all protocols, unit/handlers/resp/test_parser.py invalid requests, and
test_redis_compatibility.py the errors for small invalid commands.
"""

import select

import pytest

from tests.support.hostile import Victim, bounded_peak, wait_until_alone
from tests.support.measures import MB
from tests.support.programs import TIMEOUT, StartServer, Valkey
from tests.support.protocols import RESP, Wire
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


@pytest.mark.parametrize(("request_", "reply"), ALGEBRA.values(), ids=ALGEBRA)
def test_a_queue_named_thirty_times_takes_memory_once(victim: Victim, request_: bytes, reply: bytes) -> None:
    """Its 8 MB are in memory three times: in the backend's reply, as messages, and in the server's reply."""
    for number in range(8):
        victim.observer.rpush("q", b"%d" % number + bytes(MB))
    with bounded_peak(victim.server, 64 * MB):
        hostile = victim.attack(RESP)
        hostile.send(request_)
        assert hostile.exactly(len(reply)) == reply


REPEATED = {
    "SUNION": (["SUNION"], b"*10000\r\n"),
    "SINTER": (["SINTER"], b"*10000\r\n"),
    "SDIFF": (["SDIFF"], b"*0\r\n"),
    "SINTERCARD": (["SINTERCARD", 2000], b":10000\r\n"),
    "SUNIONSTORE": (["SUNIONSTORE", "d"], b":10000\r\n"),
}


@pytest.mark.parametrize(("words", "reply"), REPEATED.values(), ids=REPEATED)
def test_a_long_queue_named_2000_times_is_read_once(
    victim: Victim, words: list[str | int], reply: bytes
) -> None:
    """A list with an entry for each message of each name would take 160 MB."""
    victim.observer.rpush("q", *range(10_000))
    with bounded_peak(victim.server, 32 * MB):
        hostile = victim.attack(RESP)
        hostile.send(packed(*words, *["q"] * 2000))
        assert hostile.exactly(len(reply)) == reply


def test_set_algebra_on_too_many_queues_is_refused(victim: Victim) -> None:
    hostile = victim.attack(RESP)
    names = [f"q{number}" for number in range(1001)]
    for words in (["SUNION"], ["SINTERCARD", 1001], ["SDIFFSTORE", "d"]):
        assert hostile(packed(*words, *names)) == b"-ERR too many queues: at most 1000"
    assert hostile(packed("SUNION", *names[1:])) == b"*0"


@pytest.mark.parametrize("words", [["SUNION"], ["SINTERCARD", 12], ["SDIFFSTORE", "d"]])
def test_what_set_algebra_reads_counts_as_the_client_s_memory(
    start_server: StartServer, backend: Valkey, words: list[str | int]
) -> None:
    server = start_server("--backend", backend.url, "--max-buffered-bytes", "64mb")
    with server.client() as client, Wire(RESP, server) as hostile:
        names = [f"q{number}" for number in range(12)]
        for name in names:
            client.rpush(name, *[bytes(MB) + b"%d" % number for number in range(8)])
        hostile.send(packed(*words, *names))
        assert hostile.rest().startswith((b"-OOM ", b""))
        assert hostile.is_closed()
        assert client.info("stats")["evicted_clients"] == 1


def test_a_take_of_very_many_messages_leaves_time_for_others(victim: Victim) -> None:
    count = 50_000
    victim.observer.rpush("q", *range(count))
    hostile = victim.attack(RESP)
    hostile.send(packed("LPOP", "q", 2**60))
    done = 0
    while not select.select([hostile.socket], [], [], 0)[0]:
        assert victim.observer.rpush("other", "x") == 1
        assert victim.observer.lpop("other") == b"x"
        done += 1
    expected = b"".join(b"$%d\r\n%d\r\n" % (len(str(number)), number) for number in range(count))
    assert hostile.exactly(len(expected) + 8) == b"*%d\r\n" % count + expected
    assert done > 1  # in one step it would be none, or one


def test_very_many_watched_queues_are_refused(victim: Victim) -> None:
    hostile = victim.attack(RESP)
    names = [f"q{number}" for number in range(10_001)]
    assert hostile(packed("WATCH", *names[1:], *names[1:])) == b"+OK"
    assert hostile(packed("WATCH", "q0")) == b"-ERR too many watched queues"
    assert hostile(packed("MULTI")) == b"+OK"
    assert hostile(packed("SADD", "q5", "x")) == b"+QUEUED"
    assert hostile(packed("EXEC")) == b"*1\r\n:1"


@pytest.mark.parametrize("verb", ["SMISMEMBER", "SREM"])
def test_a_command_of_very_many_words_leaves_time_for_others(victim: Victim, verb: str) -> None:
    """It is done in portions, and commands of others in between."""
    count = 200_000
    victim.observer.rpush("q", *range(0, 10_000, 2))
    hostile = victim.attack(RESP)
    hostile.send(packed(verb, "q", *range(count)))
    done = 0
    hostile.socket.setblocking(False)
    while not select.select([hostile.socket], [], [], 0)[0]:
        assert victim.observer.rpush("other", "x") == 1
        assert victim.observer.lpop("other") == b"x"
        done += 1
    hostile.socket.settimeout(TIMEOUT)
    flags = b":1\r\n:0\r\n" * 5000 + b":0\r\n" * (count - 10_000)
    expected = b":5000\r\n" if verb == "SREM" else b"*%d\r\n" % count + flags
    assert hostile.exactly(len(expected)) == expected
    assert done > 1  # in one step it would be none, or one


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


@pytest.mark.slow
def test_a_client_that_sends_before_it_reads_gets_all_replies(victim: Victim) -> None:
    words = [b"%d" % number + b"x" * 1000 for number in range(20_000)]
    requests = b"".join(packed("ECHO", word) for word in words)
    hostile = victim.attack(RESP, small_buffers=True)
    sent = hostile.send_until_blocked(requests)
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
