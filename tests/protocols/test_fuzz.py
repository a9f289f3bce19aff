"""Mutated requests, sent to each parser and to a live server.

PRESSURE_FUZZ_CODEC and PRESSURE_FUZZ_LIVE set how many, PRESSURE_FUZZ_SEED seeds the random numbers.
"""

import contextlib
import errno
import os
import random
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import hiredis
import pytest

from pressure_server.net.line_parser import Refused
from tests.support.codecs import Codec, bytewise, cut, each_codec, traced_memory
from tests.support.crowd import served
from tests.support.hostile import Victim, bounded_peak, wait_until_alone
from tests.support.measures import MB
from tests.support.programs import TIMEOUT, Server
from tests.support.protocols import Protocol, Wire, each_protocol
from tests.support.side_by_side import split
from tests.support.waiters import packed

CODEC = int(os.environ.get("PRESSURE_FUZZ_CODEC") or 4_000)
LIVE = int(os.environ.get("PRESSURE_FUZZ_LIVE") or 600)
SEED = int(os.environ.get("PRESSURE_FUZZ_SEED") or 1)
WORKERS = 4


@dataclass(frozen=True)
class Grammar:
    """A protocol's valid requests, the bytes with a meaning in it, and a check of its replies.

    `check_replies` raises an exception for invalid replies; the last reply may be incomplete.
    """

    request: Callable[[random.Random], bytes]
    tokens: list[bytes]
    check_replies: Callable[[bytes], None]


_RESP_COMMANDS = [
    line.encode().split()
    for line in split("""
PING|PING hello|ECHO hello|QUIT|RESET|SELECT 0|SELECT 1|SELECT 99999|AUTH default secret|AUTH secret|HELLO
HELLO 2|HELLO 3|HELLO 3 AUTH default x SETNAME fuzz|HELLO 4|TIME|DBSIZE|RANDOMKEY|INFO|INFO clients queues
SADD q a|SADD q a b c d|SADD q:bound a|SADD q:ext:members a|SPOP q|SPOP q 3|SPOP q -1|SCARD q|SISMEMBER q a
SMISMEMBER q a b c|SREM q a b|SMEMBERS q|SSCAN q 0 MATCH a* COUNT 5|SSCAN q 10|SRANDMEMBER q
SRANDMEMBER q -5|SRANDMEMBER q 3|LPUSH q a b|RPUSH r c|LPOP q|RPOP r 2|LLEN q|LRANGE q 0 -1|LRANGE q -3 2
LINDEX q 0|LINDEX q -9|DEL q r|UNLINK q|EXISTS q q r|TYPE q|TTL q|PTTL r|KEYS *|KEYS [a-z]?|SCAN 0
SCAN 0 MATCH q* COUNT 100 TYPE set|FLUSHDB|FLUSHALL ASYNC|COMMAND COUNT|COMMAND INFO sadd x
COMMAND DOCS spop|COMMAND GETKEYS DEL a b|COMMAND LIST|CONFIG GET max*|CLIENT ID|CLIENT INFO|CLIENT LIST
CLIENT SETNAME fuzz|CLIENT GETNAME|CLIENT SETINFO LIB-NAME x|CLIENT KILL ID 999999|CLIENT HELP|MULTI|EXEC
GET q|SET q 1|SUBSCRIBE q|PRESSURE.CREATE q|PRESSURE.INFO q
""")
]


