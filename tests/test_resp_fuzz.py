"""Requests that were valid once: mutated by a seeded random, against the codec and against a live server.

PRESSURE_FUZZ_CODEC and PRESSURE_FUZZ_LIVE say how many, PRESSURE_FUZZ_SEED begins elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import socket
import struct
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import hiredis
import pytest

from handlers.resp import errors
from handlers.resp.parser import Limits, Repeated, RequestError, RequestParser
from handlers.resp.replies import CommandError, error
from tests.support.programs import Server, Valkey, wait_for
from tests.support.waiters import packed

CODEC = int(os.environ.get("PRESSURE_FUZZ_CODEC") or 20_000)
LIVE = int(os.environ.get("PRESSURE_FUZZ_LIVE") or 1_000)
SEED = int(os.environ.get("PRESSURE_FUZZ_SEED") or 1)

LIMITS = Limits(1 << 20)

_LINES = """
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
"""
COMMANDS = [line.encode().split() for line in re.split(r"[|\n]", _LINES.strip())]
TOKENS = [
    b"\r\n", b"\n", b"\r", b"*", b"$", b"*0\r\n", b"*-1\r\n", b"$-1\r\n", b"$0\r\n\r\n",
    b"*1\r\n$4\r\nPING\r\n", b"*3\r\n$4\r\nSADD\r\n", b"%", b"~", b"_\r\n", b":1\r\n", b"+OK\r\n",
    b"-ERR\r\n", b'"', b"'", b"\\x", b"\0", b"\xff\xfe", b"4294967295",
    b"9223372036854775808", b"-1", b"PING\r\n", b" ", b"\x16\x03\x01",
]  # fmt: skip


def _payload(rng: random.Random) -> bytes:
    size = rng.choice([0, 1, 5, 30, 300, 4096, 4097])
    return rng.choice([b"x" * size, rng.randbytes(size), b"\r\n" * (size // 2)])


def valid_request(rng: random.Random) -> bytes:
    """A command, maybe with another payload, inline, or many times."""
    command = list(rng.choice(COMMANDS))
    if len(command) > 1 and rng.random() < 0.2:
        command[rng.randrange(1, len(command))] = _payload(rng)
    if rng.random() < 0.1:
        return b" ".join(command) + rng.choice([b"\r\n", b"\n"])
    return packed(*command) * (rng.choice([5, 21, 40]) if rng.random() < 0.1 else 1)


def _flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice([1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def _truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def _cut_out(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice([1, 2, 10])]


def _duplicate(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.choice([1, 4, 20, 100])]
    data[start:start] = piece * rng.choice([1, 2, 30])


def _splice(rng: random.Random, data: bytearray) -> None:
    other = valid_request(rng)
    data[rng.randrange(len(data)) :] = other[rng.randrange(len(other)) :]


def _insert_token(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(TOKENS)


def _change_length(rng: random.Random, data: bytearray) -> None:
    found = list(re.finditer(rb"([*$])(\d+)(?=\r\n)", data))
    if found:
        number = rng.choice(found)
        changed = rng.choice([int(number[2]) + rng.choice([-1, 1, 2, -2]), 0, -1, 65, 4097, 1 << 20, 1 << 32])
        data[number.start(2) : number.end(2)] = b"%d" % changed


MUTATIONS = [_flip, _set_byte, _truncate, _cut_out, _duplicate, _splice, _insert_token, _change_length]


def mutated_stream(rng: random.Random) -> bytes:
    """A few requests, of which some are spoilt."""
    data = bytearray(b"".join(valid_request(rng) for _ in range(rng.choice([1, 1, 2, 5]))))
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        if data:
            rng.choice(MUTATIONS)(rng, data)
    return bytes(data)


def in_pieces(rng: random.Random, data: bytes) -> list[bytes]:
    if rng.random() < 0.3 or len(data) < 2:
        return [data]
    if rng.random() < 0.1 and len(data) < 5000:
        return [data[i : i + 1] for i in range(len(data))]
    ends = [0, *sorted(rng.randrange(len(data)) for _ in range(rng.randrange(1, 6))), len(data)]
    return [data[start:end] for start, end in pairwise(ends) if start < end]


# ---------------------------------------------------------------- the codec


def _feed_all(pieces: list[bytes]) -> list[Any]:
    parser, found = RequestParser(LIMITS), []
    for piece in pieces:
        found += parser.feed(piece)
        if found and isinstance(found[-1], RequestError):
            break
    return found


def _one_by_one(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        found += item.commands() if isinstance(item, Repeated) else [item]
    return [str(item) if isinstance(item, RequestError) else item for item in found]


def _check_refusal(refusal: CommandError) -> None:
    assert re.fullmatch(rb"-[^\r\n]+\r\n", error(refusal))


def _check_item(item: Any, *, last: bool) -> None:
    if isinstance(item, RequestError):
        assert last
        assert str(item).startswith("Protocol error: ")
        _check_refusal(CommandError(f"ERR {item}"))
    elif isinstance(item, Repeated):
        commands = item.commands()
        assert len(commands) == item.count
        assert all(command[: len(item.words)] == item.words for command in commands)
    else:
        assert type(item) is list
        assert item
        assert all(type(word) is bytes for word in item)
        _check_refusal(errors.unknown_command(item))


def _check_codec(rng: random.Random, data: bytes, pieces: list[bytes]) -> None:
    measured = rng.random() < 0.02
    if measured:
        tracemalloc.start()
    found = _feed_all(pieces)
    if measured:
        # What costs most: joining single bytes, and commands of short words.
        assert tracemalloc.get_traced_memory()[1] < 120 * len(data) + 100_000
        tracemalloc.stop()
    for i, item in enumerate(found):
        _check_item(item, last=i == len(found) - 1)
    expanded = _one_by_one(found)
    assert sum(sum(map(len, command)) for command in expanded if type(command) is list) <= len(data)
    assert expanded == _one_by_one(_feed_all([data]))


@pytest.mark.slow
def test_only_commands_and_refusals_come_out_of_the_codec() -> None:
    rng = random.Random(SEED)
    for number in range(CODEC):
        data = mutated_stream(rng)
        pieces = in_pieces(rng, data)
        try:
            _check_codec(rng, data, pieces)
        except Exception as unexpected:
            raise AssertionError(f"seed {SEED}, request {number}: {pieces!r}") from unexpected


# ---------------------------------------------------------------- a live server


@pytest.fixture
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of our own, so that its log is ours; at the end it must be well."""
    valkey = Valkey(tmp_path_factory.mktemp("fuzzed-backend"))
    server = Server(tmp_path_factory.mktemp("fuzzed") / "log", "--backend", valkey.url)
    try:
        yield server
        assert server.process.poll() is None, server.log
        server.end_well()
    finally:
        server.process.kill()
        valkey.stop()


