"""Keys and values (memcached://…?mode=kv): compared with memcached, and on a backend that servers share.

`DIFFERENCES` has the requests whose replies differ from memcached's on purpose, with the reason.
"""

import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_relay import BackendRelay
from tests.support.faults import stopped
from tests.support.guards import users_toml
from tests.support.measures import MB, memory
from tests.support.memcached_wire import ValuesWire
from tests.support.model_settings import model_settings
from tests.support.module_servers import module_server
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    keys_left,
    start_replicated,
    wait_for,
    wait_until_settled,
)
from tests.support.protocols import MEMCACHED, stored
from tests.support.requirements import need

LISTEN = ("--listen", "memcached://127.0.0.1:0?mode=kv")
END = b"END\r\n"
STATE = "__pressure__!kv"
VALUES = f"{STATE}:*"


shared_server = module_server(*LISTEN)


@pytest.fixture(scope="module")
def memcached_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a memcached's unix socket."""
    path = tmp_path_factory.mktemp("memcached") / "socket"
    # Otherwise background threads decide whether decr shortens a value or pads it.
    quiet = ("-t", "1", "-o", "no_lru_crawler,no_lru_maintainer")
    process = subprocess.Popen([need("memcached", "memcached"), "-u", "root", "-s", str(path), "-A", *quiet])
    try:
        wait_for(path.exists, "memcached to listen")
        yield str(path)
    finally:
        process.kill()
        process.wait(TIMEOUT)


@pytest.fixture
def wire(server: Server) -> Iterator[ValuesWire]:
    with connect(server) as connected:
        yield connected


def connect(server: Server) -> ValuesWire:
    return ValuesWire(server.port_of("memcached", "?mode=kv"))


def value(key: bytes, data: bytes, flags: int = 0) -> bytes:
    """Return the reply to a get that finds this value only."""
    return b"VALUE %b %d %d\r\n%b\r\nEND\r\n" % (key, flags, len(data), data)


KEYS = st.sampled_from([b"a", b"a", b"b"])
EDGES = [
    0, 1, 9, 10, 99, 100, 9_999_999_999, 10_000_000_000, 10_000_000_001, 2**63 - 1, 2**63, 2**63 + 1,
    2**64 - 10**10, 2**64 - 2, 2**64 - 1, 18_446_744_069_999_999_999, 18_446_744_070_000_000_000,
]  # fmt: skip
NUMBERS = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1)).map(b"%d".__mod__)
ODD_NUMBERS = [
    b"007", b" 5", b"\t\n5", b"5 ", b"5   6", b"5\x006", b"5\r\n", b"+3", b"-0", b"-1", b"+", b"", b"x",
    b"1x", b"1.5", b"0x1", b"18446744073709551616", b"99999999999999999999", b"0000000000000000000000012",
]  # fmt: skip
# If a value is all blanks, memcached reads the memory after it as the number.
BYTES = st.binary(max_size=40).filter(lambda data: not data.isspace() and b"-" not in data)
DATA = st.one_of(NUMBERS, st.sampled_from(ODD_NUMBERS), BYTES)
DELTAS = st.one_of(NUMBERS, st.sampled_from([b"0018", b"-1", b"x", b"1x", b"18446744073709551616", b"1.5"]))
FLAGS = st.sampled_from([b"0", b"1", b"65535", b"4294967295", b"007"])
# Never, past, in a day, in 30 days, in 1970 (beyond 30 days a time is absolute), and in the year 2038.
EXPIRIES = st.sampled_from([b"0"] * 5 + [b"-1", b"-100", b"86400", b"2592000", b"2592001", b"2147483647"])
QUIET = st.sampled_from([b"", b"", b"", b" noreply"])
# The key's last unique that a reply had, the one before it, and others.
UNIQUES = st.sampled_from([b"<-1>"] * 3 + [b"<-2>", b"0", b"18446744073709551615"])


