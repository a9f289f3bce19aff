"""Values by key (memcached://…?mode=kv): beside memcached itself, and on a backend that servers share.

Where replies differ from memcached's on purpose, DIFFERENCES says why.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_relay import BackendRelay
from tests.support.measures import MB, memory
from tests.support.model_settings import model_settings
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    join,
    keys_left,
    wait_for,
    wait_until_settled,
)
from tests.support.requirements import need
from tests.support.values_wire import ValuesWire, port_of

LISTEN = ("--listen", "memcached://127.0.0.1:0?mode=kv")
ON_DISK = ("--appendonly", "yes", "--appendfsync", "always")
END = b"END\r\n"
STATE = "__pressure__!kv"
VALUES = f"{STATE}:*"


@pytest.fixture(scope="module")
def ours(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("values") / "log", "--backend", shared_backend.url, *LISTEN)
    yield server
    server.end_well()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The unix socket of a memcached."""
    path = tmp_path_factory.mktemp("memcached") / "socket"
    process = subprocess.Popen([need("memcached", "memcached"), "-u", "root", "-s", str(path), "-A"])
    try:
        wait_for(path.exists, "memcached to listen")
        yield str(path)
    finally:
        process.kill()
        process.wait(TIMEOUT)


@pytest.fixture
def wire(backend: Valkey, ours: Server) -> Iterator[ValuesWire]:
    """A connection to our server, without data."""
    assert backend.url
    with ValuesWire(port_of(ours, "kv")) as connected:
        yield connected


def stored(key: bytes, data: bytes, *, flags: int = 0, expires: int = 0) -> bytes:
    """The request that sets it."""
    return b"set %b %d %d %d\r\n%b\r\n" % (key, flags, expires, len(data), data)


def value(key: bytes, data: bytes, flags: int = 0) -> bytes:
    """The reply of a get with that one value."""
    return b"VALUE %b %d %d\r\n%b\r\nEND\r\n" % (key, flags, len(data), data)


# Beside memcached.

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
# Of blanks alone memcached reads on in what is behind them in its memory.
BYTES = st.binary(max_size=40).filter(lambda data: not data.isspace() and b"-" not in data)
DATA = st.one_of(NUMBERS, st.sampled_from(ODD_NUMBERS), BYTES)
DELTAS = st.one_of(NUMBERS, st.sampled_from([b"0018", b"-1", b"x", b"1x", b"18446744073709551616", b"1.5"]))
FLAGS = st.sampled_from([b"0", b"1", b"65535", b"4294967295", b"007"])
# Never, past, in a day, in 30 days, long ago as those are more than 30 days, and in the year 2038.
EXPIRIES = st.sampled_from([b"0"] * 5 + [b"-1", b"-100", b"86400", b"2592000", b"2592001", b"2147483647"])
QUIET = st.sampled_from([b"", b"", b"", b" noreply"])
# The unique that was seen last of that key, the one before it, and others.
UNIQUES = st.sampled_from([b"<-1>"] * 3 + [b"<-2>", b"0", b"18446744073709551615"])


