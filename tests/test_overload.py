"""More than there is room for: the server throttles the heaviest clients, then evicts them; it does not grow.

PRESSURE_OVERLOAD multiplies the crowds; with 50 it is 10 000 clients, of which each waits on 20 queues, and
needs `ulimit -n 20000`.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.bystander import Latency, served
from tests.support.measures import MB, memory
from tests.support.programs import TIMEOUT, Client, Server, StartServer, StartValkey, Valkey, join, wait_for
from tests.support.protocols import LISTEN, RESP, Protocol, Wire, each_protocol
from tests.support.waiters import Waiter, is_refused, packed

SCALE = int(os.environ.get("PRESSURE_OVERLOAD", "1"))
CLIENTS = 200 * SCALE
QUEUES_EACH = 20
LIMIT = 64 * MB
MESSAGE = 8 * MB
# What a server has beyond the account while it works: a request is in memory four times on its way, a reply
# three times, and what has been freed is not given back at once.
BESIDE = 12 * MESSAGE
# Seconds. A bystander is slowed as the backend is busy, which reads 16 MB thirty times before it is its turn;
# but not for as long as those who have to wait.
WORST = 8.0


@dataclass
class Figures:
    before: int = 0
    peak: int = 0
    after: int = 0
    latency: Latency | None = None

    @property
    def grown(self) -> int:
        return self.peak - self.before

    def __str__(self) -> str:
        assert self.latency is not None
        sizes = " → ".join(f"{size / MB:.0f}" for size in (self.before, self.peak, self.after))
        return f"{sizes} MB; a put and a get of another client: {self.latency}"


@contextmanager
def figures(server: Server) -> Iterator[Figures]:
    """Of what is done meanwhile, with another client at work."""
    found = Figures()
    with served(Wire(RESP, server)) as found.latency:
        Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # VmHWM begins anew
        found.before = memory(server)
        yield found
        found.peak, found.after = memory(server, "VmHWM"), memory(server)


@pytest.fixture
def limited(backend: Valkey, start_server: StartServer) -> Server:
    """A server that buffers little."""
    return start_server(
        "--backend", backend.url, "--max-message-bytes", str(MESSAGE), "--max-buffered-bytes", str(LIMIT)
    )


def stats(client: Client, section: str, field: str) -> int:
    return int(client.info(section)[field])


def fill(client: Client, name: str, megabytes: int) -> None:
    for number in range(megabytes):
        client.rpush(name, b"%03d" % number + bytes(MB))


def send_what_goes(sockets: list[socket.socket], data: bytes) -> list[int]:
    """Send it on each, for as long as any of them takes more; how much each took."""
    sent = [0] * len(sockets)
    quiet_since = time.monotonic()
    for connected in sockets:
        connected.setblocking(False)
    while time.monotonic() - quiet_since < 1.0 and any(done < len(data) for done in sent):
        for number, connected in enumerate(sockets):
            with contextlib.suppress(BlockingIOError, ConnectionError):
                done = connected.send(data[sent[number] : sent[number] + MB])
                sent[number] += done
                if done:
                    quiet_since = time.monotonic()
        time.sleep(0.001)  # not to take the processor from the server
    return sent


@pytest.mark.slow
def test_clients_that_ask_for_much_and_do_not_read_are_evicted(limited: Server) -> None:
    """Each asks for 16 MB, of 30 different queues: those who hold most go, and memory stays."""
    with limited.client() as client, ExitStack() as stack:
        for number in range(30):
            fill(client, f"q{number}", 16)
        with figures(limited) as found:
            waiters = [stack.enter_context(Waiter(limited.port)) for _ in range(30)]
            for number, waiter in enumerate(waiters):
                waiter.send("SMEMBERS", f"q{number}")
            wait_for(lambda: stats(client, "stats", "evicted_clients") >= 24, "most of them to be closed")
        print("30 clients that ask for 16 MB and do not read:", found)
        assert stats(client, "memory", "buffered_bytes") <= LIMIT
        assert found.grown < LIMIT + BESIDE
        assert found.latency is not None
        assert found.latency.worst < WORST
        stack.close()
        wait_for(lambda: stats(client, "memory", "buffered_bytes") == 0, "the account to be empty")
        assert client.scard("q0") == 16


@pytest.mark.slow
def test_messages_taken_by_clients_that_do_not_read_are_put_back(limited: Server) -> None:
    with limited.client() as client, ExitStack() as stack:
        for number in range(30):
            fill(client, f"q{number}", 8)
        with figures(limited) as found:
            for number in range(30):
                waiter = stack.enter_context(Waiter(limited.port))
                waiter.send("LPOP", f"q{number}", 8)
            wait_for(lambda: stats(client, "stats", "evicted_clients") > 10, "some to be closed")
        print("30 clients that take 8 MB and do not read:", found)
        assert found.grown < LIMIT + BESIDE
        stack.close()
        wait_for(
            lambda: sum(client.llen(f"q{n}") for n in range(30)) >= 29 * 8, "what was not sent to be back"
        )


@pytest.mark.slow
def test_many_large_replies_of_one_queue_do_not_exceed_the_limit(limited: Server) -> None:
    """Fifty ask at once for the same 16 MB: the backend is not asked for all of them in one call."""
    with limited.client() as client, ExitStack() as stack:
        fill(client, "q", 16)
        with figures(limited) as found:
            for _ in range(50):
                stack.enter_context(Waiter(limited.port)).send("SMEMBERS", "q")
            wait_for(lambda: stats(client, "stats", "evicted_clients") >= 40, "most of them to be closed")
        print("50 clients that ask for the same 16 MB and do not read:", found)
        assert found.grown < LIMIT + BESIDE


@pytest.mark.slow
def test_clients_with_half_requests_are_throttled_and_then_evicted(limited: Server) -> None:
    """Of 40 clients each sends all but the end of a message of 8 MB: it is slowed; then some must go."""
    with limited.client() as client, ExitStack() as stack:
        waiters = [stack.enter_context(Waiter(limited.port)) for _ in range(40)]
        with figures(limited) as found:
            sent = send_what_goes(
                [waiter.socket for waiter in waiters], packed("LPUSH", "q", bytes(MESSAGE))[:-9]
            )
            slowed = stats(client, "clients", "throttled_clients")
            held = stats(client, "memory", "buffered_bytes")
            # One has its turn, and does not get on.
            wait_for(lambda: stats(client, "stats", "evicted_clients"), "the first to be closed", timeout=30)
        print(
            f"40 half messages, {sum(sent) / MB:.0f} MB sent, {held / MB:.0f} held, {slowed} slowed:", found
        )
        assert slowed > 20
        assert held <= LIMIT
        assert sum(sent) < 40 * MESSAGE * 0.9
        assert found.grown < LIMIT + BESIDE
        assert found.latency is not None
        assert found.latency.worst < WORST
        assert re.search(r"WARNING.*throttling clients with more than", limited.log)
        assert limited.log.count("WARNING") < 10


@pytest.mark.alone
def test_large_messages_of_many_clients_are_only_throttled(limited: Server) -> None:
    """Sixty times 7 MB at once, where 64 may be buffered: all are put, and nobody is closed.

    That much comes together only if the clients are as fast as the server.
    """
    replies: list[Any] = []

    def put(number: int) -> None:
        with Waiter(limited.port) as waiter:
            waiter.socket.settimeout(None)
            waiter.socket.sendall(packed("LPUSH", f"q{number % 7}", bytes(7 * MB)))
            replies.append(waiter.reply(60))

    with limited.client() as client, figures(limited) as found:
        threads = [threading.Thread(target=put, args=(number,), daemon=True) for number in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            join(thread, 3 * TIMEOUT)
        assert stats(client, "stats", "evicted_clients") == 0
        assert sum(client.llen(f"q{number}") for number in range(7)) == 60
    print("60 messages of 7 MB at once:", found)
    assert len(replies) == 60
    assert all(isinstance(reply, int) for reply in replies)
    assert "throttling clients with more than" in limited.log
    assert found.grown < LIMIT + BESIDE


@each_protocol
def test_an_evicted_client_receives_the_reason(
    backend: Valkey, start_server: StartServer, protocol: Protocol
) -> None:
    server = start_server("--backend", backend.url, "--max-buffered-bytes", "1mb", *LISTEN)
    with server.client() as client, Wire(protocol, server) as greedy:
        assert stats(client, "memory", "max_buffered_bytes") == MB
        greedy.put(b"small", b"m")
        send_what_goes([greedy.socket], protocol.put(b"q", bytes(3 * MB)))
        greedy.socket.settimeout(TIMEOUT)
        reason = greedy.reply()
        assert reason.startswith(protocol.out_of_memory)
        assert b"--max-buffered-bytes" in reason
        assert greedy.is_closed()
        assert client.llen("q") == 0
        assert stats(client, "stats", "evicted_clients") == 1
        wait_for(lambda: stats(client, "memory", "buffered_bytes") == 0, "what it held to be freed")
        assert client.sadd("q", "m") == 1


@pytest.mark.slow
def test_requests_after_one_that_waits_count_as_memory(limited: Server) -> None:
    """A read of tiny commands takes fifty times as much when it has been parsed, and counts so."""
    with limited.client() as client, ExitStack() as stack:
        with figures(limited) as found:
            for _ in range(60):
                waiter = stack.enter_context(Waiter(limited.port))
                with contextlib.suppress(ConnectionError):
                    waiter.socket.sendall(packed("BLPOP", "never", 0) + b"a\n" * 30_000)
            wait_for(lambda: stats(client, "stats", "evicted_clients"), "one to be closed")
        print("60 clients with 30 000 commands behind one that waits:", found)
        assert found.grown < 2 * LIMIT


@pytest.mark.parametrize(
    ("begin", "command", "refused"),
    [
        ("PING", ("WATCH",), "ERR too many watched queues"),
        ("MULTI", ("SADD", "q"), "ERR the transaction is too large"),
    ],
)
def test_watched_names_and_queued_commands_have_a_limit(
    backend: Valkey, start_server: StartServer, begin: str, command: tuple[str, ...], refused: str
) -> None:
    """Names that are watched, and commands that are queued, have a bound, and are in the account."""
    server = start_server(
        "--backend", backend.url, "--max-message-bytes", str(MESSAGE), "--max-buffered-bytes", "1gb"
    )
    with server.client() as client:
        with Waiter(server.port) as waiter:
            waiter(begin)
            for number in range(72):  # and 8 MB, as the largest message, is for what they are kept with
                assert waiter(*command, b"%03d" % number + bytes(MB - 3)) in (b"OK", b"QUEUED")
                held = stats(client, "memory", "buffered_bytes")
                assert (number + 1) * MB <= held < (number + 3) * MB, number
                if number >= 70:
                    break
            assert refused in str(waiter(*command, *[b"%03d" % number + bytes(MB) for number in range(4)]))
        wait_for(lambda: stats(client, "memory", "buffered_bytes") == 0, "it to be freed")


def test_a_name_that_is_watched_again_is_counted_once(backend: Valkey, start_server: StartServer) -> None:
    server = start_server(
        "--backend", backend.url, "--max-message-bytes", str(MESSAGE), "--max-buffered-bytes", "1gb"
    )
    with Waiter(server.port) as waiter:
        for _ in range(80):
            assert waiter("WATCH", bytes(MB)) == b"OK"
        names = [b"%d" % number + bytes(MB) for number in range(120)]
        assert waiter("WATCH", *names[:60]) == b"OK"
        assert "too many watched queues" in str(waiter("WATCH", *names[60:]))
        assert waiter("WATCH", "q") == b"OK"  # the refused names are not counted


def test_a_single_client_may_fill_the_limit_with_a_transaction(limited: Server) -> None:
    """Beyond three quarters of the limit it is slowed, and has its turn."""
    with limited.client() as client, Waiter(limited.port) as waiter:
        waiter("MULTI")
        for number in range(60):
            assert waiter("SADD", "q", b"%02d" % number + bytes(MB - 2)) == b"QUEUED"
        assert waiter("EXEC") == [1] * 60
        assert client.scard("q") == 60


def test_the_replies_of_a_transaction_have_a_limit(limited: Server) -> None:
    with limited.client() as client, Waiter(limited.port) as waiter:
        fill(client, "q", 16)
        waiter.send("MULTI")
        for _ in range(20):
            waiter.send("LRANGE", "q", 0, -1)
        waiter.send("SPOP", "q")
        waiter.send("SADD", "q", "m")
        waiter.send("EXEC")
        *queued, replies = [waiter.reply() for _ in range(24)]
        assert queued == [b"OK", *[b"QUEUED"] * 22]
        whole = [reply for reply in replies if isinstance(reply, list) and len(reply) == 16]
        assert len(whole) == 4  # with which it is more than 64 MiB
        assert replies[:4] == whole
        assert [is_refused(reply, "ERR") for reply in replies[4:]] == [True] * 17 + [False]
        assert replies[-1] == 1
        assert client.scard("q") == 17


def test_the_replies_of_a_transaction_in_several_steps_have_a_limit(limited: Server) -> None:
    """Which makes steps of it, each a call of its own."""
    with limited.client() as client, Waiter(limited.port) as waiter:
        fill(client, "q", 16)
        waiter.send("MULTI")
        for _ in range(8):
            waiter.send("LRANGE", "q", 0, -1)
            waiter.send("PING")
        waiter.send("SPOP", "q")
        waiter.send("EXEC")
        replies = [waiter.reply() for _ in range(19)][-1]
        assert [isinstance(reply, list) for reply in replies] == [True, False] * 3 + [True] + [False] * 10
        assert replies[1:7:2] == [b"PONG"] * 3
        assert all(is_refused(reply, "ERR") for reply in replies[7:])
        assert client.scard("q") == 16


def test_a_reply_that_was_read_in_part_is_put_back_when_its_client_leaves(limited: Server) -> None:
    """A call takes a mebibyte, so sixteen are one command: it is left in the middle."""
    with limited.client() as client:
        for number in range(16):
            client.rpush("q", b"%02d" % number + bytes(MB))
        for _ in range(10):
            with Waiter(limited.port) as waiter:
                waiter.send("LPOP", "q", 16)
                wait_for(lambda: client.llen("q") < 16, "some to be taken")
                waiter.reset()
            wait_for(lambda: client.llen("q") == 16, "all to be back")
        assert [message[:2] for message in client.lrange("q", 0, -1)] == [b"%02d" % n for n in range(16)]


def test_the_number_of_waiting_operations_is_limited(backend: Valkey, start_server: StartServer) -> None:
    """One more is told so at once, takes nothing, and may wait when another has ended."""
    server = start_server("--backend", backend.url, "--max-waiting", "100")
    with server.client() as client, ExitStack() as stack:
        waiters = [stack.enter_context(Waiter(server.port)) for _ in range(10)]
        for number, waiter in enumerate(waiters):
            waiter.send("BLPOP", *[f"q{number}.{queue}" for queue in range(10)], 0)
        wait_for(lambda: stats(client, "clients", "waiting_operations") == 100, "all to wait")
        with Waiter(server.port) as late:
            for command in (("BLPOP", "q", 0), ("BLPOP", "q", "r", 0), ("BLMPOP", 5, 1, "q", "LEFT")):
                said = late(*command)
                assert is_refused(said, "OVERLOAD"), said
            assert late("LPUSH", "q", "m") == 1
            assert late("BLPOP", "q", 0) == [b"q", b"m"]  # what is there need not be waited for
            client.execute_command("PRESSURE.CREATE", "full", "BOUND", 1)
            assert late("LPUSH", "full", "m") == 1
            assert is_refused(late("LPUSH", "full", "n"), "OVERLOAD")
            assert client.lpush("q3.3", "m") == 1
            assert waiters[3].reply() == [b"q3.3", b"m"]
            wait_for(lambda: stats(client, "clients", "waiting_operations") == 90, "its others to leave")
            late.send("BLPOP", "q", 0)
            wait_for(lambda: stats(client, "clients", "waiting_operations") == 91, "it to wait")
            assert client.lpush("q", "n") == 1
            assert late.reply() == [b"q", b"n"]
        for waiter in waiters[:5]:
            waiter.reset()
        wait_for(
            lambda: stats(client, "clients", "waiting_operations") <= 50, "those who left to count no more"
        )
        assert client.llen("full") == 1


@pytest.fixture
def _open_files() -> Iterator[None]:
    """As many as the crowd needs, here and in the programs that are started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, CLIENTS + 1000)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("_open_files")