def _leave_rudely(connection: socket.socket) -> None:
    """Close by a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _read_on(connection: socket.socket, reader: Any, patience: float) -> None:
    """Read replies until there are no more; they must be RESP, whatever the request was."""
    connection.settimeout(patience)
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(65536):
            reader.feed(data)
            while reader.gets() is not False:
                pass


def _converse(rng: random.Random, connection: socket.socket, pieces: list[bytes]) -> None:
    for piece in pieces:
        connection.sendall(piece)
    leaving = rng.random()
    if leaving < 0.2:
        _leave_rudely(connection)
        return
    if leaving < 0.8:
        with contextlib.suppress(TimeoutError):
            _read_on(connection, hiredis.Reader(), 0.005)
    connection.shutdown(socket.SHUT_WR)
    _read_on(connection, hiredis.Reader() if leaving >= 0.8 else _Anything(), 20)


def fuzz_once(rng: random.Random, port: int) -> None:
    """One connection: what it sends, and how it leaves. The server may close it at any time."""
    pieces = in_pieces(rng, mutated_stream(rng))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            _converse(rng, connection, pieces)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise


class _Anything:
    """Reads what is left after replies that were read in part."""

    def feed(self, data: bytes) -> None:
        pass

    def gets(self) -> bool:
        return False


@pytest.mark.slow
def test_a_live_server_stays_well(fuzzed: Server) -> None:
    rng = random.Random(SEED)
    for number in range(LIVE):
        try:
            fuzz_once(rng, fuzzed.port)
            if rng.random() < 0.2:
                with fuzzed.client(socket_timeout=20) as behaved:
                    assert behaved.ping()
        except Exception as unexpected:
            raise AssertionError(f"seed {SEED}, connection {number}: {fuzzed.log}") from unexpected
    with fuzzed.client(socket_timeout=20) as behaved:
        wait_for(lambda: behaved.info("clients")["connected_clients"] == 1, "the fuzzed clients to be gone")
        assert behaved.sadd("after", "all") == 1
        assert behaved.spop("after") == b"all"