def line(*words: bytes | st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Generate requests of these words."""
    strategies = [st.just(word) if isinstance(word, bytes) else word for word in words]
    return st.tuples(*strategies).map(lambda drawn: b" ".join(drawn) + b"\r\n")


def storing(name: bytes) -> st.SearchStrategy[bytes]:
    """Generate requests of a storage command."""
    uniques = UNIQUES.map(b" ".__add__) if name == b"cas" else st.just(b"")

    def request(key: bytes, flags: bytes, expires: bytes, data: bytes, unique: bytes, quiet: bytes) -> bytes:
        words = (name, key, flags, expires, len(data), unique, quiet, data)
        return b"%b %b %b %b %d%b%b\r\n%b\r\n" % words

    return st.builds(request, KEYS, FLAGS, EXPIRIES, DATA, uniques, QUIET)


def quietly(request: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Generate the same requests, some with noreply."""
    return st.builds(lambda drawn, quiet: drawn[:-2] + quiet + b"\r\n", request, QUIET)


# Flags that mean something to a meta command. memcached ignores others.
META_FLAGS = {
    b"mg": [b"v", b"f", b"c", b"s", b"t", b"k", b"Oab", b"q", b"u", b"T0", b"T86400", b"N0", b"N86400", b"R0",
            b"R3600", b"R2592000"],
    b"ms": [b"c", b"k", b"q", b"F7", b"T0", b"T86400", b"I", b"MS", b"ME", b"MR", b"MA", b"MP", b"C<-1>",
            b"C<-2>", b"C0"],
    b"md": [b"k", b"q", b"Oab", b"C<-1>", b"C<-2>", b"I", b"T0", b"T86400"],
    b"ma": [b"v", b"c", b"k", b"D5", b"D18446744073709551615", b"MD", b"M+", b"M-", b"J7", b"N86400",
            b"T86400", b"C<-1>", b"C0"],
}  # fmt: skip


def meta(name: bytes) -> st.SearchStrategy[bytes]:
    """Generate requests of a meta command; a letter comes once."""
    flags = st.lists(st.sampled_from(META_FLAGS[name]), max_size=5, unique_by=lambda flag: flag[:1])

    def request(key: bytes, data: bytes, chosen: list[bytes]) -> bytes:
        size, block = ([b"%d" % len(data)], data + b"\r\n") if name == b"ms" else ([], b"")
        return b" ".join([name, key, *size, *chosen]) + b"\r\n" + block

    return st.builds(request, KEYS, DATA, flags)


MANY_KEYS = st.lists(st.sampled_from([b"a", b"b", b"none"]), min_size=1, max_size=5).map(b" ".join)
REQUESTS = st.one_of(
    *[storing(name) for name in (b"set", b"set", b"add", b"replace", b"append", b"prepend", b"cas", b"cas")],
    *[quietly(line(name, KEYS, DELTAS)) for name in (b"incr", b"incr", b"decr", b"decr")],
    *[line(name, MANY_KEYS) for name in (b"get", b"gets", b"gets")],
    *[line(name, EXPIRIES, MANY_KEYS) for name in (b"gat", b"gats")],
    *[meta(name) for name in (b"mg", b"mg", b"ms", b"ms", b"md", b"ma")],
    quietly(line(b"touch", KEYS, EXPIRIES)),
    quietly(line(b"delete", KEYS)),
    quietly(st.sampled_from([b"flush_all\r\n", b"flush_all 0\r\n", b"flush_all -1\r\n"])),
)
UNIQUE = re.compile(rb"(?<=VALUE )(\w+)( \d+ \d+ )(\d+)(?=\r\n)")
# Of a meta command; 0 stands for none.
META_UNIQUE = re.compile(rb"(?<= c)[1-9]\d*")
# The seconds left, in which the clocks of the two may differ.
LEFT = re.compile(rb"(?<= t)\d+")
SEEN = re.compile(rb"<-(\d)>")


class Side:
    """One of the two servers, and the cas uniques in its replies, by key."""

    def __init__(self, wire: ValuesWire) -> None:
        self._wire = wire
        self._seen: dict[bytes, list[bytes]] = {}

    def __call__(self, request: bytes) -> tuple[bytes, list[bytes]]:
        """Return the reply without its uniques, and the uniques."""
        key = request.split(b" ", 2)[1] if b" " in request else b""
        seen = self._seen.get(key, [])

        def unique(found: re.Match[bytes]) -> bytes:
            back = int(found[1])
            return seen[-back] if len(seen) >= back else b"7"

        reply = self._wire(SEEN.sub(unique, request))
        if request[:2] in META_FLAGS:
            first, end, data = reply.partition(b"\r\n")
            shown = [(key, number) for number in META_UNIQUE.findall(first)]
            first = LEFT.sub(lambda left: b"%d hours" % ((int(left[0]) + 1800) // 3600), first)
            reply = META_UNIQUE.sub(b"UNIQUE", first) + end + data
        else:
            shown = [(named, number) for named, _, number in UNIQUE.findall(reply)]
            reply = UNIQUE.sub(rb"\1\2UNIQUE", reply)
        for named, number in shown:
            known = self._seen.setdefault(named, [])
            if number not in known:
                known.append(number)
        return reply, [number for _, number in shown]


@pytest.mark.slow
@pytest.mark.clients
def test_random_commands_get_memcached_s_replies(memcached_socket: str, server: Server) -> None:
    count = 0

    @model_settings("PRESSURE_VALUES_EXAMPLES", 60)
    @given(st.lists(REQUESTS, min_size=20, max_size=60))
    def compare(requests: list[bytes]) -> None:
        nonlocal count
        with ValuesWire(memcached_socket) as original, connect(server) as compared:
            memcached, tested = Side(original), Side(compared)
            for side in (memcached, tested):
                side(b"flush_all\r\n")
            # The tested server's unique for each of memcached's.
            same: dict[bytes, bytes] = {}
            for request in requests:
                count += 1
                (expected, expected_uniques), (found, uniques) = memcached(request), tested(request)
                assert found == expected, request
                for original_unique, unique in zip(expected_uniques, uniques, strict=True):
                    assert same.setdefault(original_unique, unique) == unique, request
                assert len(set(same.values())) == len(same), request

    compare()
    assert count > 1000


DIFFERENCES: dict[str, list[bytes]] = {
    "the data of a refused command is skipped, not executed": [
        b"append a x 0 1\r\ny\r\n", b"set a -1 0 1\r\nx\r\n", b"set a 0 x 1\r\nx\r\n",
        b"cas a 0 0 1 x\r\nx\r\n", b"cas a 0 0 1 -1\r\nx\r\n", b"cas a 0 0 1\r\nx\r\n",
        b"cas a 0 0 1 18446744073709551616\r\nx\r\n", b"set %b 0 0 1\r\nx\r\n" % (b"k" * 251),
        b"set a 0 0 1 noreply x\r\nx\r\n", b"SET a 0 0 10\r\ndelete n\r\n\r\n",
    ],
    "a key is returned as the request has it, not as the value was stored": [
        b"mg bg== v k b\r\n", b"mg bg== k b\r\n",
    ],
    "an error says which flag is wrong": [b"md n Cx\r\n", b"ma n Dx\r\n"],
    "me returns what is known here": [b"me n\r\n", b"me\r\n"],
    "a value that has expired has no time left": [b"mg none N-1 t\r\n"],
    "a number is digits only, and a command has the words of protocol.txt": [
        b"cas a 0 0 1 1 x\r\nx\r\n", b"set a 0 0 1 x\r\nx\r\n", b"incr n +1\r\n",
        b"incr n 000000000000000000000001\r\n", b"incr n 1 x\r\n", b"incr n 1 x noreply\r\n",
        b"touch n 0 x\r\n", b"gat 0\r\n", b"delete n 0 0\r\n", b"flush_all 0 0\r\n",
    ],
    "flags of more than 32 bits and times beyond 2038 are not cut to 32 bits": [
        b"set a 4294967296 0 1\r\nx\r\n", b"set a 0 2147483648 1\r\nx\r\nget a\r\n",
    ],
    "protocol.txt allows no control characters in a key": [
        b"set a\x01 0 0 1\r\nx\r\n", b"get a\x7f\r\n",
    ],
}  # fmt: skip
DIFFERENT = list(chain.from_iterable(DIFFERENCES.values()))
SAME = [
    b"\r\n", b"x\r\n", b"GET n\r\n", b" get n\r\n", b"get  n  n \r\n", b"get n\n", b"get\r\n", b"gets\r\n",
    b"gat\r\n", b"gat x n\r\n", b"gats x n\r\n", b"get noreply\r\n", b"gat 0 noreply\r\n",
    b"set a 0 0 1\nx\r\nget a\r\n", b"set a 007 00 01\r\nx\r\nget a\r\n", b"set\r\n", b"add\r\n",
    b"set %b 0 0 1\r\nx\r\nget %b\r\n" % (b"k" * 250, b"k" * 250),
    *[line_ % (b"k" * 251) for line_ in (
        b"get %b\r\n", b"get n %b\r\n", b"gets n n %b\r\n", b"gat 0 %b\r\n", b"incr %b 1\r\n",
        b"decr %b 1\r\n", b"touch %b 0\r\n", b"delete %b\r\n",
    )],
    b"incr n\r\n", b"incr\r\n", b"incr n x\r\n", b"incr n -1\r\n", b"incr n 1x\r\n",
    b"incr n 18446744073709551616\r\n", b"incr n x noreply\r\n", b"incr none x\r\n",
    b"incr text 1\r\n", b"incr text 1 noreply\r\n",
    b"decr empty 1\r\n",
    b"touch n\r\n", b"touch n x\r\n", b"touch n x noreply\r\n", b"touch none 0\r\n",
    b"delete\r\n", b"delete n 1\r\n", b"delete n x\r\n", b"delete n x noreply\r\n", b"delete n 0\r\n",
    b"delete none 0\r\n", b"delete n 0 noreply\r\nget n\r\n", b"delete n noreply noreply\r\nget n\r\n",
    b"flush_all x\r\n", b"flush_all x noreply\r\n", b"flush_all 0 noreply\r\nget n\r\n",
    b"flush_all 1 2 3\r\n",
    b"cas n 0 0 1 0\r\nx\r\n", b"cas none 0 0 1 0\r\nx\r\n", b"cas n 0 0 1 18446744073709551615\r\nx\r\n",
    b"mg\r\n", b"ms\r\n", b"md\r\n", b"ma\r\n", b"mx n\r\n", b"mn\r\n", b"me none\r\n", b"mn x\r\n",
    *[b"mg " + words + b"\r\n" for words in (
        b"n", b"n v", b"n k s", b"text v f s k Oabc", b"none k Oabc", b"none q", b"n v v", b"n ?", b"n S1",
        b"n Tx", b"n Nx", b"n Rx", b"!! v b", b"n P L u v", b"n O" + b"x" * 31, b"n O" + b"x" * 32,
        b"k" * 251,
        b"n T30 t", b"n t T30", b"n T-1 v", b"n N30 t", b"none N30 t v", b"none N30 T90 t", b"none T90 N30 t",
        b"n R30", b"n T10 R30 v", b"n R30 T10 v", b"n T60 R30 v", b"n v noreply", b"none N0 O1 k t v",
    )],
    b"mg n T10 R30\r\nmg n R30 t\r\nget n\r\n", b"mg none N30 v\r\nmg none N30 v\r\nmg none v\r\n",
    b"md n I\r\nmg n v\r\nmg n v\r\nget n\r\n", b"md n I T30\r\nmg n t\r\n",
    b"md n I\r\nms n 1\r\nx\r\nmg n v\r\n",
    b"md n\r\nget n\r\n", b"md n q\r\nmd n q\r\n", b"md none k Oa\r\n", b"md n C999\r\n",
    b"md n T30\r\nmg n\r\n",
    *[b"ms " + words + b"\r\nx\r\nmg a v f\r\nget n\r\n" for words in (
        b"a 1", b"a 1 F5 T30 k Oabc", b"a 1 F4294967295", b"a 1 MR", b"n 1 MR", b"n 1 MA", b"n 1 MP q",
        b"a 1 ME",
        b"n 1 ME q k O1", b"a 1 MX", b"a 1 MSS", b"a 1 M", b"a 1 Fx", b"a 1 Tx", b"a 1 Cx", b"a 1 C1",
        b"n 1 C999",
        b"n 1 C0", b"n 1 C18446744073709551615 I", b"n 1 C0 I", b"n 1 C999 MA", b"n 1 C0 MA", b"a 1 C1 MA",
        b"n 1 C1 ME", b"a 1 C1 MR", b"YQ== 1 b k", b"!! 1 b", b"a 1 ? F1", b"a 1 v v", b"a 1 O" + b"x" * 32,
    )],
    b"set n 0 0 1\r\n5\r\nms n 1 C1 I\r\n6\r\nmg n v\r\nmg n v\r\n", b"ms YSBi 1 b\r\nx\r\nmg YSBi b k v\r\n",
    b"ms none 10 ?\r\ndelete n\r\n\r\nget n\r\n",
    # Classic commands do not see the marks of meta commands.
    b"set a 4294967295 0 1\r\n1\r\nmd a I q\r\nget a\r\nmg a f\r\nmg a f\r\ngat 0 a\r\n"
    b"append a 0 0 1\r\n2\r\nmg a f v\r\n",
    *[b"ma " + words + b"\r\nmg n v\r\n" for words in (
        b"n", b"n v", b"n v t", b"n D10 v", b"n MD D3 v", b"n M- v", b"n M+ v k Oa", b"n MX", b"n q", b"none",
        b"none q", b"none k Oa", b"none N30 v t", b"none N0 J13 v", b"none J13", b"text v", b"empty v",
        b"empty C1",
        b"text C1", b"n C999", b"n T30 v t", b"n N30 t", b"n D18446744073709551615 v", b"n MD D100 v",
        b"bg== b v", b"k" * 251,
    )],
    b"verbosity 1\r\n", b"verbosity 1 noreply\r\n", b"version x\r\n", b"version noreply\r\n",
    b"stats noreply\r\n", b"stats x\r\n", b"stats reset\r\n",
]  # fmt: skip
PREPARED = stored(b"n", b"5") + stored(b"text", b"text") + stored(b"empty", b"")


@pytest.mark.clients
@pytest.mark.parametrize("request_", [*SAME, *DIFFERENT])
def test_odd_requests_get_memcached_s_replies_with_the_listed_exceptions(
    memcached_socket: str, wire: ValuesWire, request_: bytes
) -> None:
    with ValuesWire(memcached_socket) as memcached:
        memcached(b"flush_all\r\n" + PREPARED)
        wire(b"flush_all\r\n" + PREPARED)
        assert (memcached(request_) != wire(request_)) == (request_ in DIFFERENT)


def test_me_tells_what_is_known_of_a_value(wire: ValuesWire) -> None:
    wire(stored(b"n", b"123"))
    unique = wire(b"gets n\r\n").split()[4]
    assert wire(b"me n\r\nme bg== b\r\nme none\r\n") == (
        b"ME n exp=-1 cas=%b size=3\r\nME bg== exp=-1 cas=%b size=3\r\nEN\r\n" % (unique, unique)
    )


@pytest.mark.clients
def test_memccapable_passes(server: Server) -> None:
    program = need("memccapable", "libmemcached-tools")
    ended = subprocess.run(
        [program, "-h", "127.0.0.1", "-p", str(server.port_of("memcached", "?mode=kv")), "-a"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    *tests, last = ended.stdout.splitlines()
    assert [test for test in tests if not re.fullmatch(r"ascii [a-z ]+\[pass\]", test)] == [], ended
    assert len(tests) >= 27
    assert last == "All tests passed"


def test_a_value_that_would_become_too_large_does_not_change(
    backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--max-message-bytes", "10", *LISTEN)
    with connect(server) as wire:
        assert wire(stored(b"a", b"123456")) == b"STORED\r\n"
        assert wire(b"append a 0 0 4\r\n7890\r\n") == b"STORED\r\n"
        for name in (b"append", b"prepend"):
            assert wire(name + b" a 0 0 1\r\nx\r\n") == b"SERVER_ERROR object too large for cache\r\n"
            assert wire(name + b" a 0 0 1 noreply\r\nx\r\n") == b""
        assert wire(stored(b"a", b"12345678901")) == b"SERVER_ERROR object too large for cache\r\n"
        assert wire(b"get a\r\n") == value(b"a", b"1234567890")


def test_a_get_of_many_keys_and_bytes_is_one_reply(wire: ValuesWire) -> None:
    large = bytes(range(256)) * 2000
    names = [b"%d" % number for number in range(2500)]
    assert wire(b"".join(stored(name, name) for name in names[::2])) == b"STORED\r\n" * 1250
    assert wire(stored(b"large", large)) == b"STORED\r\n"
    asked = [*names, *[b"large"] * 12, b"0"]
    items = [value(name, name)[: -len(END)] for name in names[::2]]
    items += [value(b"large", large)[: -len(END)]] * 12 + [value(b"0", b"0")]
    assert wire(b"get " + b" ".join(asked) + b"\r\n") == b"".join(items)


def test_an_unread_reply_takes_little_memory(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, *LISTEN)
    with connect(server) as wire, connect(server) as other:
        wire(stored(b"large", bytes(MB)))
        before = memory(server, "VmHWM")
        wire.send(b"get" + 100 * b" large" + b"\r\n")
        left = 100 * len(value(b"large", bytes(MB))[: -len(END)]) + len(END)
        left -= len(wire.socket.recv(5))
        # The reply has begun. Without a limit the server would read all values during these round trips.
        for _ in range(300):
            assert other(b"get none\r\n") == END
        assert memory(server, "VmHWM") - before < 30 * MB
        while left > len(END):
            received = wire.socket.recv(min(MB, left - len(END)))
            assert received, "the server has closed"
            left -= len(received)
        assert wire.until(END) == END


def test_statistics_count_the_commands(wire: ValuesWire) -> None:
    assert wire(b"stats reset\r\n") == b"RESET\r\n"
    wire(
        stored(b"a", b"1")
        + b"append a 0 0 1\r\n2\r\nincr a 1\r\nget a none\r\ngat 0 a\r\ntouch a 0\r\nflush_all\r\n"
    )
    wire.send(b"stats\r\n")
    stats = dict(line.split()[1:] for line in wire.until(END).splitlines()[:-1])
    # ValuesWire adds a set and a get to each of its calls.
    names = (b"cmd_set", b"cmd_get", b"get_hits", b"get_misses", b"cmd_touch", b"cmd_flush")
    assert [int(stats[name]) for name in names] == [4, 5, 4, 1, 2, 1]


def test_a_value_expires_at_its_time(wire: ValuesWire, direct: Client) -> None:
    since = time.monotonic()
    soon = int(time.time()) + 2
    assert wire(stored(b"set", b"5", more=b"0 1")) == b"STORED\r\n"
    assert wire(stored(b"touched", b"5") + stored(b"got", b"5")) == b"STORED\r\n" * 2
    assert wire(stored(b"changed", b"5", more=b"0 1") + b"incr changed 1\r\n").endswith(b"6\r\n")
    assert wire(b"append changed 0 0 1\r\n7\r\n") == b"STORED\r\n"
    assert wire(b"touch touched %d\r\n" % soon) == b"TOUCHED\r\n"
    assert wire(b"gat 1 got\r\n") == value(b"got", b"5")
    assert wire(stored(b"kept", b"5", more=b"0 1") + b"touch kept 100\r\n").endswith(b"TOUCHED\r\n")
    assert wire(b"get changed\r\n") == value(b"changed", b"67")
    ask = b"get set changed touched got kept\r\n"
    wait_for(lambda: wire(ask) == value(b"kept", b"5"), "the others to expire")
    assert time.monotonic() - since >= 1
    assert wire(b"add set 0 0 1\r\n6\r\n") == b"STORED\r\n"
    assert direct.ttl(f"{STATE}:kept") > 90
    assert direct.ttl(f"{STATE}:set") == -1


def test_changes_at_several_servers_are_atomic(
    wire: ValuesWire, server: Server, backend: Valkey, start_server: StartServer
) -> None:
    other = start_server("--backend", backend.url, *LISTEN)
    wire(stored(b"n", b"0") + stored(b"a", b"1"))

    def count(server: Server) -> list[int]:
        with connect(server) as counting:
            return [int(counting(b"incr n 1\r\n")) for _ in range(250)]

    with ThreadPoolExecutor(4) as threads:
        numbers = chain.from_iterable(threads.map(count, [server, other] * 2))
    assert sorted(numbers) == list(range(1, 1001))
    unique = wire(b"gets a\r\n").split()[4]
    with connect(other) as elsewhere:
        assert elsewhere(b"cas a 3 0 1 %b\r\n2\r\n" % unique) == b"STORED\r\n"
        assert wire(b"cas a 0 0 1 %b\r\n3\r\n" % unique) == b"EXISTS\r\n"
        assert wire(b"get a\r\n") == value(b"a", b"2", flags=3)
        # A deleted key that is set again has another unique.
        newest = wire(b"gets a\r\n").split()[4]
        assert elsewhere(b"delete a\r\n" + stored(b"a", b"2")) == b"DELETED\r\nSTORED\r\n"
        assert wire(b"cas a 0 0 1 %b\r\n3\r\n" % newest) == b"EXISTS\r\n"


def values_left(direct: Client) -> list[bytes]:
    """Return the backend's keys that hold values, without the one that ValuesWire adds."""
    return sorted(key for key in direct.keys(VALUES) if b"the-end" not in key)


def wait_for_only(direct: Client, *keys: str) -> None:
    """Return when the backend holds the values of these keys and no others."""
    expected = sorted(f"{STATE}:{key}".encode() for key in keys)
    wait_for(lambda: values_left(direct) == expected, "dead values to be removed")


def test_flush_all_removes_all_values_and_nothing_else(
    wire: ValuesWire, server: Server, direct: Client
) -> None:
    with server.client() as client:
        client.sadd("kv:a", "message")
        client.sadd("!kv:a", "message")
        direct.set("__pressure__kv:a", "somebody else's")
        direct.set("kv:a", "somebody else's")
        wait_until_settled(direct)
        others = set(keys_left(direct)) - set(direct.keys(f"{STATE}*"))
        assert wire(b"".join(stored(b"%d" % n, b"x") for n in range(2500))) == b"STORED\r\n" * 2500
        assert len(values_left(direct)) == 2500
        assert wire(b"flush_all\r\nget 1 2 3\r\nincr 4 1\r\n" + stored(b"5", b"new")) == (
            b"OK\r\nEND\r\nNOT_FOUND\r\nSTORED\r\n"
        )
        wait_for_only(direct, "5")
        assert wire(b"get 5\r\n") == value(b"5", b"new")
        assert others <= set(direct.keys("*"))
        assert client.spop("kv:a") == client.spop("!kv:a") == b"message"


def test_a_delayed_flush_removes_the_values_stored_until_then(wire: ValuesWire, direct: Client) -> None:
    wire(stored(b"before", b"1"))
    since = time.monotonic()
    assert wire(b"flush_all 1\r\n") == b"OK\r\n"
    assert wire(stored(b"meanwhile", b"2") + b"get before meanwhile\r\n").count(b"VALUE") == 2

    def found() -> bytes:
        # Not as `wire(…)`: the flush may remove what marks the end between its set and its get.
        wire.send(b"get before meanwhile\r\n")
        return wire.until(b"END\r\n")

    wait_for(lambda: found() == END, "the flush")
    # The backend's clock has whole milliseconds.
    assert time.monotonic() - since > 0.999
    assert wire(stored(b"after", b"3")) == b"STORED\r\n"
    assert wire(b"get before meanwhile after\r\n") == value(b"after", b"3")
    wait_for_only(direct, "after")


def test_a_delayed_flush_that_is_due_hides_values_at_once(wire: ValuesWire, direct: Client) -> None:
    wire(stored(b"a", b"1"))
    direct.hset(STATE, "flush_at", 1)
    for request, reply in (
        (b"get a\r\n", END),
        (b"incr a 1\r\n", b"NOT_FOUND\r\n"),
        (b"replace a 0 0 1\r\n2\r\n", b"NOT_STORED\r\n"),
        (b"add a 0 0 1\r\n3\r\n", b"STORED\r\n"),
        (b"get a\r\n", value(b"a", b"3")),
    ):
        wire.send(request)
        assert wire.until(reply[-5:]) == reply
    assert not direct.hexists(STATE, "flush_at")


def test_a_new_server_removes_the_dead_values_of_a_flush_beside_other_data(
    backend: Valkey, start_server: StartServer, direct: Client
) -> None:
    direct.hset(STATE, mapping={"cas": 3, "flushed": 2})
    for unique in (1, 2, 3):
        direct.set(f"{STATE}:{unique}", f"0 {unique} data")
    direct.set(f"{STATE}:foreign", "no value")
    direct.lpush(f"{STATE}:list", "no value")
    server = start_server("--backend", backend.url, *LISTEN)
    wait_for(lambda: direct.hget(STATE, "swept") == b"2", "the end of the removal")
    wait_for_only(direct, "3", "foreign", "list")
    with connect(server) as wire:
        assert wire(b"get 1 2 3\r\n") == value(b"3", b"data")


def test_a_write_whose_reply_is_lost_is_not_repeated_and_a_read_is(
    backend: Valkey, start_server: StartServer
) -> None:
    with BackendRelay(backend.socket) as relay:
        server = start_server("--backend", relay.url, *LISTEN)
        with connect(server) as wire:
            assert wire(stored(b"n", b"41")) == b"STORED\r\n"
            relay.cuts = lambda data: b"$2\r\n42\r\n" in data
            wire.send(b"incr n 1\r\n")
            assert re.match(rb"SERVER_ERROR BACKEND .*may or may not have been done", wire.line())
            relay.cuts = lambda _: False
            assert wire(b"get n\r\n") == value(b"n", b"42")
            relay.cuts = lambda data: b"42" in data and relay.made == 1
            wire.send(b"get n\r\n")
            assert wire.until(END) == value(b"n", b"42")
            assert relay.made == 2


def test_a_write_is_answered_after_it_is_durable(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend, replica = start_replicated(start_valkey)
    server = start_server("--backend", backend.url, "--durability", "replica", *LISTEN)
    with backend.client() as direct, connect(server) as writer, connect(server) as reader:
        with stopped(replica.process):
            writer.send(stored(b"a", b"1"))
            wait_for(lambda: direct.exists(f"{STATE}:a"), "the backend to store the value")
            reader.send(b"get a\r\n")
            assert reader.until(END) == value(b"a", b"1")
            writer.socket.settimeout(0)
            with pytest.raises(BlockingIOError):
                writer.line()
            writer.socket.settimeout(20)
        assert writer.line() == b"STORED\r\n"


def test_values_of_a_full_backend_can_be_read_and_deleted(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    server = start_server("--backend", backend.url, *LISTEN)
    with connect(server) as wire, backend.client() as direct:

        def fill() -> int:
            """Store values until the backend is full. Return how many were stored."""
            for count in range(100):
                wire.send(stored(b"%d" % count, bytes(200_000)))
                reply = wire.line()
                if reply != b"STORED\r\n":
                    assert b"OOM" in reply
                    return count
            raise AssertionError("the backend was never full")

        assert fill() > 3
        wire.send(b"touch 0 0\r\ngat 0 0\r\ndelete 1\r\n")
        assert wire.until(b"DELETED\r\n") == b"TOUCHED\r\n" + value(b"0", bytes(200_000)) + b"DELETED\r\n"
        fill()
        wire.send(b"flush_all\r\n")
        assert wire.line() == b"OK\r\n"
        wait_for_only(direct)
        assert fill() > 3


USERS = {
    "writer": ("w", ["alice:*"], ["put"]),
    "reader": ("r", ["alice:*"], ["get"]),
    "master": ("m", ["*"], ["put", "get", "read", "administer"]),
}


# Requests of users, one after the other, and the lines of their replies.
NO_KEY = MEMCACHED.no_permission + b"for one of these keys"
RIGHTS = [
    ("writer", stored(b"alice:a", b"5") + b"incr alice:a 1\r\n", [b"STORED", b"6"]),
    ("writer", b"touch alice:a 0\r\n", [b"TOUCHED"]),
    *[
        ("writer", request + b"\r\n", [MEMCACHED.no_permission + b"to " + request.split()[0]])
        for request in (b"get alice:a", b"gat 0 alice:a", b"delete alice:a", b"flush_all", b"mg alice:a v")
    ],
    ("writer", stored(b"bob:a", b"5"), [NO_KEY]),
    # The key `alice:` in base64, and `bob:a`, which looks like none of alice's.
    ("writer", b"ms YWxpY2U6 1 b\r\nx\r\nms Ym9iOmE= 1 b\r\nx\r\nma alice:a q\r\n", [b"HD", NO_KEY]),
    ("reader", b"mg alice:a v\r\nmg Ym9iOmE= v b\r\nmd alice: k\r\n", [b"VA 1", b"7", NO_KEY, b"HD kalice:"]),
    ("reader", b"mg alice:a v T30\r\n", [MEMCACHED.no_permission + b"to gat"]),
    ("reader", b"get alice:a\r\nget alice:a bob:a\r\n", [b"VALUE alice:a 0 1", b"7", b"END", NO_KEY]),
    ("reader", b"incr alice:a 1\r\n", [MEMCACHED.no_permission + b"to incr"]),
    ("master", b"gat 0 alice:a\r\n", [b"VALUE alice:a 0 1", b"7", b"END"]),
    ("master", b"flush_all\r\nget alice:a\r\n", [b"OK", b"END"]),
]


def test_commands_on_values_need_the_user_s_rights(
    backend: Valkey, start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "users.toml").write_text(users_toml(USERS))
    server = start_server("--backend", backend.url, "--users", str(tmp_path / "users.toml"), *LISTEN)
    for name, request, replies in RIGHTS:
        with connect(server) as wire:
            wire.send(MEMCACHED.log_in(name.encode(), USERS[name][0].encode()))
            assert wire.line() == b"STORED\r\n"
            wire.send(request + b"quit\r\n")
            assert wire.rest().splitlines() == replies, request
