"""Clients of any protocol that send invalid requests, are slow, do not read replies, or disconnect.

The server keeps serving other clients in bounded memory. The files test_hostile.py have
requests of one protocol, and test_idle_timeout.py says which clients are idle.
"""

import contextlib
import random
from collections.abc import Callable

import pytest

from tests.support.crowd import served
from tests.support.hostile import Victim, bounded_peak, leavings, settled, wait_until_alone
from tests.support.measures import MB, memory
from tests.support.module_servers import module_server
from tests.support.programs import Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, RESP, Protocol, Wire, each_protocol
from tests.support.waiters import packed, wait_for_blocked

SEED = 1


@each_protocol
def test_a_fatal_error_follows_the_replies_to_earlier_requests(victim: Victim, protocol: Protocol) -> None:
    evil = protocol.put(b"evil", b"x")
    for number, (request, reply) in enumerate(protocol.fatal.items()):
        hostile = victim.attack(protocol)
        hostile.send(evil * 2 + request + evil * 100)
        assert hostile.reply() == protocol.stored(2 * number + 1)
        assert hostile.reply() == protocol.stored(2 * number + 2)
        assert hostile.reply() == reply
        assert hostile.is_closed()
    assert victim.observer.llen("evil") == 2 * len(protocol.fatal)


BROWSERS = [
    b"POST / HTTP/1.1\r\n",
    b"post / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"Host: a\r\n\r\n",
]


@each_protocol
@pytest.mark.parametrize("head", BROWSERS)
def test_a_browser_s_request_executes_no_command(victim: Victim, protocol: Protocol, head: bytes) -> None:
    evil = protocol.put(b"evil", b"x")
    for sent in (head + evil, head + b"RPUSH evil x\r\n", (head + evil) * 1000, protocol.ping + head + evil):
        hostile = victim.attack(protocol)
        hostile.send(sent)
        hostile.rest()
        assert victim.observer.exists("evil") == 0


@each_protocol
def test_slow_senders_do_not_delay_other_clients(victim: Victim, protocol: Protocol) -> None:
    before = memory(victim.server)
    slow = [victim.attack(protocol) for _ in range(300)]
    with served(*victim.bystanders()):
        for byte in protocol.announce(30_000_000) + b"x" * 12:
            for connection in slow:
                connection.send(bytes([byte]))
    assert memory(victim.server) - before < 300 * 32 * 1024
    assert victim.observer.exists("q") == 0


@pytest.mark.slow
def test_a_client_that_reads_no_replies_is_read_no_further(victim: Victim) -> None:
    count = 1_500_000

    def commands() -> int:
        return int(victim.observer.info("stats")["total_commands_processed"])

    before = commands()
    with bounded_peak(victim.server, 16 * MB), served(*victim.bystanders()):
        hostile = victim.attack(MEMCACHED, small_buffers=True)
        # The kernel may take all of them.
        hostile.send_until_blocked(MEMCACHED.ping * count)
        assert commands() - before < count / 2


@each_protocol
def test_a_client_that_reads_late_gets_all_replies(victim: Victim, protocol: Protocol) -> None:
    messages = [b"%04d" % number + b"x" * 2000 for number in range(800)]
    victim.observer.rpush("q", *messages)
    hostile = victim.attack(protocol, small_buffers=True)
    with hostile.sending(protocol.get(b"q") * 800):
        wait_for(lambda: victim.observer.llen("q") < 800, "the first message to be taken")
        for message in messages:
            assert hostile.reply() == protocol.got(b"q", message)
    assert not hostile.has_reply()


@pytest.mark.parametrize("protocol", [RESP, MEMCACHED], ids=str)
def test_thousands_of_pipelined_gets_are_answered(victim: Victim, protocol: Protocol) -> None:
    hostile = victim.attack(protocol)
    with bounded_peak(victim.server, 32 * MB), hostile.sending(protocol.get(b"none") * 30_000):
        assert hostile.replies(30_000) == [protocol.nothing] * 30_000


@pytest.mark.parametrize("protocol", [MEMCACHED, BEANSTALK], ids=str)
def test_a_pipeline_of_runs_and_single_commands_is_answered_in_order(
    victim: Victim, protocol: Protocol
) -> None:
    rng, requests, replies, queued = random.Random(SEED), [], [], 0
    refused = list(protocol.refused.items())
    # Over beanstalk each question for the size is a call of its own.
    for _ in range(100 if protocol is BEANSTALK else 700):
        times = rng.choice([1, 1, 2, 40, 600])
        kind = rng.randrange(5)
        if kind == 0:
            requests.append(protocol.put(b"q", b"m") * times)
            replies += [protocol.stored(queued + number + 1) for number in range(times)]
            queued += times
        elif kind == 1:
            requests.append(protocol.get(b"q") * times)
            found = min(times, queued)
            replies += [protocol.got(b"q", b"m")] * found + [protocol.nothing] * (times - found)
            queued -= found
        elif kind == 2:
            requests.append(protocol.size(b"q") * times)
            replies += [protocol.sized(queued)] * times
        else:
            request, reply = refused[kind % len(refused)]
            requests.append(request * times)
            replies += [reply] * times
    hostile = victim.attack(protocol)
    with hostile.sending(b"".join(requests)):
        assert hostile.replies(len(replies)) == replies
    assert victim.observer.llen("q") == queued