def _payload(rng: random.Random) -> bytes:
    size = rng.choice([0, 1, 5, 30, 300, 4096, 4097])
    return rng.choice([b"x" * size, rng.randbytes(size), b"\r\n" * (size // 2)])


def _resp_request(rng: random.Random) -> bytes:
    """Return a command, possibly with another payload, inline, or repeated."""
    command = list(rng.choice(_RESP_COMMANDS))
    if len(command) > 1 and rng.random() < 0.2:
        command[rng.randrange(1, len(command))] = _payload(rng)
    if rng.random() < 0.1:
        return b" ".join(command) + rng.choice([b"\r\n", b"\n"])
    return packed(*command) * (rng.choice([5, 21, 40]) if rng.random() < 0.1 else 1)


def _check_resp_replies(data: bytes) -> None:
    reader = hiredis.Reader()
    reader.feed(data)
    while reader.gets() is not False:
        pass


_MEMCACHED_REQUESTS = [
    line.encode() + b"\r\n"
    for line in split("""
version|verbosity 1|stats|stats settings|stats reset|dump_stats|ready|get q|gets q|get q r s|get q/peek
get q/open|get q/close|get q/abort|get q/close/open|get q/t=5|get q/peek/t=5|get q/open/t=5|gets q/open
scard q|sismember q x|delete r|delete r 0|flush q|flush_all|incr q 1|touch q 0|gat 0 q|quit|nonsense
""")
]
_MEMCACHED_REQUESTS += [
    b"%b %b %b %d%b\r\n%b\r\n" % (name, key, more, len(data), b" 1" * (name == b"cas") + quiet, data)
    for name in (b"set", b"add", b"cas", b"append")
    for key in (b"q", b"r", b"q/open", b"k" * 250)
    for more in (b"0 0", b"7 1")
    for data in (b"", b"x", b"\r\n", b"set q 0 0 1\r\nx\r\n", b"y" * 5000)
    for quiet in (b"", b" noreply")
]
_MEMCACHED_LINE = re.compile(
    rb"(STORED|NOT_STORED|EXISTS|NOT_FOUND|DELETED|TOUCHED|END|OK|RESET|ERROR|\d+"
    rb"|(VERSION|STAT|VALUE|CLIENT_ERROR|SERVER_ERROR|queue) .*|  .*|})"
)


def _memcached_request(rng: random.Random) -> bytes:
    return rng.choice(_MEMCACHED_REQUESTS) * rng.choice([1, 1, 2, 30])


def _check_memcached_replies(data: bytes) -> None:
    position = 0
    while (end := data.find(b"\r\n", position)) >= 0 and data[position] != 0x81:  # the binary protocol
        line = data[position:end]
        assert _MEMCACHED_LINE.fullmatch(line), line
        position = end + 2
        if line.startswith(b"VALUE "):
            position += int(line.split()[3]) + 2


# Each command takes a job or a tube of the same few, in states that the commands before it have left.
_BEANSTALK_LINES = [
    line.encode() + b"\r\n"
    for line in split("""
reserve-with-timeout 0|reserve-with-timeout 0|reserve-with-timeout 0|reserve|reserve-with-timeout 1
reserve-with-timeout -1|reserve-with-timeout x|reserve-job 1|reserve-job 2|delete 1|delete 2|delete 3
delete 18446744073709551615|delete 18446744073709551616|release 1 0 0|release 2 1024 1|release 3 4294967295 0
release 1 4294967296 0|bury 1 0|bury 2 4294967295|touch 1|touch 2|watch q|watch r|watch default|ignore default
ignore q|ignore r|use q|use r|use default|use -q|peek 1|peek 2|peek-ready|peek-delayed|peek-buried|kick 1
kick 4294967295|kick -1|kick x|kick-job 1|kick-job 2|stats|stats-job 1|stats-tube q|stats-tube default
list-tubes|list-tube-used|list-tubes-watched|pause-tube q 0|pause-tube r 1|pause-tube none 1|ready
auth default secret|auth secret|quit|nonsense
""")
]
_BEANSTALK_LINES += [b"watch " + b"t" * 200 + b"\r\n", b"use " + b"t" * 201 + b"\r\n"]
_BEANSTALK_PUTS = [
    b"put %b %d\r\n%b\r\n" % (numbers, len(body), body)
    for numbers in (b"0 0 1", b"1024 0 60", b"4294967295 4294967295 4294967295", b"0 1 0", b"4294967296 0 1")
    for body in (b"", b"x", b"\r\n", b"put 0 0 1 1\r\nx\r\n", b"y" * 5000)
]
_BEANSTALK_LINE = re.compile(
    rb"BAD_FORMAT|UNKNOWN_COMMAND|OUT_OF_MEMORY|INTERNAL_ERROR|DRAINING|EXPECTED_CRLF|JOB_TOO_BIG|NOT_FOUND"
    rb"|DELETED|RELEASED|BURIED|TOUCHED|PAUSED|TIMED_OUT|DEADLINE_SOON|NOT_IGNORED|AUTHENTICATED|READY"
    rb"|UNAUTHENTICATED|KICKED|(INSERTED|KICKED|WATCHING) \d+|USING [^ ]+|(OK|(RESERVED|FOUND) \d+) (\d+)"
)


def _beanstalk_request(rng: random.Random) -> bytes:
    return rng.choice(rng.choice([_BEANSTALK_LINES, _BEANSTALK_PUTS])) * rng.choice([1, 1, 2, 30])


def _check_beanstalk_replies(data: bytes) -> None:
    position = 0
    while (end := data.find(b"\r\n", position)) >= 0:
        line = data[position:end]
        found = _BEANSTALK_LINE.fullmatch(line)
        assert found, line
        position = end + 2
        if found[4]:
            position += int(found[4]) + 2
            assert data[position - 2 : position] in (b"\r\n", b"\r", b"")


GRAMMARS = {
    "resp": Grammar(
        _resp_request,
        [
            b"\r\n", b"\n", b"\r", b"*", b"$", b"*0\r\n", b"*-1\r\n", b"$-1\r\n", b"$0\r\n\r\n",
            b"*1\r\n$4\r\nPING\r\n", b"*3\r\n$4\r\nSADD\r\n", b"%", b"~", b"_\r\n", b":1\r\n", b"+OK\r\n",
            b"-ERR\r\n", b'"', b"'", b"\\x", b"\0", b"\xff\xfe", b"4294967295",
            b"9223372036854775808", b"-1", b"PING\r\n", b" ", b"\x16\x03\x01",
        ],
        _check_resp_replies,
    ),
    "memcached": Grammar(
        _memcached_request,
        [
            b"\r\n", b"\n", b"\r", b"\x80", b"\0", b"\xff\xfe", b" ", b"noreply", b" 0 0 ", b"-1",
            b"4294967296", b"99999999999", b"/open", b"/close", b"/t=9", b"get ", b"set q 0 0 3\r\n",
            b"k" * 251, b"x" * 2048, b"Host: a\r\n",
        ],
        _check_memcached_replies,
    ),
    "beanstalk": Grammar(
        _beanstalk_request,
        [
            b"\r\n", b"\n", b"\r", b"\0", b"\xff\xfe", b" ", b"-1", b"0", b"4294967295", b"4294967296",
            b"18446744073709551616", b"put 0 0 1 3\r\n", b"put 0 0 1 ", b"use ", b"t" * 201, b"x" * 224,
            b"reserve-with-timeout 0\r\n", b"delete 1\r\n", b"Host: a\r\n",
        ],
        _check_beanstalk_replies,
    ),
}  # fmt: skip


def _mutate(rng: random.Random, grammar: Grammar, data: bytearray) -> None:
    """Flip, overwrite, insert, remove, duplicate or splice bytes, or change a length."""
    at, end = rng.randrange(len(data)), rng.randrange(len(data) + 1)
    match rng.randrange(9):
        case 0:
            for _ in range(rng.choice([1, 1, 2, 8])):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            data[at] = rng.randrange(256)
        case 2:
            data[end:end] = rng.randbytes(rng.choice([1, 4, 300]))
        case 3:
            data[end:end] = rng.choice(grammar.tokens)
        case 4:
            del data[at:]
        case 5:
            del data[at : at + rng.choice([1, 2, 10])]
        case 6:
            data[at:at] = data[at : at + rng.choice([1, 4, 20, 40, 100])] * rng.choice([1, 2, 30])
        case 7:
            other = grammar.request(rng)
            data[at:] = other[rng.randrange(len(other)) :]
        case 8:
            _change_length(rng, data)


def _change_length(rng: random.Random, data: bytearray) -> None:
    found = list(re.finditer(rb"\d{1,12}(?=\r\n| noreply)", data))
    if found:
        number = rng.choice(found)
        near = int(number[0]) + rng.choice([-1, 1, 2, -2])
        changed = rng.choice([near, 0, -1, 2, 65, 4097, 1 << 20, 33554433, 1 << 32, 10**12 - 1])
        data[number.start() : number.end()] = b"%d" % changed


def mutated_stream(rng: random.Random, grammar: Grammar) -> bytes:
    """Return a few requests with some mutations."""
    data = bytearray(b"".join(grammar.request(rng) for _ in range(rng.choice([1, 1, 2, 5]))))
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        if data:
            _mutate(rng, grammar, data)
    return bytes(data)


def in_pieces(rng: random.Random, data: bytes) -> list[bytes]:
    if rng.random() < 0.3 or len(data) < 2:
        return [data]
    if rng.random() < 0.1 and len(data) < 5000:
        return bytewise(data)
    return cut(data, [rng.randrange(len(data)) for _ in range(rng.randrange(1, 6))])


def _comparable(item: Any) -> Any:
    """Return the item, but one value for all errors in memcached's binary protocol.

    Such an error repeats the request's header if the header is complete, which depends on the pieces.
    """
    is_binary = isinstance(item, Refused) and item.reply[:1] == b"\x81"
    return "binary" if is_binary else item


def _check_codec(rng: random.Random, codec: Codec, data: bytes, pieces: list[bytes]) -> None:
    if rng.random() < 0.02:
        with traced_memory() as traced:
            items = codec.items(*pieces)
            # Single bytes to be joined and commands of short words cost most.
            assert traced()[1] < 120 * len(data) + 100_000
    else:
        items = codec.items(*pieces)
    for number, item in enumerate(items):
        codec.check(item)
        assert not codec.is_fatal(item) or number == len(items) - 1
    expanded = codec.flat(items)
    assert sum(map(codec.size, expanded)) <= len(data)
    assert list(map(_comparable, expanded)) == list(map(_comparable, codec.fed(data)))


@pytest.mark.slow
@each_codec
def test_a_parser_returns_valid_requests_and_errors_for_mutated_streams(codec: Codec) -> None:
    rng, grammar = random.Random(SEED), GRAMMARS[codec.name]
    for number in range(CODEC):
        data = mutated_stream(rng, grammar)
        pieces = in_pieces(rng, data)
        try:
            _check_codec(rng, codec, data, pieces)
        except Exception as unexpected:
            raise AssertionError(f"seed {SEED}, request {number}: {pieces!r}") from unexpected


def _converse(rng: random.Random, wire: Wire, pieces: list[bytes]) -> bytes:
    """Send the pieces, read some or all of the replies, and leave; return the replies."""
    connection = wire.socket
    for piece in pieces:
        connection.sendall(piece)
    leaving = rng.random()
    if leaving < 0.2:
        wire.reset()
        return b""
    if leaving < 0.8:
        connection.settimeout(0.005)
        with contextlib.suppress(TimeoutError):
            while wire.receive():
                pass
    connection.settimeout(TIMEOUT)
    connection.shutdown(socket.SHUT_WR)
    return wire.rest()


def _fuzz(protocol: Protocol, server: Server, seed: int, count: int) -> None:
    """Open `count` connections, one after the other; the server may close each at any time."""
    rng, grammar = random.Random(seed), GRAMMARS[protocol.name]
    for number in range(count):
        pieces = in_pieces(rng, mutated_stream(rng, grammar))
        try:
            with Wire(protocol, server) as wire:
                grammar.check_replies(_converse(rng, wire, pieces))
        except Exception as error:
            if getattr(error, "errno", None) not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise AssertionError(f"seed {seed}, connection {number}: {pieces!r}") from error


@pytest.mark.slow
@each_protocol
def test_a_server_serves_others_in_bounded_memory_during_mutated_requests(
    victim: Victim, protocol: Protocol
) -> None:
    with (
        served(*victim.bystanders(), flushed=True),
        bounded_peak(victim.server, 64 * MB),
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        for done in [
            pool.submit(_fuzz, protocol, victim.server, SEED + worker, LIVE // WORKERS)
            for worker in range(WORKERS)
        ]:
            done.result(10 * TIMEOUT)
    wait_until_alone(victim.observer)
    log = victim.server.log
    assert not re.search("ERROR|Traceback", log), log[-8000:]