def line(*words: bytes | st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A request of these words."""
    every = [st.just(word) if isinstance(word, bytes) else word for word in words]
    return st.tuples(*every).map(lambda made: b" ".join(made) + b"\r\n")


def storing(name: bytes) -> st.SearchStrategy[bytes]:
    """A request of that name with data."""
    uniques = UNIQUES.map(b" ".__add__) if name == b"cas" else st.just(b"")

    def request(made: tuple[bytes, bytes, bytes, bytes, bytes, bytes]) -> bytes:
        key, flags, expires, data, unique, quiet = made
        return b"%b %b %b %b %d%b%b\r\n%b\r\n" % (
            name, key, flags, expires, len(data), unique, quiet, data
        )  # fmt: skip

    return st.tuples(KEYS, FLAGS, EXPIRIES, DATA, uniques, QUIET).map(request)


def quietly(request: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """The same, which may ask for no reply."""
    return st.tuples(request, QUIET).map(lambda made: made[0][:-2] + made[1] + b"\r\n")


MANY_KEYS = st.lists(st.sampled_from([b"a", b"b", b"none"]), min_size=1, max_size=5).map(b" ".join)
REQUESTS = st.one_of(
    *[storing(name) for name in (b"set", b"set", b"add", b"replace", b"append", b"prepend", b"cas", b"cas")],
    *[quietly(line(name, KEYS, DELTAS)) for name in (b"incr", b"incr", b"decr", b"decr")],
    *[line(name, MANY_KEYS) for name in (b"get", b"gets", b"gets")],
    *[line(name, EXPIRIES, MANY_KEYS) for name in (b"gat", b"gats")],
    quietly(line(b"touch", KEYS, EXPIRIES)),
    quietly(line(b"delete", KEYS)),
    quietly(st.sampled_from([b"flush_all\r\n", b"flush_all 0\r\n", b"flush_all -1\r\n"])),
)
UNIQUE = re.compile(rb"(?<=VALUE )(\w+)( \d+ \d+ )(\d+)(?=\r\n)")
SEEN = re.compile(rb"<-(\d)>")


class Side:
    """One of both servers, with the uniques that it has shown of each key."""

    def __init__(self, wire: ValuesWire) -> None:
        self._wire = wire
        self._seen: dict[bytes, list[bytes]] = {}

    def __call__(self, request: bytes) -> tuple[bytes, list[bytes]]:
        """The reply without its uniques, and these."""
        key = request.split(b" ", 2)[1] if b" " in request else b""
        seen = self._seen.get(key, [])

        def unique(found: re.Match[bytes]) -> bytes:
            back = int(found[1])
            return seen[-back] if len(seen) >= back else b"7"

        reply = self._wire(SEEN.sub(unique, request))
        shown = UNIQUE.findall(reply)
        for named, _, number in shown:
            known = self._seen.setdefault(named, [])
            if number not in known:
                known.append(number)
        return UNIQUE.sub(rb"\1\2UNIQUE", reply), [number for _, _, number in shown]


@pytest.mark.slow
@pytest.mark.clients
def test_random_commands_are_replied_as_memcached_does(theirs: str, ours: Server, backend: Valkey) -> None:
    assert backend.url
    asked = 0

    @model_settings("PRESSURE_VALUES_EXAMPLES", 120)
    @given(st.lists(REQUESTS, min_size=20, max_size=60))
    def compare(requests: list[bytes]) -> None:
        nonlocal asked
        with ValuesWire(theirs) as memcached, ValuesWire(port_of(ours, "kv")) as server:
            sides = Side(memcached), Side(server)
            for side in sides:
                side(b"flush_all\r\n")
            same: dict[bytes, bytes] = {}
            for request in requests:
                asked += 1
                (expected, their_uniques), (found, our_uniques) = sides[0](request), sides[1](request)
                assert found == expected, request
                for one, other in zip(their_uniques, our_uniques, strict=True):
                    assert same.setdefault(one, other) == other, request
                assert len(set(same.values())) == len(same), request

    compare()
    assert asked > 2000


SKIPPED = "the data of a refused command is skipped, and never executed"
STRICTER = "numbers are digits, and a command has the words that protocol.txt gives it"
WHOLE = "flags of more than 32 bits, and times beyond 2038, are not cut off"
KEY = "protocol.txt allows no control characters in a key"
SAID = "memcached says NOT_STORED, as if the key were missing"
DIFFERENCES = {
    b"append a x 0 1\r\ny\r\n": SKIPPED,
    b"set a -1 0 1\r\nx\r\n": SKIPPED,
    b"set a 0 x 1\r\nx\r\n": SKIPPED,
    b"cas a 0 0 1 x\r\nx\r\n": SKIPPED,
    b"cas a 0 0 1 -1\r\nx\r\n": SKIPPED,
    b"cas a 0 0 1 18446744073709551616\r\nx\r\n": SKIPPED,
    b"set %b 0 0 1\r\nx\r\n" % (b"k" * 251): SKIPPED,
    b"set a 0 0 1\r\nxx\r\n": SKIPPED,
    b"cas a 0 0 1\r\nx\r\n": SKIPPED,
    b"set a 0 0 1 noreply x\r\nx\r\n": SKIPPED,
    b"cas a 0 0 1 1 x\r\nx\r\n": STRICTER,
    b"set a 0 0 1 x\r\nx\r\n": STRICTER,
    b"incr n +1\r\n": STRICTER,
    b"incr n 000000000000000000000001\r\n": STRICTER,
    b"incr n 1 x\r\n": STRICTER,
    b"incr n 1 x noreply\r\n": STRICTER,
    b"touch n 0 x\r\n": STRICTER,
    b"gat 0\r\n": STRICTER,
    b"delete n 0 0\r\n": STRICTER,
    b"flush_all 0 0\r\n": STRICTER,
    b"set a 4294967296 0 1\r\nx\r\n": WHOLE,
    b"set a 0 2147483648 1\r\nx\r\nget a\r\n": WHOLE,
    b"set a\x01 0 0 1\r\nx\r\n": KEY,
    b"get a\x7f\r\n": KEY,
}
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
    b"verbosity 1\r\n", b"verbosity 1 noreply\r\n", b"version x\r\n", b"version noreply\r\n",
    b"stats noreply\r\n", b"stats x\r\n", b"stats reset\r\n",
]  # fmt: skip
PREPARED = stored(b"n", b"5") + stored(b"text", b"text") + stored(b"empty", b"")


@pytest.mark.clients
@pytest.mark.parametrize("request_", [*SAME, *DIFFERENCES])
def test_odd_requests_are_replied_as_memcached_does_but_for_what_is_listed(
    theirs: str, wire: ValuesWire, request_: bytes
) -> None:
    with ValuesWire(theirs) as memcached:
        memcached(b"flush_all\r\n" + PREPARED)
        wire(b"flush_all\r\n" + PREPARED)
        assert (memcached(request_) != wire(request_)) == (request_ in DIFFERENCES)


@pytest.mark.parametrize(
    "request_", [b"set a 0 0 -1\r\n", b"set a 0 0 x\r\n", b"add a 0 0\r\n", b"cas a\r\n"]
)
def test_where_the_size_of_the_data_cannot_be_read_the_connection_ends(
    wire: ValuesWire, request_: bytes
) -> None:
    wire.send(request_)
    assert wire.rest() == b"CLIENT_ERROR bad command line format\r\n"


@pytest.mark.clients
def test_memccapable_finds_nothing(wire: ValuesWire, ours: Server) -> None:
    assert wire(b"get a\r\n") == END
    program = need("memccapable", "libmemcached-tools")
    ended = subprocess.run(
        [program, "-h", "127.0.0.1", "-p", str(port_of(ours, "kv")), "-a"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    *tests, last = ended.stdout.splitlines()
    assert [one for one in tests if not re.fullmatch(r"ascii [a-z ]+\[pass\]", one)] == [], ended
    assert len(tests) >= 27
    assert last == "All tests passed"


# What is too large, and what is much.


def test_a_value_that_would_become_too_large_stays_as_it_is(
    backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--max-message-bytes", "10", *LISTEN)
    with ValuesWire(port_of(server, "kv")) as wire:
        assert wire(stored(b"a", b"123456")) == b"STORED\r\n"
        assert wire(b"append a 0 0 4\r\n7890\r\n") == b"STORED\r\n"
        for name in (b"append", b"prepend"):
            assert wire(name + b" a 0 0 1\r\nx\r\n") == b"SERVER_ERROR object too large for cache\r\n"
            assert wire(name + b" a 0 0 1 noreply\r\nx\r\n") == b""
        assert wire(stored(b"a", b"12345678901")) == b"SERVER_ERROR object too large for cache\r\n"
        assert wire(b"get a\r\n") == value(b"a", b"1234567890")


def test_a_get_of_very_many_keys_and_bytes_is_one_reply(wire: ValuesWire) -> None:
    large = bytes(range(256)) * 2000
    names = [b"%d" % number for number in range(2500)]
    for name in names[::2]:
        wire.send(stored(name, name)[:-2] + b"\r\n")
        assert wire.line() == b"STORED\r\n"
    assert wire(stored(b"large", large)) == b"STORED\r\n"
    asked = [*names, *[b"large"] * 12, b"0"]
    items = [value(name, name)[: -len(END)] for name in names[::2]]
    items += [value(b"large", large)[: -len(END)]] * 12 + [value(b"0", b"0")]
    assert wire(b"get " + b" ".join(asked) + b"\r\n") == b"".join(items)


def test_a_get_whose_reply_nobody_reads_costs_little(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, *LISTEN)
    with ValuesWire(port_of(server, "kv")) as wire, ValuesWire(port_of(server, "kv")) as other:
        wire(stored(b"large", bytes(MB)))
        before = memory(server, "VmHWM")
        wire.send(b"get" + 100 * b" large" + b"\r\n")
        left = 100 * len(value(b"large", bytes(MB))[: -len(END)]) + len(END)
        left -= len(wire.socket.recv(5))
        # It has begun, and would have ended some hundred calls later.
        for _ in range(300):
            assert other(b"get none\r\n") == END
        assert memory(server, "VmHWM") - before < 30 * MB
        while left > len(END):
            received = wire.socket.recv(min(MB, left - len(END)))
            assert received, "the server has closed"
            left -= len(received)
        assert wire.until(END) == END


def test_statistics_count_what_was_asked(wire: ValuesWire) -> None:
    assert wire(b"stats reset\r\n") == b"RESET\r\n"
    wire(
        stored(b"a", b"1")
        + b"append a 0 0 1\r\n2\r\nincr a 1\r\nget a none\r\ngat 0 a\r\ntouch a 0\r\nflush_all\r\n"
    )
    wire.send(b"stats\r\n")
    told = dict(line.split()[1:] for line in wire.until(END).splitlines()[:-1])
    # Two sets and two gets are the wire's own, and a set and a get of `reset`, too.
    expected = {
        b"cmd_set": 4,
        b"cmd_get": 5,
        b"get_hits": 4,
        b"get_misses": 1,
        b"cmd_touch": 2,
        b"cmd_flush": 1,
    }
    assert {name: int(told[name]) for name in expected} == expected


# Time.


def test_a_value_is_gone_when_its_time_is_over(wire: ValuesWire, direct: Client) -> None:
    since = time.monotonic()
    soon = int(time.time()) + 2
    for key in (b"set", b"touched", b"got", b"kept"):
        assert wire(stored(key, b"5", expires=1 if key == b"set" else 0)) == b"STORED\r\n"
    assert wire(stored(b"changed", b"5", expires=1) + b"incr changed 1\r\n").endswith(b"6\r\n")
    assert wire(b"append changed 0 0 1\r\n7\r\n") == b"STORED\r\n"
    assert wire(b"touch touched %d\r\n" % soon) == b"TOUCHED\r\n"
    assert wire(b"gat 1 got\r\n") == value(b"got", b"5")
    assert wire(stored(b"kept", b"5", expires=1) + b"touch kept 100\r\n").endswith(b"TOUCHED\r\n")
    assert wire(b"get changed\r\n") == value(b"changed", b"67")
    ask = b"get set changed touched got kept\r\n"
    wait_for(lambda: wire(ask) == value(b"kept", b"5"), "the others to expire")
    assert time.monotonic() - since >= 1
    assert wire(b"add set 0 0 1\r\n6\r\n") == b"STORED\r\n"
    assert {direct.ttl(f"{STATE}:kept") > 90, direct.ttl(f"{STATE}:set") == -1} == {True}


# Several servers.


def test_several_servers_count_together(backend: Valkey, ours: Server, start_server: StartServer) -> None:
    other = start_server("--backend", backend.url, *LISTEN)
    ports = [port_of(server, "kv") for server in (ours, other)] * 2
    with ValuesWire(ports[0]) as wire:
        assert wire(stored(b"n", b"0")) == b"STORED\r\n"
    numbers: list[int] = []

    def count(port: int) -> None:
        with ValuesWire(port) as wire:
            numbers.extend(int(wire(b"incr n 1\r\n")) for _ in range(250))

    threads = [threading.Thread(target=count, args=[port], daemon=True) for port in ports]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert sorted(numbers) == list(range(1, 1001))


def test_who_compares_and_swaps_at_one_server_sees_what_was_stored_at_another(
    wire: ValuesWire, backend: Valkey, start_server: StartServer
) -> None:
    other = start_server("--backend", backend.url, *LISTEN)
    assert wire(stored(b"a", b"1")) == b"STORED\r\n"
    unique = wire(b"gets a\r\n").split()[4]
    with ValuesWire(port_of(other, "kv")) as elsewhere:
        assert elsewhere(b"cas a 3 0 1 %b\r\n2\r\n" % unique) == b"STORED\r\n"
        assert wire(b"cas a 0 0 1 %b\r\n3\r\n" % unique) == b"EXISTS\r\n"
        assert wire(b"get a\r\n") == value(b"a", b"2", flags=3)
        # Deleted and made anew, it is another one.
        newest = wire(b"gets a\r\n").split()[4]
        assert elsewhere(b"delete a\r\n" + stored(b"a", b"2")) == b"DELETED\r\nSTORED\r\n"
        assert wire(b"cas a 0 0 1 %b\r\n3\r\n" % newest) == b"EXISTS\r\n"


# Flushing.


def kept(direct: Client) -> list[bytes]:
    """The keys of values on the backend, but for the wire's own."""
    return sorted(key for key in direct.keys(VALUES) if b"the-end" not in key)


def test_flushing_removes_all_values_and_nothing_else(wire: ValuesWire, ours: Server, direct: Client) -> None:
    with ours.client() as client:
        client.sadd("kv:a", "message")
        client.sadd("!kv:a", "message")
        direct.set("__pressure__kv:a", "somebody else's")
        direct.set("kv:a", "somebody else's")
        wait_until_settled(direct)
        others = set(keys_left(direct)) - set(direct.keys(f"{STATE}*"))
        for number in range(2500):
            wire.send(stored(b"%d" % number, b"x"))
            assert wire.line() == b"STORED\r\n"
        assert len(kept(direct)) == 2500
        assert wire(b"flush_all\r\nget 1 2 3\r\nincr 4 1\r\n" + stored(b"5", b"new")) == (
            b"OK\r\nEND\r\nNOT_FOUND\r\nSTORED\r\n"
        )
        wait_for(lambda: kept(direct) == [b"__pressure__!kv:5"], "the dead to be removed")
        assert wire(b"get 5\r\n") == value(b"5", b"new")
        assert others <= set(direct.keys("*"))
        assert client.spop("kv:a") == client.spop("!kv:a") == b"message"


def test_a_delayed_flush_takes_what_was_stored_until_then(wire: ValuesWire, direct: Client) -> None:
    wire(stored(b"before", b"1"))
    since = time.monotonic()
    assert wire(b"flush_all 1\r\n") == b"OK\r\n"
    assert wire(stored(b"meanwhile", b"2") + b"get before meanwhile\r\n").count(b"VALUE") == 2
    wait_for(lambda: wire(b"get before meanwhile\r\n") == END, "the flush")
    assert time.monotonic() - since >= 1
    assert wire(stored(b"after", b"3") + b"get before meanwhile after\r\n") == b"STORED\r\n" + value(
        b"after", b"3"
    )
    wait_for(lambda: kept(direct) == [b"__pressure__!kv:after"], "the dead to be removed")


def test_what_a_flush_has_killed_nobody_sees_also_before_anybody_has_noted_it(
    wire: ValuesWire, direct: Client
) -> None:
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


def test_what_a_flush_has_left_on_the_backend_is_removed_by_the_next_server(
    backend: Valkey, start_server: StartServer, direct: Client
) -> None:
    assert backend.url
    direct.hset(STATE, mapping={"cas": 3, "flushed": 2})
    for unique in (1, 2, 3):
        direct.set(f"{STATE}:{unique}", f"0 {unique} data")
    server = start_server("--backend", backend.url, *LISTEN)
    wait_for(lambda: direct.keys(VALUES) == [b"__pressure__!kv:3"], "the dead to be removed")
    with ValuesWire(port_of(server, "kv")) as wire:
        assert wire(b"get 1 2 3\r\n") == value(b"3", b"data")


def test_what_is_no_value_does_not_keep_the_dead_from_being_removed(wire: ValuesWire, direct: Client) -> None:
    direct.set(f"{STATE}:foreign", "no value")
    direct.lpush(f"{STATE}:list", "no value")
    wire(stored(b"dead", b"1") + b"flush_all\r\n")
    wait_for(lambda: direct.hget(STATE, "swept") == direct.hget(STATE, "flushed"), "the dead to be removed")
    assert direct.exists(f"{STATE}:dead", f"{STATE}:foreign", f"{STATE}:list") == 2


def test_a_listener_may_allow_no_flush(backend: Valkey, start_server: StartServer) -> None:
    server = start_server(
        "--backend", backend.url, "--listen", "memcached://127.0.0.1:0?mode=kv&flush_all=no"
    )
    with ValuesWire(port_of(server, "kv")) as wire:
        assert wire(stored(b"a", b"1") + b"flush_all\r\nget a\r\n") == (
            b"STORED\r\nCLIENT_ERROR flush_all not allowed\r\n" + value(b"a", b"1")
        )


# A backend that goes away.


def test_what_may_have_been_done_is_not_done_again(
    backend: Valkey, start_server: StartServer, direct: Client
) -> None:
    with BackendRelay(backend.socket) as relay:
        server = start_server("--backend", relay.url, *LISTEN)
        with ValuesWire(port_of(server, "kv")) as wire:
            assert wire(stored(b"n", b"41")) == b"STORED\r\n"
            relay.cuts = lambda data: data.startswith(b"$2\r\n42\r\n")
            wire.send(b"incr n 1\r\n")
            assert re.match(rb"SERVER_ERROR BACKEND .*may or may not have been done", wire.line())
            relay.cuts = lambda _: False
            assert wire(b"get n\r\n") == value(b"n", b"42")
            # Who only reads does not notice.
            cut: list[bytes] = []

            def once(data: bytes) -> bool:
                if b"42" in data and not cut:
                    cut.append(data)
                    return True
                return False

            relay.cuts = once
            wire.send(b"get n\r\n")
            assert wire.until(END) == value(b"n", b"42")
            assert cut
    assert direct.hget(STATE, "cas")


def test_a_backend_that_is_killed_has_done_every_write_once_at_most(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey(*ON_DISK)
    server = start_server("--backend", backend.url, *LISTEN)
    port = port_of(server, "kv")
    done, unknown = [0] * 4, [0] * 4
    ends = threading.Event()

    def has_counted(least: int) -> bool:
        return sum(done) > least

    def count(me: int) -> None:
        with ValuesWire(port) as wire:
            while not ends.is_set():
                wire.send(b"incr n 1\r\n")
                reply = wire.line()
                if reply.strip().isdigit():
                    done[me] += 1
                else:
                    assert reply.startswith(b"SERVER_ERROR BACKEND"), reply
                    unknown[me] += b"may or may not" in reply

    with ValuesWire(port) as wire:
        assert wire(stored(b"n", b"0")) == b"STORED\r\n"
        threads = [threading.Thread(target=count, args=[me], daemon=True) for me in range(4)]
        for thread in threads:
            thread.start()
        try:
            # A kill may come where nothing is under way.
            kills = 0
            while sum(unknown) < 3:
                kills += 1
                assert kills < 50
                reached = sum(done) + 200
                wait_for(partial(has_counted, reached), "more to be counted")
                backend.kill()
                backend.start()
        finally:
            ends.set()
            for thread in threads:
                join(thread)
        number = int(wire(b"get n\r\n").split()[4])
    assert sum(done) <= number <= sum(done) + sum(unknown)


def test_no_reply_to_a_write_comes_before_it_is_durable(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    # Written every second, but asked for more often than that: WAITAOF itself takes its time.
    backend = start_valkey("--appendonly", "yes", "--appendfsync", "everysec")
    held = b"*2\r\n:1\r\n:0\r\n"
    with BackendRelay(backend.socket) as relay, backend.client() as direct:
        server = start_server("--backend", relay.url, "--durability", "fsync", *LISTEN)
        with ValuesWire(port_of(server, "kv")) as writing, ValuesWire(port_of(server, "kv")) as reading:
            before = relay.held
            relay.hold(lambda data: held in data)
            writing.send(stored(b"a", b"1"))
            wait_for(lambda: direct.exists(f"{STATE}:a") and relay.held > before, "the backend to have it")
            reading.send(b"get a\r\n")
            assert reading.until(END) == value(b"a", b"1")
            writing.socket.settimeout(0)
            with pytest.raises(BlockingIOError):
                writing.line()
            writing.socket.settimeout(20)
            relay.release()
            assert writing.line() == b"STORED\r\n"


def test_a_backend_that_is_full_is_read_and_emptied(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    server = start_server("--backend", backend.url, *LISTEN)
    with ValuesWire(port_of(server, "kv")) as wire, backend.client() as direct:

        def fill() -> int:
            """Until it is full; how many were stored."""
            for count in range(100):
                wire.send(stored(b"%d" % count, bytes(200_000)))
                reply = wire.line()
                if reply != b"STORED\r\n":
                    assert b"OOM" in reply
                    return count
            raise AssertionError("it was never full")

        assert fill() > 3
        wire.send(b"touch 0 0\r\ngat 0 0\r\ndelete 1\r\n")
        assert wire.until(b"DELETED\r\n") == b"TOUCHED\r\n" + value(b"0", bytes(200_000)) + b"DELETED\r\n"
        assert fill() >= 0
        wire.send(b"flush_all\r\n")
        assert wire.line() == b"OK\r\n"
        wait_for(lambda: not direct.keys(VALUES), "the dead to be removed")
        assert fill() > 3


# Users.

# Their passwords are the first letters of their names.
USERS = {
    "writer": (["ours:*"], ["put"]),
    "reader": (["ours:*"], ["get"]),
    "master": (["*"], ["put", "get", "read", "administer"]),
}


def test_users_may_what_they_have_a_right_to(
    backend: Valkey, start_server: StartServer, tmp_path: Path
) -> None:
    users = tmp_path / "users.toml"
    users.write_text(
        "".join(
            f"[users.{name}]\npassword-sha256 = '{hashlib.sha256(name[:1].encode()).hexdigest()}'\n"
            f"queues = {queues}\nmay = {may}\n"
            for name, (queues, may) in USERS.items()
        )
    )
    users.chmod(0o600)
    server = start_server("--backend", backend.url, "--users", str(users), *LISTEN)

    def ask(name: str, request: bytes) -> list[bytes]:
        with ValuesWire(port_of(server, "kv")) as wire:
            wire.send(stored(b"login", f"{name} {name[0]}".encode()))
            assert wire.line() == b"STORED\r\n"
            wire.send(request + b"quit\r\n")
            return wire.rest().splitlines()

    may_not = b"CLIENT_ERROR this user has no permission to %b"
    not_this = b"CLIENT_ERROR this user has no permission for one of these keys"
    assert ask("writer", stored(b"ours:a", b"5") + b"incr ours:a 1\r\ntouch ours:a 0\r\n") == [
        b"STORED", b"6", b"TOUCHED",
    ]  # fmt: skip
    assert ask("writer", b"get ours:a\r\ngat 0 ours:a\r\ndelete ours:a\r\nflush_all\r\n") == [
        may_not % b"get", may_not % b"gat", may_not % b"delete", may_not % b"flush_all",
    ]  # fmt: skip
    assert ask("writer", stored(b"others:a", b"5")) == [not_this]
    assert ask("reader", b"get ours:a\r\nget ours:a others:a\r\nincr ours:a 1\r\n") == [
        b"VALUE ours:a 0 1", b"6", b"END", not_this, may_not % b"incr",
    ]  # fmt: skip
    assert ask("master", b"gat 0 ours:a\r\nflush_all\r\nget ours:a\r\n") == [
        b"VALUE ours:a 0 1", b"6", b"END", b"OK", b"END",
    ]  # fmt: skip
