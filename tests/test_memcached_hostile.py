"""What nobody should send to a memcached listener: others are served meanwhile, and memory stays."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.support.bystander import bystander as resp_bystander
from tests.support.guards import port_of
from tests.support.measures import MB, memory
from tests.support.memcached_wire import MemcachedWire
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    Valkey,
    join,
    wait_for,
    wait_until_settled,
)
from tests.support.waiters import wait_for_blocked
from tests.test_hostile_input import GROWTH, Hostile, bounded_peak, grown, settled

CONNECTIONS = int(os.environ.get("PRESSURE_FUZZ_LIVE") or 1_000)
SEED = int(os.environ.get("PRESSURE_FUZZ_SEED") or 1)
LISTEN = ("--listen", "memcached://127.0.0.1:0")
# For one of the bystanders' commands, on a machine that may be busy.
SERVED_WITHIN = 10.0


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Valkey]]:
    valkey = Valkey(tmp_path_factory.mktemp("attacked-backend"))
    server = Server(tmp_path_factory.mktemp("attacked") / "log", "--backend", valkey.url, *LISTEN)
    try:
        with MemcachedWire(server) as client:
            for number in range(1000):  # what is allocated once
                assert client.store(b"warm", b"%d" % number) == b"STORED"
                assert client.take(b"warm") == b"%d" % number
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
def observer(victim: Server) -> Iterator[Client]:
    """redis-py, connected to the server all the while."""
    with victim.client(socket_timeout=TIMEOUT) as client:
        assert client.ping()
        yield client
        assert client.sadd("observed", "m") == 1
        assert client.spop("observed") == b"m"


def alone(observer: Client) -> None:
    """Return when nobody else is connected."""
    wait_for(lambda: observer.info("clients")["connected_clients"] == 1, "the others to be gone")


@pytest.fixture
def attack(victim: Server, observer: Client) -> Iterator[Callable[..., Hostile]]:
    """Open hostile connections; all are gone at the end."""
    opened: list[Hostile] = []

    def connect(*, small_buffers: bool = False) -> Hostile:
        opened.append(Hostile(port_of(victim, "memcached"), small_buffers=small_buffers))
        return opened[-1]

    yield connect
    assert observer.ping()
    for connection in opened:
        connection.close()
    alone(observer)


@contextlib.contextmanager
def bystanders(server: Server) -> Iterator[None]:
    """A client of each protocol puts and takes all the while, and must be served in time."""
    is_over = threading.Event()
    taken: list[float] = []
    wrong: list[object] = []

    def work() -> None:
        with MemcachedWire(server) as client:
            while not is_over.is_set():
                began = time.monotonic()
                replies = client.store(b"onlooker", b"m\r\n"), client.take(b"onlooker")
                taken.append(time.monotonic() - began)
                if replies != (b"STORED", b"m\r\n"):
                    wrong.append(replies)
                is_over.wait(0.002)

    thread = threading.Thread(target=work, daemon=True)
    with resp_bystander(server.port) as latency:
        thread.start()
        try:
            wait_for(lambda: taken, "the bystander to be served")
            yield
        finally:
            is_over.set()
            join(thread)
    assert wrong == []
    assert max(taken) < SERVED_WITHIN
    assert latency.worst < SERVED_WITHIN
    print(f"memcached: {len(taken)} times, worst {max(taken) * 1000:.0f} ms; RESP: {latency}")


# ---------------------------------------------------------------- one request, one answer


@dataclass(frozen=True)
class Case:
    """What is sent, what is replied to it, and whether the server closes then."""

    name: str
    data: bytes
    reply: bytes
    closed: bool = False


BAD_FORMAT = b"CLIENT_ERROR bad command line format\r\n"
TOO_LARGE = b"SERVER_ERROR object too large for cache\r\n"
TOO_LONG = b"CLIENT_ERROR line too long\r\n"
ERROR = b"ERROR\r\n"
END = b"END\r\n"
STORE = b"set evil 0 0 1\r\nx\r\n"
BINARY = b"\x80\x0a" + bytes(10) + b"OPAQ" + bytes(8)

CASES = [
    Case("size negative", b"set q 0 0 -1\r\n" + STORE, BAD_FORMAT, closed=True),
    Case("size garbage", b"set q 0 0 one\r\n" + STORE, BAD_FORMAT, closed=True),
    Case("size of 11 digits", b"set q 0 0 99999999999\r\n" + STORE, BAD_FORMAT, closed=True),
    Case("size of 1 MB digits", b"set q 0 0 " + b"1" * MB + b"\r\n" + STORE, TOO_LONG, closed=True),
    Case("size missing", b"set q\r\n" + STORE, BAD_FORMAT, closed=True),
    Case("size 9 GB", b"set q 0 0 9999999999\r\n" + STORE * 10_000, TOO_LARGE),
    Case("size too large, and the block", b"set q 0 0 33554433\r\n" + STORE * 1_765_970, TOO_LARGE),
    Case("key of 251 bytes", b"set " + b"k" * 251 + b" 0 0 19\r\n" + STORE + b"\r\n", BAD_FORMAT),
    Case("flags too large", b"set q 4294967296 0 19\r\n" + STORE + b"\r\n", BAD_FORMAT),
    Case("flags negative", b"set q -1 0 19\r\n" + STORE + b"\r\n", BAD_FORMAT),
    Case("expiry garbage", b"set q 0 never 19\r\n" + STORE + b"\r\n", BAD_FORMAT),
    Case("flags of 2 KB", b"set q " + b"9" * 2000 + b" 0 19\r\n" + STORE + b"\r\n", BAD_FORMAT),
    Case("block too long", b"set q 0 0 1\r\nxyz set evil 0 0 0\r\n", b"CLIENT_ERROR bad data chunk\r\n"),
    Case("line of 70 KB", b"A" * 70_000, TOO_LONG, closed=True),
    Case("line of 3 KB with its end", b"A" * 3000 + b"\r\n" + STORE, TOO_LONG, closed=True),
    Case("65 KB of keys", b"get " + b"k " * 33_000 + b"\r\n" + STORE, TOO_LONG, closed=True),
    Case("key of 251 bytes to get", b"get " + b"k" * 251 + b"\r\n", BAD_FORMAT),
    Case("key of control characters", b"get a\x01\x7f\r\n", BAD_FORMAT),
    Case("one bad key among many", b"get " + b"k " * 1000 + b"\x01\r\n", BAD_FORMAT),
    Case("options that contradict", b"get q/open/abort/peek\r\n", b"CLIENT_ERROR peek and abort can be "),
    Case("options a hundred times", b"get q" + b"/close" * 40 + b"\r\n", END),
    Case("options and no name", b"get /open\r\n", END),
    Case("options of several queues", b"get a/open b/open\r\n", b"CLIENT_ERROR a get with options such "),
    Case("closing what is not open", b"get q/close\r\n", END),
    Case("a wait of 11 days", STORE + b"get evil/t=999999999\r\n", b"STORED\r\nVALUE evil/t=9"),
    Case("10 000 empty lines", b"\r\n" * 10_000, ERROR * 10_000),
    Case("zeros", bytes(1000) + b"\n", ERROR),
    Case("TLS ClientHello", bytes.fromhex("16030100c8010000c40303") + bytes(range(11, 200)) + b"\r\n", ERROR),
    Case("RESP", b"*3\r\n$4\r\nSADD\r\n$4\r\nevil\r\n$1\r\nx\r\n", ERROR * 7),
    Case("binary protocol", BINARY + STORE, b"\x81\x0a\0\0\0\0\0\x81", closed=True),
    Case("binary protocol, first byte", b"\x80", b"\x81\0\0\0\0\0\0\x81", closed=True),
    Case("HTTP POST", b"POST / HTTP/1.1\r\nHost: a\r\n\r\n" + STORE, b"", closed=True),
    Case("HTTP POST, many times", (b"POST / HTTP/1.1\r\n" + STORE) * 1000, b"", closed=True),
    Case("HTTP POST in lower case", b"post / HTTP/1.1\r\n" + STORE, b"", closed=True),
    Case("HTTP GET from a browser", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + STORE, ERROR, closed=True),
    Case("HTTP POST behind a command", b"version\r\nPOST / HTTP/1.1\r\n" + STORE, b"VERSION ", closed=True),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_hostile_request(
    case: Case, victim: Server, observer: Client, attack: Callable[..., Hostile]
) -> None:
    before = memory(victim)
    with bounded_peak(victim, 64 * MB):
        hostile = attack()
        hostile.send(case.data)
        assert observer.ping()
        # What was sent before it broke off may get lost with the connection.
        if b"HTTP" not in case.name.encode():
            assert hostile.read(len(case.reply)) == case.reply
        if case.closed:
            hostile.read(1000)
            assert hostile.is_closed()
        assert observer.ping()
        hostile.close()
        alone(observer)
    if not case.data.startswith(STORE):
        assert observer.exists("evil") == 0
    print(case.name, "closed" if case.closed else "open", grown(victim, before), sep=" | ")


def test_the_commands_before_an_error_are_done(observer: Client, attack: Callable[..., Hostile]) -> None:
    hostile = attack()
    hostile.send(STORE * 2 + b"set q 0 0 x\r\n" + STORE)
    assert hostile.read(16) == b"STORED\r\n" * 2
    assert hostile.read(len(BAD_FORMAT)) == BAD_FORMAT
    assert hostile.is_closed()
    assert observer.llen("evil") == 2


def test_who_asks_for_no_reply_gets_none_for_errors_either(attack: Callable[..., Hostile]) -> None:
    """A client that does not read replies would take an error for the next command's."""
    hostile = attack()
    for line in (
        b"set q -1 0 1 noreply\r\nx\r\n", b"set " + b"k" * 251 + b" 0 0 1 noreply\r\nx\r\n",
        b"set q 0 0 1 noreply\r\nxyz\r\n", b"set q 0 0 33554433 noreply\r\n" + bytes(33554433) + b"\r\n",
        b"set q -1 0 1 noreply\r\nx\r\n" * 100, b"delete q 5 noreply\r\n", b"delete \x01 noreply\r\n",
        b"delete none noreply\r\n", b"flush none noreply\r\n", b"flush_all noreply\r\n",
        b"incr q 1 noreply\r\n", b"touch q 1 noreply\r\n", b"append q 0 0 1 noreply\r\nx\r\n",
        b"verbosity 1 noreply\r\n",
    ):  # fmt: skip
        hostile.send(line + b"scard q\r\n")
        assert hostile.read_line() == b"0\r\n", line
    hostile.send(b"delete noreply\r\n")
    assert hostile.read_line() == b"NOT_FOUND\r\n"