# Protocol, request, the number of times it is sent, and the megabytes by which the server may grow.
UNREAD: list[tuple[Protocol, bytes, int, int]] = [
    (RESP, packed("SPOP", "q"), 1000, 64),
    (RESP, packed("SPOP", "q") + packed("SCARD", "q"), 1000, 64),
    (RESP, packed("SMEMBERS", "q"), 20, 400),
    (MEMCACHED, b"get q\r\n", 200, 64),
    (MEMCACHED, b"get q q\r\n", 200, 64),
    (BEANSTALK, BEANSTALK.get(b"q"), 200, 64),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "request_", "times", "allowed"), UNREAD, ids=[f"{case[0]}-{case[1]!r}" for case in UNREAD]
)
def test_a_client_that_does_not_read_takes_only_few_messages(
    victim: Victim, protocol: Protocol, request_: bytes, times: int, allowed: int
) -> None:
    observer = victim.observer
    for number in range(100):
        observer.rpush("q", b"%03d" % number + bytes(MB))
    hostile = victim.attack(protocol, small_buffers=True)
    with bounded_peak(victim.server, allowed * MB):
        hostile.send(request_ * times)
        settled(lambda: (observer.llen("q"), memory(victim.server) // MB))
        assert observer.ping()
    left = observer.llen("q")
    hostile.close()
    wait_until_alone(victim.observer)
    assert observer.llen("q") >= left > 90


@each_protocol
@leavings
def test_an_incomplete_request_is_not_executed(
    victim: Victim, protocol: Protocol, leave: Callable[[Wire], object]
) -> None:
    request = protocol.put(b"q", b"a\r\nbcde")
    for length in range(1, len(request)):
        client = Wire(protocol, victim.server)
        client.send(request[:length])
        leave(client)
    wait_until_alone(victim.observer)
    assert victim.observer.exists("q") == 0


# By name: a request that waits for a message of `q`.
WAITS = {
    "open": (MEMCACHED, b"get q/close/open/t=60000\r\n"),
    "peek": (MEMCACHED, b"get q/peek/t=60000\r\n"),
    "one tube": (BEANSTALK, BEANSTALK.get_waiting(b"q")),
    "two tubes": (BEANSTALK, b"watch q\r\nreserve\r\n"),
    "until a timeout": (BEANSTALK, b"watch q\r\nignore default\r\nreserve-with-timeout 4294967295\r\n"),
}


@leavings
@pytest.mark.parametrize("name", WAITS)
def test_a_client_that_leaves_while_it_waits_takes_nothing(
    victim: Victim, name: str, leave: Callable[[Wire], object]
) -> None:
    protocol, request = WAITS[name]
    waiting = [Wire(protocol, victim.server) for _ in range(3)]
    for client in waiting:
        client.send(request)
    wait_for_blocked(victim.observer, 3)
    for client in waiting:
        leave(client)
    wait_until_alone(victim.observer)
    assert victim.observer.info("clients")["blocked_clients"] == 0
    with Wire(protocol, victim.server) as client:
        client.put(b"q", b"m")
        client.send(protocol.get_waiting(b"q"))
        assert client.message() == b"m"


@each_protocol
def test_a_client_beyond_the_maximum_is_refused(
    backend: Valkey, start_server: StartServer, protocol: Protocol
) -> None:
    server = start_server("--backend", backend.url, "--max-clients", "3", *LISTEN)
    admitted = [Wire(protocol, server) for _ in range(3)]
    for client in admitted:
        assert protocol.pong.fullmatch(client(protocol.ping))
    for _ in range(20):
        with Wire(protocol, server) as refused:
            refused.send(protocol.put(b"q", b"m"))
            # The connection is reset if the request arrives after the server has closed it.
            assert refused.rest() in (protocol.too_many_clients + b"\r\n", b"")
    with Wire(protocol, server) as refused:
        assert refused.rest() == protocol.too_many_clients + b"\r\n"
    assert admitted[0](protocol.size(b"q")) == protocol.sized(0)
    admitted[1].close()

    def is_admitted() -> bool:
        with Wire(protocol, server) as client, contextlib.suppress(ConnectionError):
            return protocol.pong.fullmatch(client(protocol.ping)) is not None
        return False

    wait_for(is_admitted, "a client to be admitted after another has left")
    server.end_well()


# A server that closes idle connections after a second.
impatient = module_server("--idle-timeout", "1", *LISTEN)


@pytest.mark.slow
@pytest.mark.parametrize("count", [60_000, 1_000_000], ids=["server reads all", "server stops reading"])
def test_a_client_that_never_reads_is_closed_as_idle(backend: Valkey, impatient: Server, count: int) -> None:
    """As in Redis, a client is busy only while it reads or sends."""
    hostile = Wire(RESP, impatient, small_buffers=True)
    hostile.send_until_blocked(packed("ECHO", b"x" * 100) * count)

    def connected() -> int:
        with impatient.client() as client:
            return int(client.info("clients")["connected_clients"])

    wait_for(lambda: connected() == 1, "the client that never reads to be closed")
    hostile.close()
