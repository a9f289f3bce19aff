"""What nobody should send: each is answered or cut off, others are served meanwhile, and memory stays."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.measures import MB, memory
from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey, wait_for
from tests.support.waiters import packed

# What an interpreter may keep after it has worked; nothing that hostile clients sent.
GROWTH = 24 * MB


def grown(server: Server, before: int) -> str:
    """For people: memory before, now and at its peak; pytest -rP shows it."""
    return " ".join(f"{size / MB:.1f}" for size in (before, memory(server), memory(server, "VmHWM")))


@contextlib.contextmanager
def bounded_peak(server: Server, growth: int) -> Iterator[None]:
    """The server's memory may not grow by more than so many bytes at any time within."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # VmHWM begins anew
    before = memory(server)
    yield
    assert memory(server, "VmHWM") - before < growth


class Hostile:
    """A plain connection, and what came over it."""

    def __init__(self, port: int, *, small_buffers: bool = False) -> None:
        self.socket = socket.socket()
        if small_buffers:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        """Send all of it, unless the server closes before."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def send_until_blocked(self, data: bytes) -> int:
        """How much could be sent before there was no room for a second."""
        self.socket.setblocking(False)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < len(data) and select.select([], [self.socket], [], 1.0)[1]:
                sent += self.socket.send(data[sent : sent + 65536])
        self.socket.settimeout(TIMEOUT)
        return sent

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer where the server closes."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while len(data) < size and (more := self.socket.recv(min(65536, size - len(data)))):
                data += more
        return data

    def read_line(self) -> bytes:
        data = b""
        while not data.endswith(b"\r\n") and (more := self.read(1)):
            data += more
        return data

    def is_closed(self) -> bool:
        """Whether nothing more comes; waits for it."""
        return self.read(1) == b""

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Valkey]]:
    valkey = Valkey(tmp_path_factory.mktemp("attacked-backend"))
    server = Server(tmp_path_factory.mktemp("attacked") / "log", "--backend", valkey.url)
    try:
        with server.client() as client:
            client.sadd("warm", *range(1000))  # what is allocated once
            client.delete("warm")
        before = memory(server)
        yield server, valkey
        wait_for(lambda: memory(server) - before < GROWTH, "memory to be freed")
        server.end_well()
    finally:
        server.process.kill()
        server.process.wait(TIMEOUT)
        valkey.stop()


@pytest.fixture
def victim(attacked: tuple[Server, Valkey]) -> Server:
    server, valkey = attacked
    with valkey.client() as direct:
        direct.flushall()
    return server


@pytest.fixture
def bystander(victim: Server) -> Iterator[Client]:
    """A well-behaved client, connected all the while."""
    with victim.client(socket_timeout=TIMEOUT) as client:
        assert client.ping()
        yield client
        assert client.ping()
        assert client.sadd("bystander", "m") == 1
        assert client.spop("bystander") == b"m"


@pytest.fixture
def attack(victim: Server, bystander: Client) -> Iterator[Callable[..., Hostile]]:
    """Open hostile connections; the bystander is served, and all are gone at the end."""
    opened: list[Hostile] = []

    def connect(*, small_buffers: bool = False) -> Hostile:
        opened.append(Hostile(victim.port, small_buffers=small_buffers))
        return opened[-1]

    yield connect
    assert bystander.ping()
    for connection in opened:
        connection.close()
    wait_for(lambda: bystander.info("clients")["connected_clients"] == 1, "hostile clients to be gone")


# ---------------------------------------------------------------- one request, one answer


@dataclass(frozen=True)
class Case:
    """What is sent, what the answer begins with, and whether the server closes then."""

    name: str
    data: bytes
    reply: bytes
    closed: bool = False


def refused(name: str, data: bytes, reason: str) -> Case:
    return Case(name, data, b"-ERR Protocol error: %b\r\n" % reason.encode(), closed=True)


CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(11, 200)) + b"\r\n"
UNKNOWN = b"-ERR unknown command '%b', with args beginning with: "
ARITY = b"-ERR wrong number of arguments for '%b' command\r\n"
INTEGER = b"-ERR value is not an integer or out of range\r\n"
ALIAS = b"-ERR '%b' cannot be a queue's name: "

CASES = [
    refused("count too large", b"*1048577\r\n", "invalid multibulk length"),
    refused("count 4294967295", b"*4294967295\r\n", "invalid multibulk length"),
    refused("count of 2^64", b"*18446744073709551616\r\n", "invalid multibulk length"),
    refused("count garbage", b"*abc\r\n", "invalid multibulk length"),
    refused("count empty", b"*\r\n", "invalid multibulk length"),
    refused("count with plus sign", b"*+1\r\n$4\r\nPING\r\n", "invalid multibulk length"),
    refused("count with leading zero", b"*01\r\n$4\r\nPING\r\n", "invalid multibulk length"),
    refused("count of 64 KB digits", b"*" + b"1" * 70_000, "too big mbulk count string"),
    Case("count negative", b"*-5\r\n" + packed(b"PING"), b"+PONG\r\n"),
    Case("count zero", b"*0\r\n" * 1000 + packed(b"PING"), b"+PONG\r\n"),
    refused("length too large", b"*1\r\n$33554433\r\n", "invalid bulk length"),
    refused("length of 2^63", b"*1\r\n$9223372036854775808\r\n", "invalid bulk length"),
    refused("length negative", b"*2\r\n$4\r\nECHO\r\n$-1\r\n", "invalid bulk length"),
    refused("length garbage", b"*1\r\n$four\r\nPING\r\n", "invalid bulk length"),
    refused("length empty", b"*1\r\n$\r\nPING\r\n", "invalid bulk length"),
    refused("length with leading zeros", b"*1\r\n$0004\r\nPING\r\n", "invalid bulk length"),
    refused("length with plus sign", b"*1\r\n$+4\r\nPING\r\n", "invalid bulk length"),
    refused("length of 64 KB digits", b"*1\r\n$" + b"1" * 70_000, "too big bulk count string"),
    refused("integer in place of a string", b"*2\r\n$4\r\nECHO\r\n:5\r\n", "expected '$', got ':'"),
    refused("nested arrays", b"*1\r\n" * 10_000, "expected '$', got '*'"),
    refused("RESP3 verbatim string", b"*1\r\n=8\r\ntxt:PING\r\n", "expected '$', got '='"),
    refused("RESP3 null", b"*2\r\n$4\r\nECHO\r\n_\r\n", "expected '$', got '_'"),
    Case("RESP3 map as a request", b"%1\r\n", UNKNOWN % b"%1"),
    Case("RESP3 push as a request", b">1\r\n", UNKNOWN % b">1"),
    Case("error as a request", b"-ERR no\r\n", UNKNOWN % b"-ERR" + b"'no' \r\n"),
    Case("string without an array", b"$4\r\nPING\r\n", UNKNOWN % b"$4" + b"\r\n"),
    refused("commands before it are answered", packed(b"PING") + b"*x\r\n", "invalid multibulk length"),
    refused("inline of 70 KB without an end", b"A" * 70_000, "too big inline request"),
    refused("inline of 70 KB", b"A" * 70_000 + b"\r\n", "too big inline request"),
    refused("unbalanced double quotes", b'SADD q "a\r\n', "unbalanced quotes in request"),
    refused("unbalanced single quotes", b"SADD q 'a\r\n", "unbalanced quotes in request"),
    Case("line feeds only", b"\n" * 10_000 + b"PING\n", b"+PONG\r\n"),
    Case("TLS ClientHello", CLIENT_HELLO, b"-ERR "),
    Case("zeros", bytes(4096) + b"\n" + b"PING\r\n", b"+PONG\r\n"),
    Case("HTTP GET", b"GET / HTTP/1.1\r\n", UNKNOWN % b"GET" + b"'/' 'HTTP/1.1' \r\n"),
    Case("HTTP POST from a browser", b"POST / HTTP/1.1\r\nHost: a\r\n\r\nSADD q evil\r\n", b"", closed=True),
    Case("HTTP GET from a browser", b"Host: a\r\n\r\nSADD q evil\r\n", b"", closed=True),
    Case("unknown command, huge arguments", packed(b"X" * MB, b"y" * MB), UNKNOWN % (b"X" * 128)),
    Case("unknown command, many arguments", packed(b"NO", *[b"a"] * 100_000), UNKNOWN % b"NO" + b"'a' 'a' "),
    Case(
        "unknown command, line breaks",
        packed(b"NO\r\n+OK\r\n", b"\r\n$3"),
        UNKNOWN % b"NO  +OK  " + b"'  $3' \r\n",
    ),
    Case("unknown command, empty", packed(b""), UNKNOWN % b"" + b"\r\n"),
    Case("unknown command, not UTF-8", packed(b"\xff\xfe", b"\x80"), b"-ERR unknown command '"),
    Case(
        "unknown subcommand, line breaks", packed(b"CLIENT", b"A\nB"), b"-ERR unknown subcommand 'A B'. Try"
    ),
    Case("too few words", packed(b"SADD", b"q"), ARITY % b"sadd"),
    Case("too many words", packed(b"SCARD", *[b"q"] * 1000), ARITY % b"scard"),
    Case("too few words, subcommand", packed(b"CLIENT", b"SETNAME"), ARITY % b"client|setname"),
    Case("name of a protocol key", packed(b"SADD", b"q:bound", b"5"), ALIAS % b"q:bound"),
    Case(
        "name of a statistic", packed(b"SPOP", b"q:stats:produced_bytes"), ALIAS % b"q:stats:produced_bytes"
    ),
    Case("name of our mirror", packed(b"SADD", b"q:ext:members", b"m"), ALIAS % b"q:ext:members"),
    Case("name that ends in :ext", packed(b"SADD", b"x:ext", b"m"), ALIAS % b"x:ext"),
    Case("name with line breaks in an error", packed(b"SCARD", b"a\r\nb:bound"), ALIAS % b"a\\r\\nb:bound"),
    Case("name not UTF-8 in an error", packed(b"SCARD", b"\xff:bound"), ALIAS % b"\\xff:bound"),
    Case("name of 1 MB in an error", packed(b"SCARD", b"a" * MB + b":bound"), b"-ERR '" + b"a" * 128),
    Case("name empty", packed(b"SADD", b"", b"m"), b":1\r\n"),
    Case("name of binary", packed(b"SADD", bytes(range(256)), bytes(range(256))), b":1\r\n"),
    Case("name of 1 MB", packed(b"SADD", b"n" * MB, b"m"), b":1\r\n"),
    Case("a run of refused names", packed(b"SADD", b"x:ext", b"m") * 40, ALIAS % b"x:ext"),
    Case("database too large", packed(b"SELECT", b"99999999"), b"-ERR DB index is out of range\r\n"),
    Case("database negative", packed(b"SELECT", b"-1"), b"-ERR DB index is out of range\r\n"),
    Case("database 9999", packed(b"SELECT", b"9999"), b"-ERR DB index is out of range\r\n"),
    Case("database beyond 64 bits", packed(b"SELECT", b"9" * 5000), INTEGER),
    Case(
        "count negative in SPOP",
        packed(b"SPOP", b"q", b"-1"),
        b"-ERR value is out of range, must be positive\r\n",
    ),
    Case("count huge in SPOP", packed(b"SPOP", b"q", b"9223372036854775807"), b"*0\r\n"),
    Case(
        "count huge in SSCAN",
        packed(b"SSCAN", b"q", b"0", b"COUNT", b"9223372036854775807"),
        b"*2\r\n$1\r\n0\r\n",
    ),
    Case(
        "positions huge", packed(b"LRANGE", b"q", b"-9223372036854775808", b"9223372036854775807"), b"*0\r\n"
    ),
    Case("number of 1 MB", packed(b"LRANGE", b"q", b"1" * MB, b"2"), INTEGER),
    Case(
        "client name with a line break", packed(b"CLIENT", b"SETNAME", b"a\nb"), b"-ERR Client names cannot"
    ),
    Case("glob of many stars", packed(b"KEYS", b"*a" * 500 + b"b"), b"*0\r\n"),
    Case("glob of 200 KB", packed(b"KEYS", b"[a-z]" * 40_000), b""),
    Case("20k globs", packed(b"CONFIG", b"GET", *[b"a%d" % i for i in range(20_000)]), b""),
    Case("20k names of a command", packed(b"COMMAND", b"INFO", *[b"client"] * 20_000), b""),
    Case("20k names to delete", packed(b"DEL", *[b"q%d" % i for i in range(20_000)]), b":0\r\n"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_hostile_request(
    case: Case,
    victim: Server,
    bystander: Client,
    attack: Callable[..., Hostile],
) -> None:
    before = memory(victim)
    with bounded_peak(victim, 64 * MB):
        hostile = attack()
        hostile.send(case.data)
        assert bystander.ping()
        if packed(b"PING") in case.data[:14] and case.closed:
            assert hostile.read(7) == b"+PONG\r\n"
        line = hostile.read_line() if case.reply else b""
        assert line.startswith(case.reply[:-2].partition(b"\r\n")[0])
        assert line.endswith(b"\r\n") or not case.reply
        if case.closed:
            assert hostile.is_closed()
        assert bystander.ping()
        hostile.close()
        wait_for(lambda: bystander.info("clients")["connected_clients"] == 1, "the hostile client to be gone")
    print(case.name, line[:70], "closed" if case.closed else "open", grown(victim, before), sep=" | ")


def test_a_browser_s_requests_have_no_commands_done(
    bystander: Client, attack: Callable[..., Hostile]
) -> None:
    for head in (b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"):
        for body in (
            b"SADD q evil\r\n",
            packed(b"SADD", b"q", b"evil"),
            packed(b"SADD", b"q", b"evil") * 100,
        ):
            hostile = attack()
            hostile.send(head + body)
            hostile.read(1000)
            assert hostile.is_closed()
            assert bystander.exists("q") == 0


def test_the_commands_before_an_error_are_done(bystander: Client, attack: Callable[..., Hostile]) -> None:
    hostile = attack()
    hostile.send(
        packed(b"SADD", b"q", b"a") + packed(b"SADD", b"q", b"b") + b"*x\r\n" + packed(b"SADD", b"q", b"c")
    )
    assert hostile.read_line() == b":1\r\n"
    assert hostile.read_line() == b":1\r\n"
    assert hostile.read_line() == b"-ERR Protocol error: invalid multibulk length\r\n"
    assert hostile.is_closed()
    assert bystander.smembers("q") == {b"a", b"b"}


# ---------------------------------------------------------------- clients that leave, dawdle or do not read


@pytest.mark.parametrize("rudely", [False, True])
def test_a_request_that_is_cut_off_is_not_done(
    bystander: Client, attack: Callable[..., Hostile], rudely: bool
) -> None:
    request = packed(b"SADD", b"q", b"m")
    for length in range(1, len(request)):
        hostile = attack()
        hostile.send(request[:length])
        if rudely:
            hostile.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        hostile.close()
    wait_for(lambda: bystander.info("clients")["connected_clients"] == 1, "all to be gone")
    assert bystander.exists("q") == 0


def test_a_client_that_sends_byte_by_byte(bystander: Client, attack: Callable[..., Hostile]) -> None:
    hostile = attack()
    for byte in packed(b"SADD", b"q", b"a\r\nb") + b"SCARD 'q'\r\n":
        hostile.send(bytes([byte]))
        assert bystander.ping()
    assert hostile.read_line() == b":1\r\n"
    assert hostile.read_line() == b":1\r\n"


def test_what_is_announced_takes_no_memory(
    victim: Server, bystander: Client, attack: Callable[..., Hostile]
) -> None:
    before = memory(victim)
    hostile = [attack() for _ in range(500)]
    for connection in hostile:
        connection.send(b"*1048576\r\n$33554432\r\n")
    wait_for(lambda: bystander.info("clients")["connected_clients"] == 501, "all to be connected")
    assert bystander.ping()
    print(grown(victim, before))
    assert memory(victim) - before < 500 * 16 * 1024


def test_a_hundred_thousand_members(
    victim: Server, bystander: Client, attack: Callable[..., Hostile]
) -> None:
    before = memory(victim)
    hostile = attack()
    hostile.send(packed(b"SADD", b"q", *[b"m%d" % i for i in range(100_000)]))
    assert bystander.ping()
    assert hostile.read_line() == b":100000\r\n"
    assert bystander.scard("q") == 100_000
    print(grown(victim, before))


@pytest.mark.slow
def test_pings_whose_replies_are_not_read(
    victim: Server, bystander: Client, attack: Callable[..., Hostile]
) -> None:
    before, pings = memory(victim), packed(b"PING") * 1_000_000
    with bounded_peak(victim, 16 * MB):
        hostile = attack(small_buffers=True)
        assert hostile.send_until_blocked(pings) < len(pings)
        assert bystander.ping()
    print(grown(victim, before))


@pytest.mark.slow
def test_echoes_whose_replies_are_read_late_all_come(attack: Callable[..., Hostile]) -> None:
    words = [b"%d" % i + b"x" * 1000 for i in range(20_000)]
    requests = b"".join(packed(b"ECHO", word) for word in words)
    hostile = attack(small_buffers=True)
    sent = hostile.send_until_blocked(requests)
    assert sent < len(requests)
    hostile.socket.setblocking(False)
    got = bytearray()
    expected = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    while len(got) < len(expected):
        readable, writable, _ = select.select(
            [hostile.socket], [hostile.socket] if sent < len(requests) else [], [], TIMEOUT
        )
        assert readable or writable
        if readable:
            got += hostile.socket.recv(65536)
        if writable:
            sent += hostile.socket.send(requests[sent : sent + 65536])
    assert bytes(got) == expected


def connected_to(server: Server) -> int:
    """How many are connected, who asks among them."""
    with server.client() as client:
        return int(client.info("clients")["connected_clients"])


def settled(look: Callable[[], object]) -> object:
    """What is seen once a hundred looks in a row have seen the same."""
    seen: list[object] = []

    def same() -> bool:
        seen.append(look())
        return len(seen) >= 100 and all(value == seen[-1] for value in seen[-100:])

    wait_for(same, "it to settle")
    return seen[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "times", "allowed"),
    [
        (packed(b"SPOP", b"q"), 1000, 64),
        (packed(b"SPOP", b"q") + packed(b"SCARD", b"q"), 1000, 64),
        (packed(b"SPOP", b"q", b"2"), 1000, 64),
        (packed(b"LPOP", b"q"), 1000, 64),
        (packed(b"LINDEX", b"q", b"0"), 1000, 64),
        (packed(b"LRANGE", b"q", b"0", b"4"), 1000, 64),
        (packed(b"SRANDMEMBER", b"q", b"5"), 1000, 64),
        (packed(b"SMEMBERS", b"q"), 20, 400),
    ],
    ids=["SPOP", "SPOP and SCARD", "SPOP 2", "LPOP", "LINDEX", "LRANGE", "SRANDMEMBER", "SMEMBERS"],
)
def test_messages_that_are_not_read(
    request_: bytes, times: int, allowed: int, backend: Valkey, start_server: StartServer
) -> None:
    """A hundred messages of 1 MB: the server may hold one reply for a client, not a hundred."""
    server = start_server("--backend", backend.url)
    with server.client(socket_timeout=TIMEOUT) as bystander:
        for i in range(100):
            bystander.lpush("q", b"%03d" % i + bytes(MB))
        before = memory(server)
        hostile = Hostile(server.port, small_buffers=True)
        with bounded_peak(server, allowed * MB):
            hostile.send(request_ * times)
            settled(lambda: (bystander.llen("q"), memory(server) // MB))
            assert bystander.ping()
        print(grown(server, before))
        hostile.close()
        wait_for(lambda: connected_to(server) == 2, "the hostile client to be gone")
    server.end_well()


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
def test_a_queue_named_thirty_times_takes_memory_once(
    name: str, victim: Server, bystander: Client, attack: Callable[..., Hostile]
) -> None:
    """It has 8 MB: the reply of the backend, that in the server's own words, and what stands between."""
    request, reply = ALGEBRA[name]
    for number in range(8):
        bystander.rpush("q", b"%d" % number + bytes(MB))
    with bounded_peak(victim, 64 * MB):
        hostile = attack()
        hostile.send(request)
        assert hostile.read(len(reply)) == reply