def test_a_queue_s_name_cannot_forge_a_reply(observer: Client, attack: Callable[..., Hostile]) -> None:
    """Redis's clients may give a queue any name."""
    observer.rpush("a\r\nEND\r\nSTAT pid 1", "m")
    hostile = attack()
    for request in (b"stats\r\n", b"dump_stats\r\n"):
        hostile.send(request)
        lines = []
        while (line := hostile.read_line()) != END:
            assert line, "the server has closed"
            lines.append(line)
        assert any(b"a__END__STAT_pid_1" in line for line in lines)
        hostile.send(b"version\r\n")
        assert hostile.read_line().startswith(b"VERSION")


# ---------------------------------------------------------------- fuzz

_LINES = """
version|verbosity 1|stats|stats settings|stats reset|dump_stats|ready|get q|gets q|get q r s|get q/peek
get q/open|get q/close|get q/abort|get q/close/open|get q/t=5|get q/peek/t=5|get q/open/t=5|gets q/open
scard q|sismember q x|delete r|delete r 0|flush q|flush_all|incr q 1|touch q 0|gat 0 q|quit|nonsense
"""
REQUESTS = [line.encode() + b"\r\n" for line in re.split(r"[|\n]", _LINES.strip())]
REQUESTS += [
    b"%b %b %b %d%b\r\n%b\r\n" % (name, key, more, len(data), b" 1" * (name == b"cas") + quiet, data)
    for name in (b"set", b"add", b"cas", b"append")
    for key in (b"q", b"r", b"q/open", b"k" * 250)
    for more in (b"0 0", b"7 1")
    for data in (b"", b"x", b"\r\n", b"set q 0 0 1\r\nx\r\n", b"y" * 5000)
    for quiet in (b"", b" noreply")
]
TOKENS = [
    b"\r\n", b"\n", b"\r", b"\x80", b"\0", b"\xff\xfe", b" ", b"noreply", b" 0 0 ", b"-1", b"4294967296",
    b"99999999999", b"/open", b"/close", b"/t=9", b"get ", b"set q 0 0 3\r\n", b"k" * 251, b"x" * 2048,
    b"Host: a\r\n",
]  # fmt: skip


