"""Overload: the server throttles the heaviest clients, then evicts them, and keeps its memory bounded.

PRESSURE_OVERLOAD multiplies the number of waiting clients. With 50, 10 000 clients wait on 20 queues each,
which needs `ulimit -n 20000`.
"""

import contextlib
import os
import re
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from tests.support.crowd import Latency, served
from tests.support.measures import MB, memory, reset_peak
from tests.support.programs import TIMEOUT, Client, Server, StartServer, StartValkey, Valkey, join, wait_for
from tests.support.protocols import LISTEN, RESP, Protocol, Wire, each_protocol
from tests.support.waiters import Waiter, Words, is_refused, packed

SCALE = int(os.environ.get("PRESSURE_OVERLOAD", "1"))
CLIENTS = 200 * SCALE
QUEUES_EACH = 20
LIMIT = 64 * MB
MESSAGE = 8 * MB
# The memory that the account does not count: up to four copies of a request, three of a reply, and freed
# memory that the process still holds.
UNCOUNTED = 12 * MESSAGE
# The longest wait of a bystander, in seconds: the backend may have to read 16 MB thirty times meanwhile.
WORST = 8.0


@dataclass
class Figures:
    """The server's memory in bytes around a load, and the latency of a bystander meanwhile."""

    before: int = 0
    peak: int = 0
    after: int = 0
    latency: Latency = field(default_factory=Latency)

    @property
    def grown(self) -> int:
        return self.peak - self.before


@contextmanager
def measured(server: Server, load: str) -> Iterator[Figures]:
    """Measure what the block does, beside a bystander. Print the figures at the end."""
    found = Figures()
    with served(Wire(RESP, server)) as found.latency:
        reset_peak(server)
        found.before = memory(server)
        yield found
        found.peak, found.after = memory(server, "VmHWM"), memory(server)
    sizes = " → ".join(f"{size / MB:.0f}" for size in (found.before, found.peak, found.after))
    print(f"{load}: {sizes} MB; a put and a get of another client: {found.latency}")


@pytest.fixture
def limited(backend: Valkey, start_server: StartServer) -> Server:
    """A server that buffers little."""
    return start_server(
        "--backend", backend.url, "--max-message-bytes", str(MESSAGE), "--max-buffered-bytes", str(LIMIT)
    )


def stat(client: Client, section: str, name: str) -> int:
    """Return a number from INFO."""
    return int(client.info(section)[name])


def buffered(client: Client) -> int:
    """Return the number of bytes that the server buffers."""
    return stat(client, "memory", "buffered_bytes")


def wait_for_evicted(client: Client, count: int, timeout: float = TIMEOUT) -> None:
    """Return when the server has evicted at least `count` clients."""
    wait_for(
        lambda: stat(client, "stats", "evicted_clients") >= count, f"{count} clients to be evicted", timeout
    )


def waiting(client: Client) -> int:
    """Return the number of waiting operations."""
    return stat(client, "clients", "waiting_operations")


def wait_until_freed(client: Client) -> None:
    """Return when the server buffers nothing."""
    wait_for(lambda: buffered(client) == 0, "all buffers to be freed")


def fill(client: Client, name: str, megabytes: int) -> None:
    """Put messages of one MB and a few bytes, which begin with their numbers."""
    for number in range(megabytes):
        client.rpush(name, b"%03d" % number + bytes(MB))


def send_until_blocked(sockets: list[socket.socket], data: bytes) -> None:
    """Send the data on each socket until none has accepted bytes for a second."""
    sent = dict.fromkeys(sockets, 0)
    numbers = {connected.fileno(): connected for connected in sockets}
    writable = select.poll()
    for number, connected in numbers.items():
        connected.setblocking(False)
        writable.register(number, select.POLLOUT)
    while numbers and (ready := writable.poll(1000)):
        for number, _ in ready:
            connected = numbers[number]
            is_closed = False
            try:
                sent[connected] += connected.send(data[sent[connected] : sent[connected] + MB])
            except BlockingIOError:
                continue
            except ConnectionError:
                is_closed = True
            if is_closed or sent[connected] == len(data):
                writable.unregister(number)
                del numbers[number]


