"""--idle-timeout: which clients count as idle, and which do not although they send nothing."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic

import pytest

from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey, wait_for
from tests.support.waiters import packed

LISTEN = ("--listen", "memcached://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0")
# By name: the listener, a request, and what ends the reservation. A message is in the queue of that name.
WORKERS = {
    "reserved": (
        "resp",
        packed("PRESSURE.RESERVE", "reserved"),
        packed("PRESSURE.ACK", "reserved", "FROM", 1, "TO", 10_000),
    ),
    "beanstalk": ("beanstalk", b"watch beanstalk\r\nreserve\r\n", b"ignore default\r\nquit\r\n"),
    "open": ("memcached", b"get open/open\r\n", b"get open/close\r\n"),
    "waiting": ("resp", packed("PING") + packed("BLPOP", "none", 0), b""),
    "monitor": ("resp", packed("MONITOR"), packed("QUIT")),
    # A reservation whose time is over is none.
    "late": ("resp", packed("PRESSURE.RESERVE", "late", "TTR", 1), b""),
    "unfinished": ("resp", packed("PING") + packed("PING")[:-1], b""),
    "idle": ("resp", packed("PING"), b""),
}
IDLE = ("late", "unfinished", "idle")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def has_ended(connected: socket.socket) -> bool:
    """Return whether the server has closed the connection; read what it has sent before."""
    connected.settimeout(0)
    try:
        while connected.recv(4096):
            pass
    except BlockingIOError:
        return False
    return True


def wait_for_end(client: Client, connected: socket.socket, queue: str) -> None:
    """Wait until the server has closed the connection. The client itself must not become idle."""
    wait_for(lambda: client.ping() and has_ended(connected), f"the end of '{queue}'")


def test_a_client_that_waits_monitors_or_has_reserved_something_is_not_idle(
    start_server: StartServer, backend: Valkey, opened: ExitStack
) -> None:
    server: Server = start_server("--backend", backend.url, "--idle-timeout", "1", *LISTEN)
    with server.client() as client:
        clients = {}
        for queue, (listener, request, _) in WORKERS.items():
            client.rpush(queue, "m")
            address = ("127.0.0.1", server.port_of(listener))
            clients[queue] = opened.enter_context(socket.create_connection(address, TIMEOUT))
            clients[queue].sendall(request)
            clients[queue].recv(4096)
        for queue in IDLE:
            wait_for_end(client, clients[queue], queue)
        working = WORKERS.keys() - set(IDLE)
        assert [queue for queue in working if has_ended(clients[queue])] == []
        client.rpush("none", "m")
        for queue in working:
            clients[queue].sendall(WORKERS[queue][2])
        for queue in working:
            wait_for_end(client, clients[queue], queue)


def test_a_client_is_not_idle_when_its_wait_ends(
    start_server: StartServer, backend: Valkey, opened: ExitStack
) -> None:
    server: Server = start_server("--backend", backend.url, "--idle-timeout", "2")
    requests = (b"PING\r\n", b"BLPOP q 0\r\n", b"BLPOP q r 0\r\n")
    with server.client() as client:
        clients = [
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), TIMEOUT))
            for _ in requests
        ]
        for connected, request in zip(clients, requests, strict=True):
            connected.sendall(request)
        wait_for_end(client, clients[0], "idle")
        client.rpush("q", "m", "m")
        since = monotonic()
        for connected in clients[1:]:
            wait_for_end(client, connected, "waiting")
            assert monotonic() - since >= 2