def fuzzed(rng: random.Random) -> bytes:
    """A few requests, of which some are spoilt."""
    data = bytearray(
        b"".join(rng.choice(REQUESTS) * rng.choice([1, 1, 2, 30]) for _ in range(rng.choice([1, 2, 5])))
    )
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[at:at] = rng.choice(TOKENS)
            case 1:
                del data[at : at + rng.choice([1, 2, 10])]
            case 2:
                data[at:at] = rng.randbytes(rng.choice([1, 4, 300]))
            case 3:
                data[at:at] = data[at : at + 40] * rng.choice([1, 2, 30])
            case 4 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case _:
                for number in list(re.finditer(rb"\d+", data))[-1:]:
                    data[number.start() : number.end()] = rng.choice(
                        [b"0", b"-1", b"2", b"33554433", b"9" * 12]
                    )
    return bytes(data)


def fuzz(server: Server, seed: int, count: int) -> None:
    """So many connections, one after the other; the server may close each at any time."""
    rng = random.Random(seed)
    for number in range(count):
        data = fuzzed(rng)
        with Hostile(port_of(server, "memcached")).socket as connection:
            try:
                at = 0
                while at < len(data):
                    size = rng.choice([1, 7, 100, 65536])
                    connection.sendall(data[at : at + size])
                    at += size
                if rng.random() < 0.8:
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                    raise AssertionError(f"seed {seed}, connection {number}: {data!r}") from error