class Unread(NamedTuple):
    """Clients that send a command each, with the number of the queue in braces, and do not read the reply.

    Each queue has `megabytes` messages of one MB. At least `evicted` clients lose their connection, and at
    most `gone` messages are lost in the kernel's buffers.
    """

    command: str
    megabytes: int
    queues: int
    clients: int
    evicted: int
    gone: int = 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(Unread("SMEMBERS q{}", 16, 30, 30, 24), id="clients that ask for 16 MB"),
        pytest.param(Unread("SMEMBERS q{}", 16, 1, 50, 40), id="clients that ask for the same 16 MB"),
        pytest.param(Unread("LPOP q{} 8", 8, 30, 30, 11, gone=8), id="clients that take 8 MB"),
    ],
)
def test_clients_that_request_much_and_do_not_read_are_evicted(limited: Server, load: Unread) -> None:
    with limited.client() as client, ExitStack() as stack:
        queues = [f"q{number}" for number in range(load.queues)]
        for queue in queues:
            fill(client, queue, load.megabytes)
        with measured(limited, f"{load.clients} clients that do not read: {load.command}") as found:
            for number in range(load.clients):
                words = load.command.format(number % load.queues).split()
                stack.enter_context(Waiter(limited.port)).send(*words)
            wait_for_evicted(client, load.evicted)
        assert found.grown < LIMIT + UNCOUNTED
        assert buffered(client) <= LIMIT
        assert found.latency.worst < WORST * load.clients / 30
        stack.close()
        wait_until_freed(client)
        left = load.queues * load.megabytes - load.gone
        wait_for(lambda: sum(map(client.llen, queues)) >= left, "undelivered messages to be put back")


@pytest.mark.slow
def test_large_messages_that_go_back_make_room_before_others_are_taken(limited: Server) -> None:
    with limited.client(socket_timeout=3 * TIMEOUT) as client, ExitStack() as stack:
        for number in range(60):
            client.rpush(f"q{number}", bytes(MESSAGE))
        reset_peak(limited)
        before = memory(limited)
        for number in range(60):
            stack.enter_context(Waiter(limited.port)).send("LPOP", f"q{number}")
        # No bystander: the backend passes on a GB before it would be served.
        wait_for(
            lambda: stat(client, "stats", "evicted_clients") >= 40,
            "40 clients to be evicted",
            3 * TIMEOUT,
        )
        grown = memory(limited, "VmHWM") - before
    print(f"60 clients that take 8 MB and do not read: + {grown / MB:.0f} MB")
    assert grown < LIMIT + UNCOUNTED


@pytest.mark.slow
def test_clients_with_half_requests_are_throttled_and_then_evicted(limited: Server) -> None:
    with limited.client() as client, ExitStack() as stack:
        waiters = [stack.enter_context(Waiter(limited.port)) for _ in range(40)]
        with measured(limited, "40 half messages") as found:
            # How much of it the kernel takes is not up to the server.
            send_until_blocked(
                [waiter.socket for waiter in waiters], packed("LPUSH", "q", bytes(MESSAGE))[:-9]
            )
            wait_for(lambda: stat(client, "clients", "throttled_clients") > 30, "clients to be throttled")
            held = buffered(client)
            # The client whose turn it is sends nothing.
            wait_for_evicted(client, 1, timeout=30)
        print(f"{held / MB:.0f} MB buffered")
        assert LIMIT * 0.7 < held <= LIMIT
        assert found.grown < LIMIT + UNCOUNTED
        assert found.latency.worst < WORST
        assert re.search(r"WARNING.*throttling clients with more than", limited.log)
        assert limited.log.count("WARNING") < 10


@pytest.mark.alone
def test_large_messages_of_many_clients_are_only_throttled(limited: Server) -> None:
    replies: list[Any] = []
    # No message is complete before, so that buffers fill however slow the clients are.
    is_throttling = threading.Event()

    def put(number: int) -> None:
        with Waiter(limited.port) as waiter:
            waiter.socket.settimeout(None)
            request = packed("LPUSH", f"q{number % 7}", bytes(7 * MB))
            waiter.socket.sendall(request[:-1])
            is_throttling.wait(TIMEOUT)
            waiter.socket.sendall(request[-1:])
            replies.append(waiter.reply(60))

    with limited.client() as client, measured(limited, "60 messages of 7 MB at once") as found:
        threads = [threading.Thread(target=put, args=(number,), daemon=True) for number in range(60)]
        for thread in threads:
            thread.start()
        wait_for(lambda: "throttling clients with more than" in limited.log, "clients to be throttled")
        is_throttling.set()
        for thread in threads:
            join(thread, 3 * TIMEOUT)
        assert stat(client, "stats", "evicted_clients") == 0
        assert sum(client.llen(f"q{number}") for number in range(7)) == 60
    assert len(replies) == 60
    assert all(isinstance(reply, int) for reply in replies)
    assert found.grown < LIMIT + UNCOUNTED


