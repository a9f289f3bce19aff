"""Reservations of beanstalk and kestrel clients: whose they are, and what ends them."""

import pytest

from tests.support.faults import NO_SCRIPTS, stopped
from tests.support.module_servers import module_server
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, RESP, Protocol, Wire

shared_server = module_server(*LISTEN)


def test_a_close_of_an_open_read_that_failed_can_be_repeated(
    backend: Valkey, server: Server, client: Client
) -> None:
    client.rpush("q", "x", "y")
    kestrel = Wire(MEMCACHED, server)
    assert kestrel.ask(b"get q/open", lines=3)[1] == b"x"
    with NO_SCRIPTS(backend):
        assert kestrel.ask(b"get q/close/open")[0].startswith(b"SERVER_ERROR")
    assert kestrel.ask(b"get q/close/open", lines=3)[1] == b"y"
    kestrel.close()
    wait_for(lambda: client.lrange("q", 0, -1) == [b"y"], "only the second message to be back")


def test_a_full_tube_that_only_beanstalk_clients_use_has_room_again(server: Server, client: Client) -> None:
    client.execute_command("PRESSURE.CREATE", "q", "BOUND", 2, "OVERFLOW", "ERROR")
    put = b"put 1 0 300 1\r\nx"
    worker = Wire(BEANSTALK, server)
    worker.ask(b"use q", b"watch q", b"ignore default")
    assert worker.ask(put, put, put) == [b"INSERTED 1", b"INSERTED 2", b"OUT_OF_MEMORY"]
    assert worker.ask(b"reserve-with-timeout 0", lines=2) == [b"RESERVED 1 1", b"x"]
    assert worker.ask(put, b"delete 1") == [b"INSERTED 3", b"DELETED"]
    worker.close()


# Requests by which a worker reserves the oldest message of queue q, by protocol, with the lines of replies.
_RESERVE = {
    RESP: (b"PRESSURE.RESERVE q", 7),
    MEMCACHED: (b"get q/open", 3),
    BEANSTALK: (b"watch q\r\nignore default\r\nreserve", 4),
}


def _holding(server: Server, protocol: Protocol) -> Wire:
    """Return the connection of a worker that has reserved the oldest message of queue q."""
    worker = Wire(protocol, server)
    request, lines = _RESERVE[protocol]
    assert b"x" in worker.ask(request, lines=lines)
    return worker


@pytest.mark.parametrize(
    ("protocol", "end"),
    [(RESP, b"PRESSURE.ACK q 1"), (BEANSTALK, b"delete 1"), (MEMCACHED, b"get q/close")],
    ids=str,
)
def test_a_message_comes_back_if_its_end_failed_and_its_client_leaves(
    backend: Valkey, server: Server, client: Client, protocol: Protocol, end: bytes
) -> None:
    client.rpush("q", "x")
    worker = _holding(server, protocol)
    with NO_SCRIPTS(backend):
        assert worker.ask(end)[0].startswith((b"-BACKEND", b"INTERNAL_ERROR", b"SERVER_ERROR"))
    worker.close()
    wait_for(lambda: client.scard("q") == 1, "the message to be back")


@pytest.mark.parametrize(
    ("protocol", "request_"),
    [
        (BEANSTALK, b"quit"),
        (BEANSTALK, b"quitting"),
        (BEANSTALK, b"put 0 0 60 1\r\ny\r\nquit"),
        (RESP, b"QUIT"),
        (RESP, b"*x"),
        (RESP, b"PRESSURE.RESERVE q\r\nQUIT"),
        (MEMCACHED, b"quit"),
        (MEMCACHED, b"set q 0 0 x"),
        (MEMCACHED, b"get " + b"q" * 70_000),
    ],
    ids=lambda value: value[:20].decode().strip() if isinstance(value, bytes) else str(value),
)
def test_a_message_is_back_when_its_worker_has_seen_its_connection_end(
    server: Server, client: Client, protocol: Protocol, request_: bytes
) -> None:
    """The worker leaves its side open, as clients do until they have read the end of the stream."""
    client.rpush("q", "x")
    worker, other = _holding(server, protocol), Wire(BEANSTALK, server)
    other.ask(b"watch q", b"ignore default")
    worker.ask(request_, lines=0)
    worker.rest()
    assert b"x" in other.ask(b"reserve-with-timeout 0", lines=2)
    other.close()
    worker.close()