@pytest.mark.slow
def test_a_fuzzed_server_stays_well(victim: Server, observer: Client) -> None:
    before = memory(victim)
    with bystanders(victim), bounded_peak(victim, 64 * MB), ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(fuzz, victim, SEED + worker, CONNECTIONS // 4) for worker in range(4)]:
            done.result(3 * TIMEOUT)
    alone(observer)
    assert not re.search("ERROR|Traceback", victim.log)
    print(grown(victim, before))


# ---------------------------------------------------------------- clients that dawdle, flood or do not read


def test_a_client_that_sends_byte_by_byte(observer: Client, attack: Callable[..., Hostile]) -> None:
    hostile = attack()
    for byte in b"set q 0 0 4\r\na\r\nb\r\nscard q\r\n":
        hostile.send(bytes([byte]))
        assert observer.ping()
    assert hostile.read(11) == b"STORED\r\n1\r\n"


def test_slow_senders_hold_up_nobody(
    victim: Server, observer: Client, attack: Callable[..., Hostile]
) -> None:
    before = memory(victim)
    slow = [attack() for _ in range(300)]
    with bystanders(victim):
        for byte in b"set slow 0 0 30000000\r\nxxxxxxxxxxxx":
            for connection in slow:
                connection.send(bytes([byte]))
    assert memory(victim) - before < 300 * 32 * 1024
    assert observer.exists("slow") == 0
    print(grown(victim, before))


@pytest.mark.parametrize(("most", "size"), [(32 * MB, 1024 * MB), (512 * MB, 512 * MB)])
@pytest.mark.parametrize("trickle", [b"", b"flush_all\r\n"], ids=["nothing", "a trickle"])
def test_what_is_announced_takes_no_memory(
    most: int, size: int, trickle: bytes, backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--max-message-bytes", str(most), *LISTEN)
    with MemcachedWire(server) as other:
        assert other.store(b"q", b"m") == b"STORED"
        before = memory(server)
        hostile = [MemcachedWire(server) for _ in range(100)]
        for one in hostile:
            one.send(b"set q 0 0 %d\r\n" % size)
            if most < size:
                assert one.reply() == TOO_LARGE.strip()
        for _ in range(20 if trickle else 1):
            for one in hostile:
                one.send(trickle)
        assert other.store(b"q", b"n") == b"STORED"
        print(grown(server, before))
        assert memory(server) - before < 100 * 32 * 1024
        for one in hostile:
            one.reset()
        assert other(b"scard q") == b"2"
    server.end_well()


@pytest.mark.slow
def test_replies_that_are_not_read_stop_the_requests(
    victim: Server, observer: Client, attack: Callable[..., Hostile]
) -> None:
    before, requests = memory(victim), b"version\r\n" * 2_000_000
    with bounded_peak(victim, 16 * MB), bystanders(victim):
        hostile = attack(small_buffers=True)
        assert hostile.send_until_blocked(requests) < len(requests)
        assert observer.ping()
    print(grown(victim, before))


def test_a_hundred_thousand_pipelined_gets(victim: Server, attack: Callable[..., Hostile]) -> None:
    before, hostile = memory(victim), attack()
    expected = END * 100_000
    with bystanders(victim), bounded_peak(victim, 32 * MB):
        sender = threading.Thread(target=hostile.send, args=(b"get none\r\n" * 100_000,), daemon=True)
        sender.start()
        assert hostile.read(len(expected)) == expected
        sender.join(TIMEOUT)
    print(grown(victim, before))


def test_pipelines_of_everything_are_answered_in_order(
    observer: Client, attack: Callable[..., Hostile]
) -> None:
    """However equal or unequal the commands in a row: replies come in the order of the commands."""
    rng, requests, replies, queued = random.Random(SEED), [], [], 0
    for _ in range(2000):
        times = rng.choice([1, 1, 2, 40, 600])
        match rng.randrange(5):
            case 0:
                requests.append(b"set q 0 0 1\r\nm\r\n" * times)
                replies.append(b"STORED\r\n" * times)
                queued += times
            case 1:
                requests.append(b"get q\r\n" * times)
                found = min(times, queued)
                replies.append(b"VALUE q 0 1\r\nm\r\nEND\r\n" * found + END * (times - found))
                queued -= found
            case 2:
                requests.append(b"scard q\r\n" * times)
                replies.append(b"%d\r\n" % queued * times)
            case 3:
                requests.append(b"set q x 0 1\r\nm\r\n" * times)
                replies.append(BAD_FORMAT * times)
            case _:
                requests.append(b"nonsense\r\n" * times)
                replies.append(ERROR * times)
    hostile, expected = attack(), b"".join(replies)
    sender = threading.Thread(target=hostile.send, args=(b"".join(requests),), daemon=True)
    sender.start()
    assert hostile.read(len(expected)) == expected
    sender.join(TIMEOUT)
    assert observer.llen("q") == queued


@pytest.mark.slow
@pytest.mark.parametrize("request_", [b"get q\r\n", b"gets q\r\n", b"get q/peek\r\n", b"get q q\r\n"])
def test_messages_that_are_not_read(request_: bytes, backend: Valkey, start_server: StartServer) -> None:
    """A hundred messages of 1 MB: the server may hold one reply for a client, not a hundred."""
    server = start_server("--backend", backend.url, *LISTEN)
    with server.client(socket_timeout=TIMEOUT) as observer:
        for number in range(100):
            observer.rpush("q", b"%03d" % number + bytes(MB))
        before = memory(server)
        hostile = Hostile(port_of(server, "memcached"), small_buffers=True)
        with bounded_peak(server, 64 * MB):
            hostile.send(request_ * 200)
            settled(lambda: (observer.llen("q"), memory(server) // MB))
            assert observer.ping()
        left = observer.llen("q")
        print(grown(server, before), left)
        hostile.close()
        wait_for(lambda: observer.info("clients")["connected_clients"] == 1, "the hostile client to be gone")
        assert observer.llen("q") >= left > 90
    server.end_well()


MANY = {
    "open reads": b"".join(b"get q%d/open\r\n" % number for number in range(200)),
    "many keys": b"get" + b"".join(b" q%d" % number for number in range(200)) + b"\r\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_what_a_client_has_us_keep_is_in_the_account(
    name: str, backend: Valkey, start_server: StartServer
) -> None:
    """200 messages of 1 MB, where 64 MiB may be kept: the client is closed, and all are back."""
    limits = ("--max-buffered-bytes", "64mb", "--max-message-bytes", str(4 * MB))
    server = start_server("--backend", backend.url, *limits, *LISTEN)
    with server.client(socket_timeout=TIMEOUT) as observer:
        for number in range(200):
            observer.rpush(f"q{number}", bytes(MB))
        before = memory(server)
        with bounded_peak(server, 128 * MB), MemcachedWire(server) as greedy:
            greedy.send(MANY[name])
            assert b"SERVER_ERROR OOM closing this connection" in greedy.rest()[-300:]
        alone(observer)
        print(grown(server, before))
        wait_for(lambda: sum(observer.llen(f"q{n}") for n in range(200)) == 200, "all to be back")
    assert "a client is closed that had us keep 64 MiB" in server.log
    server.stop()
    assert not re.search("ERROR|Traceback", server.log)


@pytest.mark.slow
def test_thousands_of_open_reads_hold_up_nobody(
    victim: Server, observer: Client, attacked: tuple[Server, Valkey]
) -> None:
    count = 3000
    with MemcachedWire(victim) as greedy:
        greedy.send(b"".join(b"set q%d 0 0 1 noreply\r\nm\r\n" % number for number in range(count)))
        assert greedy(b"version").startswith(b"VERSION")
        with bystanders(victim):
            for first in range(0, count, 500):
                greedy.send(b"".join(b"get q%d/open\r\n" % number for number in range(first, first + 500)))
                for number in range(first, first + 500):
                    assert greedy.reply() == b"VALUE q%d/open 0 1\r\nm\r\nEND" % number
    alone(observer)
    with attacked[1].client() as direct:
        wait_until_settled(direct)
    assert sum(observer.llen(f"q{number}") for number in range(count)) == count


def test_replies_that_are_read_late_all_come(attack: Callable[..., Hostile], observer: Client) -> None:
    for number in range(2000):
        observer.rpush("q", b"%04d" % number + b"x" * 2000)
    hostile = attack(small_buffers=True)
    assert hostile.send_until_blocked(b"get q\r\n" * 2000) == 14_000
    wait_for(lambda: observer.llen("q") < 2000, "the first to be taken")
    for number in range(2000):
        assert hostile.read(2027) == b"VALUE q 0 2004\r\n%04d" % number + b"x" * 2000 + b"\r\nEND\r\n"
    assert not select.select([hostile.socket], [], [], 0)[0]


# ---------------------------------------------------------------- clients that leave

LEAVING: dict[str, Callable[[MemcachedWire], None]] = {
    "close": MemcachedWire.close,
    "half-close": MemcachedWire.half_close,
    "reset": MemcachedWire.reset,
}
leavings = pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)


@leavings
def test_a_block_that_is_cut_off_is_not_stored(
    victim: Server, observer: Client, leave: Callable[[MemcachedWire], None]
) -> None:
    request = b"set q 0 0 7\r\na\r\nbcde\r\n"
    for length in range(1, len(request)):
        client = MemcachedWire(victim)
        client.send(request[:length])
        leave(client)
    alone(observer)
    assert observer.exists("q") == 0


@leavings
@pytest.mark.parametrize("options", [b"/t=60000", b"/open/t=60000", b"/close/open/t=60000", b"/peek/t=60000"])
def test_who_leaves_while_it_waits_takes_nothing(
    victim: Server, observer: Client, options: bytes, leave: Callable[[MemcachedWire], None]
) -> None:
    gone = [MemcachedWire(victim) for _ in range(3)]
    for client in gone:
        client.send(b"get q%b\r\n" % options)
    wait_for_blocked(observer, 3)
    for client in gone:
        leave(client)
    alone(observer)
    assert observer.info("clients")["blocked_clients"] == 0
    with MemcachedWire(victim) as client:
        assert client.store(b"q", b"m") == b"STORED"
        assert client(b"get q/t=1000") == b"VALUE q/t=1000 0 1\r\nm\r\nEND"


@leavings
def test_who_leaves_as_the_message_comes_loses_none(
    victim: Server, observer: Client, leave: Callable[[MemcachedWire], None]
) -> None:
    """The put comes with the leaving: the message is delivered, or it is there."""
    with MemcachedWire(victim) as producer:
        for number in range(30):
            client = MemcachedWire(victim)
            client.send(b"get q/open/t=60000\r\n")
            wait_for_blocked(observer, 1)
            producer.send(b"set q 0 0 2\r\n%02d\r\n" % number)
            leave(client)
            assert producer.reply() == b"STORED"
            assert producer(b"get q/t=20000") == b"VALUE q/t=20000 0 2\r\n%02d\r\nEND" % number
    alone(observer)


@leavings
def test_an_open_read_is_the_next_message_when_its_client_has_left(
    victim: Server, observer: Client, leave: Callable[[MemcachedWire], None]
) -> None:
    with MemcachedWire(victim) as other:
        for number in range(5):
            other.store(b"q", b"%d" % number, more=b"%d 0" % number)
            other.store(b"r", b"%d" % number)
        client = MemcachedWire(victim)
        assert client(b"get q/open") == b"VALUE q/open 0 1\r\n0\r\nEND"
        assert client(b"get q/close/open") == b"VALUE q/close/open 1 1\r\n1\r\nEND"
        assert client(b"get r/open") == b"VALUE r/open 0 1\r\n0\r\nEND"
        assert other(b"scard q") == b"3"
        leave(client)
        wait_for(lambda: observer.llen("q") == 4, "the open message to be back")
        wait_for(lambda: observer.llen("r") == 5, "the other open message to be back")
        assert [other(b"get q") for _ in range(5)] == [
            *(b"VALUE q %d 1\r\n%d\r\nEND" % (number, number) for number in range(1, 5)),
            b"END",
        ]
        assert [other.take(b"r") for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.slow
@leavings
def test_who_leaves_while_many_keys_are_read_takes_none(
    victim: Server, observer: Client, attacked: tuple[Server, Valkey], leave: Callable[[MemcachedWire], None]
) -> None:
    """One reply brings all of them, or none."""
    observer.rpush("q", *range(2000))
    for _ in range(5):
        client = MemcachedWire(victim)
        client.send(b"get" + b" q" * 1000 + b"\r\n")
        wait_for(lambda: observer.llen("q") < 2000, "the reading to have begun")
        if leave is MemcachedWire.half_close:
            client.reset()
        else:
            leave(client)
        alone(observer)
        wait_for(lambda: observer.llen("q") in (1000, 2000), "all to be back, or read")
        if observer.llen("q") == 1000:
            observer.lpush("q", *range(1000))
    with attacked[1].client() as direct:
        wait_until_settled(direct)
    assert observer.llen("q") == 2000


# ---------------------------------------------------------------- how many, and how long


def test_one_client_too_many_is_told_so(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--max-clients", "2", *LISTEN)
    with MemcachedWire(server) as one, MemcachedWire(server) as two:
        assert one.store(b"q", b"m") == b"STORED"
        assert two.take(b"q") == b"m"
        with MemcachedWire(server) as three:
            assert three.rest() == b"ERROR Too many open connections\r\n"
    server.end_well()


@pytest.mark.slow
def test_idle_clients_are_closed_and_give_back_what_they_have_open(
    backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--idle-timeout", "1", *LISTEN)
    idle, unfinished, waiting = (MemcachedWire(server) for _ in range(3))
    assert idle.store(b"q", b"m") == b"STORED"
    assert idle(b"get q/open") == b"VALUE q/open 0 1\r\nm\r\nEND"
    waiting.send(b"get r/t=60000\r\n")
    unfinished.send(b"set q 0 0 100\r\nx")
    assert idle.rest() == unfinished.rest() == b""
    with MemcachedWire(server) as busy:
        assert busy(b"get q/t=20000") == b"VALUE q/t=20000 0 1\r\nm\r\nEND"
        assert busy.store(b"r", b"n") == b"STORED"
    assert waiting.reply() == b"VALUE r/t=60000 0 1\r\nn\r\nEND"
    server.end_well()