@each_protocol
def test_an_evicted_client_receives_the_reason(
    backend: Valkey, start_server: StartServer, protocol: Protocol
) -> None:
    server = start_server("--backend", backend.url, "--max-buffered-bytes", "1mb", *LISTEN)
    with server.client() as client, Wire(protocol, server) as sender:
        assert stat(client, "memory", "max_buffered_bytes") == MB
        sender.put(b"small", b"m")
        send_until_blocked([sender.socket], protocol.put(b"q", bytes(3 * MB)))
        sender.socket.settimeout(TIMEOUT)
        reason = sender.reply()
        assert reason.startswith(protocol.out_of_memory)
        assert b"--max-buffered-bytes" in reason or not protocol.has_reasons
        assert sender.is_closed()
        assert client.llen("q") == 0
        assert stat(client, "stats", "evicted_clients") == 1
        wait_until_freed(client)
        assert client.sadd("q", "m") == 1


@pytest.mark.slow
def test_requests_after_one_that_waits_count_as_memory(limited: Server) -> None:
    # Parsed, a read of tiny commands takes fifty times its size.
    with limited.client() as client, ExitStack() as stack:
        with measured(limited, "60 clients with 30 000 commands after one that waits") as found:
            for _ in range(60):
                waiter = stack.enter_context(Waiter(limited.port))
                with contextlib.suppress(ConnectionError):
                    waiter.socket.sendall(packed("BLPOP", "never", 0) + b"a\n" * 30_000)
            wait_for_evicted(client, 1)
        assert found.grown < 2 * LIMIT


def test_a_single_client_may_fill_the_limit_with_a_transaction(limited: Server) -> None:
    # Above three quarters of the limit the client is throttled, and gets its turn.
    with limited.client() as client, Waiter(limited.port) as waiter:
        waiter("MULTI")
        for number in range(60):
            assert waiter("SADD", "q", b"%02d" % number + bytes(MB - 2)) == b"QUEUED"
        assert waiter("EXEC") == [1] * 60
        assert client.scard("q") == 60


READ, NAMES, PING = ("LRANGE", "q", 0, -1), ("KEYS", "*"), ("PING",)
# By name: commands of a transaction, how many of its first replies are whole (the others are errors), and
# whether a put after these commands is done.
TRANSACTIONS: dict[str, tuple[Sequence[Words], int, bool]] = {
    # Four replies of 16 MB exceed 64 MiB.
    "on one queue": ([READ] * 20 + [("SPOP", "q")], 4, True),
    # KEYS replies with 4 MB.
    "on no queue": ([NAMES] * 30, 17, False),
    # PING divides the transaction into steps with a call each.
    "in several steps": ([READ, PING] * 8 + [("SPOP", "q")], 7, False),
}


@pytest.mark.parametrize(("commands", "whole", "puts"), TRANSACTIONS.values(), ids=TRANSACTIONS)
def test_the_replies_of_a_transaction_have_a_limit(
    limited: Server, commands: Sequence[Words], whole: int, puts: bool
) -> None:
    with limited.client() as client, Waiter(limited.port) as waiter:
        fill(client, "q", 16)
        expected: dict[Words, Any] = {READ: client.lrange("q", 0, -1), PING: b"PONG"}
        if NAMES in commands:
            names = [b"%03d" % number + b"n" * 8000 for number in range(500)]
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.rpush(name, "m")
            pipeline.execute()
            expected[NAMES] = [*names, b"q"]
        waiter("MULTI")
        for words in (*commands, ("SADD", "q", "m")):
            assert waiter(*words) == b"QUEUED"
        *replies, last = waiter("EXEC")
        for words, reply in zip(commands, replies[:whole], strict=False):
            assert (sorted(reply) if words == NAMES else reply) == expected[words]
        assert all(is_refused(reply, "ERR") for reply in replies[whole:])
        assert last == 1 if puts else is_refused(last, "ERR")
        assert client.scard("q") == 16 + puts