def test_a_crowd_that_waits_is_served_beside_clients_that_never_read(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    """All wait on twenty queues each; ten others ask for as much as they can, and read nothing."""
    backend = start_valkey()
    most = CLIENTS * QUEUES_EACH
    server = start_server(
        *("--backend", backend.url, "--max-clients", str(CLIENTS + 20)),
        *("--max-buffered-bytes", str(LIMIT), "--max-waiting", str(most)),
    )
    with server.client() as client, ExitStack() as stack:
        fill(client, "large", 16)
        crowd = [stack.enter_context(Waiter(server.port)) for _ in range(CLIENTS)]
        for waiter in crowd:
            assert waiter("PING") == b"PONG"
        with figures(server) as found:
            began = time.monotonic()
            for number, waiter in enumerate(crowd):
                waiter.send("BLPOP", *[f"q{number}.{queue}" for queue in range(QUEUES_EACH)], 0)

            def waiting() -> int:
                return stats(client, "clients", "waiting_operations")

            wait_for(lambda: waiting() == most, "all to wait", timeout=60 + 10 * SCALE)
            took = time.monotonic() - began
            each = (memory(server) - found.before) / most
        with figures(server) as then:
            with Waiter(server.port) as late:
                assert is_refused(late("BLPOP", "one.more", 0), "OVERLOAD")
            greedy = [stack.enter_context(Waiter(server.port)) for _ in range(10)]
            for waiter in greedy:
                send_what_goes([waiter.socket], packed("SMEMBERS", "large") * 1000)
            wait_for(lambda: stats(client, "stats", "evicted_clients"), "who never reads to be closed")
            client.lpush("q7.7", "m")
            assert crowd[7].reply() == [b"q7.7", b"m"]
        print(
            f"{CLIENTS} clients, {most} waiting operations after {took:.1f} s, {each / 1024:.2f} KiB each: "
            f"{found}\n… and ten that never read: {then}"
        )
        assert each < 4096
        assert then.peak - found.before < most * 4096 + LIMIT + BESIDE
        assert then.latency is not None
        assert then.latency.worst < WORST
        stack.close()
        wait_for(lambda: waiting() == 0, "nobody to wait any longer", timeout=TIMEOUT + 5 * SCALE)
        assert client.llen("large") == 16
    assert server.stop() == 0