def test_a_quit_gives_up_what_the_commands_before_it_have_left(server: Server, client: Client) -> None:
    worker, other = Wire(BEANSTALK, server), Wire(BEANSTALK, server)
    for one in (worker, other):
        one.ask(b"use q", b"watch q", b"ignore default")
    worker.ask(*[b"put 1 0 300 1\r\nx"] * 4)
    pipeline = [b"reserve"] * 4 + [b"delete 1", b"bury 2 0", b"release 3 0 60", b"quit", b"delete 4"]
    worker.ask(*pipeline, lines=0)
    assert worker.rest().endswith(b"DELETED\r\nBURIED\r\nRELEASED\r\n")
    assert other.ask(b"reserve-with-timeout 0", lines=2) == [b"RESERVED 4 1", b"x"]
    assert other.ask(b"reserve-with-timeout 0") == [b"TIMED_OUT"]
    other.close()
    worker.close()


def test_a_reset_of_the_connection_gives_up_its_reservations(server: Server, client: Client) -> None:
    client.rpush("q", "x")
    worker, other = _holding(server, RESP), Wire(BEANSTALK, server)
    other.ask(b"watch q", b"ignore default")
    assert worker.ask(b"RESET") == [b"+RESET"]
    assert b"x" in other.ask(b"reserve-with-timeout 0", lines=2)
    other.close()
    worker.close()


def test_a_killed_client_has_given_up_its_reservations(server: Server, client: Client) -> None:
    client.rpush("q", "x")
    worker, other = _holding(server, BEANSTALK), Wire(RESP, server)
    other.ask(b"CLIENT KILL TYPE normal SKIPME yes", b"PRESSURE.RESERVE q", lines=0)
    assert other.ask(b"PING", lines=9)[6] == b"x"
    other.close()
    worker.close()


def test_an_evicted_client_gives_up_its_reservations_at_once(
    backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--max-buffered-bytes", "4MB")
    with server.client() as client:
        client.rpush("q", "x")
        worker = _holding(server, RESP)
        put = b"*3\r\n$5\r\nRPUSH\r\n$1\r\nr\r\n$30000000\r\n" + b"y" * 8_000_000
        assert worker.ask(put)[0].startswith(b"-OOM closing this connection")
        assert client.execute_command("PRESSURE.RESERVE", "q")[2] == b"x"
        worker.close()


def test_an_abort_is_answered_when_the_message_is_back(
    backend: Valkey, server: Server, client: Client
) -> None:
    client.rpush("q", "x")
    kestrel = _holding(server, MEMCACHED)
    with stopped(backend.process):
        kestrel.ask(b"get q/abort", lines=0)
        for _ in range(2):
            client.ping()
        assert not kestrel.has_reply()
    with backend.client() as direct:
        assert kestrel.ask(b"version", lines=2)[0] == b"END"
        assert direct.lrange("__pressure__:q", 0, -1) == [b"x"]
    kestrel.close()


@pytest.mark.parametrize("then", [b"get q/close", b"get q/abort"])
def test_a_message_whose_abort_failed_comes_back_whatever_the_client_does_then(
    backend: Valkey, server: Server, client: Client, then: bytes
) -> None:
    client.rpush("q", "x")
    kestrel = _holding(server, MEMCACHED)
    with NO_SCRIPTS(backend):
        assert kestrel.ask(b"get q/abort")[0].startswith(b"SERVER_ERROR")
    assert kestrel.ask(then) == [b"END"]
    wait_for(lambda: client.lrange("q", 0, -1) == [b"x"], "the message to be back")
    assert kestrel.ask(b"get q/open", lines=3)[1] == b"x"
    kestrel.close()
