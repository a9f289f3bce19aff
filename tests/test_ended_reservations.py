"""Reservations of beanstalk and kestrel clients: whose they are, and what ends them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.faults import NO_SCRIPTS
from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey, wait_for

BEANSTALK, MEMCACHED = "beanstalk", "memcached"


class Connection:
    """A connection that sends lines and reads lines."""

    def __init__(self, server: Server, scheme: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port_of(scheme)), TIMEOUT)
        self._replies = self._socket.makefile("rb")

    def __call__(self, *requests: bytes, lines: int = 1) -> list[bytes]:
        """Send requests in one write, and return so many lines of replies for each."""
        self._socket.sendall(b"".join(request + b"\r\n" for request in requests))
        return [self._replies.readline().rstrip() for _ in range(lines * len(requests))]

    def close(self) -> None:
        self._replies.close()
        self._socket.close()


@pytest.fixture
def server(backend: Valkey, start_server: StartServer) -> Server:
    listeners = [
        word for scheme in (BEANSTALK, MEMCACHED) for word in ("--listen", f"{scheme}://127.0.0.1:0")
    ]
    return start_server("--backend", backend.url, *listeners)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as connected:
        yield connected


def test_a_client_that_watches_two_tubes_owns_the_jobs_it_reserves(server: Server, client: Client) -> None:
    worker = Connection(server, BEANSTALK)
    worker(b"use a", b"watch a", b"watch b")
    assert worker(*[b"put 1 0 300 1\r\nx"] * 3) == [b"INSERTED 1", b"INSERTED 2", b"INSERTED 3"]
    worker(*[b"reserve-with-timeout 0"] * 3, lines=2)
    assert worker(b"touch 1", b"bury 1 5", b"release 2 5 0") == [b"TOUCHED", b"BURIED", b"RELEASED"]
    worker.close()
    wait_for(lambda: client.lrange("a", 0, -1) == [b"x", b"x"], "both jobs to be ready")


def test_a_job_comes_back_if_its_deletion_failed_and_its_client_leaves(
    backend: Valkey, server: Server, client: Client
) -> None:
    worker = Connection(server, BEANSTALK)
    worker(b"use q", b"watch q", b"ignore default", b"put 1 0 300 1\r\nx")
    assert worker(b"reserve-with-timeout 0", lines=2) == [b"RESERVED 1 1", b"x"]
    with NO_SCRIPTS(backend):
        assert worker(b"delete 1") == [b"INTERNAL_ERROR"]
    worker.close()
    wait_for(lambda: client.scard("q") == 1, "the job to be ready")


def test_an_open_read_comes_back_if_its_close_failed_and_its_client_leaves(
    backend: Valkey, server: Server, client: Client
) -> None:
    client.rpush("q", "x")
    kestrel = Connection(server, MEMCACHED)
    assert kestrel(b"get q/open", lines=3) == [b"VALUE q/open 0 1", b"x", b"END"]
    with NO_SCRIPTS(backend):
        assert kestrel(b"get q/close")[0].startswith(b"SERVER_ERROR")
    kestrel.close()
    wait_for(lambda: client.scard("q") == 1, "the message to be back")


def test_a_close_of_an_open_read_that_failed_can_be_repeated(
    backend: Valkey, server: Server, client: Client
) -> None:
    client.rpush("q", "x", "y")
    kestrel = Connection(server, MEMCACHED)
    assert kestrel(b"get q/open", lines=3)[1] == b"x"
    with NO_SCRIPTS(backend):
        assert kestrel(b"get q/close/open")[0].startswith(b"SERVER_ERROR")
    assert kestrel(b"get q/close/open", lines=3)[1] == b"y"
    kestrel.close()
    wait_for(lambda: client.lrange("q", 0, -1) == [b"y"], "only the second message to be back")


def test_a_full_tube_that_only_beanstalk_clients_use_has_room_again(server: Server, client: Client) -> None:
    client.execute_command("PRESSURE.CREATE", "q", "BOUND", 2, "OVERFLOW", "ERROR")
    put = b"put 1 0 300 1\r\nx"
    worker = Connection(server, BEANSTALK)
    worker(b"use q", b"watch q", b"ignore default")
    assert worker(put, put, put) == [b"INSERTED 1", b"INSERTED 2", b"OUT_OF_MEMORY"]
    assert worker(b"reserve-with-timeout 0", lines=2) == [b"RESERVED 1 1", b"x"]
    assert worker(put, b"delete 1") == [b"INSERTED 3", b"DELETED"]
    worker.close()