# ---------------------------------------------------------------- how many, and how long


def test_one_client_too_many_is_told_so(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--max-clients", "3")
    admitted = [Hostile(server.port) for _ in range(3)]
    for connection in admitted:
        connection.send(b"PING\r\n")
        assert connection.read_line() == b"+PONG\r\n"
    for _ in range(20):
        refused_ = Hostile(server.port)
        refused_.send(packed(b"SADD", b"q", b"m"))
        assert refused_.read_line() in (b"-ERR max number of clients reached\r\n", b"")
        assert refused_.is_closed()
        refused_.close()
    admitted[0].send(b"EXISTS q\r\n")
    assert admitted[0].read_line() == b":0\r\n"
    admitted[1].close()

    def admitted_again() -> bool:
        connection = Hostile(server.port)
        connection.send(b"PING\r\n")
        line = connection.read_line()
        connection.close()
        return line == b"+PONG\r\n"

    wait_for(admitted_again, "the place of a client that left")
    server.end_well()


def test_idle_clients_are_closed_and_busy_ones_are_not(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--idle-timeout", "1")
    busy, idle, unfinished = (Hostile(server.port) for _ in range(3))
    unfinished.send(b"*1\r\n$4\r\nPI")
    closed: set[Hostile] = set()
    end = time.monotonic() + TIMEOUT
    while closed != {idle, unfinished}:
        assert time.monotonic() < end, closed
        busy.send(b"PING\r\n")
        assert busy.read_line() == b"+PONG\r\n"
        for connection in select.select([idle.socket, unfinished.socket], [], [], 0.01)[0]:
            assert connection.recv(1) == b""
            closed.add(idle if connection is idle.socket else unfinished)
    busy.send(b"PING\r\n")
    assert busy.read_line() == b"+PONG\r\n"
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("count", [60_000, 1_000_000], ids=["all read by the server", "not all read"])
def test_a_client_that_never_reads_is_idle_in_the_end(
    backend: Valkey, start_server: StartServer, count: int
) -> None:
    """As in Redis, which counts what a client reads and sends."""
    server = start_server("--backend", backend.url, "--idle-timeout", "1")
    hostile = Hostile(server.port, small_buffers=True)
    hostile.send_until_blocked(packed(b"ECHO", b"x" * 100) * count)
    wait_for(lambda: connected_to(server) == 1, "the client that never reads to be closed")
    hostile.close()
    assert server.stop() == 0