def test_a_reply_that_was_read_in_part_is_put_back_when_its_client_leaves(limited: Server) -> None:
    # Each call takes one MB, so the client leaves between the calls of its command.
    with limited.client() as client:
        for number in range(16):
            client.rpush("q", b"%02d" % number + bytes(MB))
        for _ in range(10):
            with Waiter(limited.port) as waiter:
                waiter.send("LPOP", "q", 16)
                wait_for(lambda: client.llen("q") < 16, "messages to be taken")
                waiter.reset()
            wait_for(lambda: client.llen("q") == 16, "all messages to be put back")
        assert [message[:2] for message in client.lrange("q", 0, -1)] == [b"%02d" % n for n in range(16)]


def test_the_number_of_waiting_operations_is_limited(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--max-waiting", "100")
    with server.client() as client, ExitStack() as stack:
        waiters = [stack.enter_context(Waiter(server.port)) for _ in range(10)]
        for number, waiter in enumerate(waiters):
            waiter.send("BLPOP", *[f"q{number}.{queue}" for queue in range(10)], 0)
        wait_for(lambda: waiting(client) == 100, "all to wait")
        with Waiter(server.port) as late:
            for command in (("BLPOP", "q", 0), ("BLPOP", "q", "r", 0), ("BLMPOP", 5, 1, "q", "LEFT")):
                reply = late(*command)
                assert is_refused(reply, "OVERLOAD"), reply
            assert late("LPUSH", "q", "m") == 1
            assert late("BLPOP", "q", 0) == [b"q", b"m"]  # does not have to wait
            client.execute_command("PRESSURE.CREATE", "full", "BOUND", 1)
            assert late("LPUSH", "full", "m") == 1
            assert is_refused(late("LPUSH", "full", "n"), "OVERLOAD")
            assert client.lpush("q3.3", "m") == 1
            assert waiters[3].reply() == [b"q3.3", b"m"]
            wait_for(lambda: waiting(client) == 90, "its other operations to end")
            late.send("BLPOP", "q", 0)
            wait_for(lambda: waiting(client) == 91, "it to wait")
            assert client.lpush("q", "n") == 1
            assert late.reply() == [b"q", b"n"]
        for waiter in waiters[:5]:
            waiter.reset()
        wait_for(lambda: waiting(client) <= 50, "operations of closed clients to end")
        assert client.llen("full") == 1


@pytest.fixture
def _open_files() -> Iterator[None]:
    """Raise the limit on open files for this process and the programs that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, CLIENTS + 1000)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("_open_files")
def test_a_waiting_crowd_is_served_beside_clients_that_never_read(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
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
        with measured(server, f"{CLIENTS} clients with {most} waiting operations") as found:
            began = time.monotonic()
            for number, waiter in enumerate(crowd):
                waiter.send("BLPOP", *[f"q{number}.{queue}" for queue in range(QUEUES_EACH)], 0)

            wait_for(lambda: waiting(client) == most, "all to wait", timeout=60 + 10 * SCALE)
            took = time.monotonic() - began
            each = (memory(server) - found.before) / most
        with measured(server, "and 10 clients that never read") as then:
            with Waiter(server.port) as late:
                assert is_refused(late("BLPOP", "one.more", 0), "OVERLOAD")
            for waiter in [stack.enter_context(Waiter(server.port)) for _ in range(10)]:
                send_until_blocked([waiter.socket], packed("SMEMBERS", "large") * 1000)
            wait_for_evicted(client, 1)
            client.lpush("q7.7", "m")
            assert crowd[7].reply() == [b"q7.7", b"m"]
        print(f"all operations waited after {took:.1f} s; each takes {each / 1024:.2f} KiB")
        assert each < 4096
        assert then.peak - found.before < most * 4096 + LIMIT + UNCOUNTED
        assert then.latency.worst < WORST
        stack.close()
        wait_for(lambda: waiting(client) == 0, "no operation to wait", timeout=TIMEOUT + 5 * SCALE)
        assert client.llen("large") == 16
    assert server.stop() == 0
