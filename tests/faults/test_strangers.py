"""Clients that do not log in, although they must: they keep out no client that does."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.programs import StartServer, Valkey, wait_for
from tests.support.protocols import LISTEN, Protocol, Wire, each_protocol
from tests.support.waiters import Waiter, packed

PASSWORD = "secret"
# Ten arguments of 16 KiB: the most that Redis reads before a login. The end is missing.
_ARGUMENT = b"$16384\r\n" + b"x" * 16384 + b"\r\n"
HALF_REQUEST = b"*10\r\n" + _ARGUMENT * 9 + _ARGUMENT[:16000]


@pytest.fixture
def options(backend: Valkey, tmp_path: Path) -> tuple[str, ...]:
    """Options of a server with a password."""
    (tmp_path / "password").write_text(PASSWORD)
    return ("--backend", backend.url, "--password-file", str(tmp_path / "password"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_strangers_with_half_requests_throttle_nobody(
    start_server: StartServer, options: tuple[str, ...], stack: ExitStack
) -> None:
    # Together they have sent 52 of 64 MB, more than the part above which clients are throttled.
    server = start_server(*options, "--max-buffered-bytes", "64mb")
    client = stack.enter_context(server.client(password=PASSWORD))
    request = packed("RPUSH", "q", bytes(1 << 20))
    with Waiter(server.port) as waiter:
        assert waiter("AUTH", PASSWORD) == b"OK"
        waiter.socket.sendall(request[: 1 << 19])
        for _ in range(330):
            stranger = stack.enter_context(Waiter(server.port))
            stranger.socket.sendall(HALF_REQUEST)
        wait_for(lambda: client.info("stats")["evicted_clients"] >= 300, "strangers to be disconnected")
        memory = client.info("memory")
        assert 1 << 20 < memory["buffered_bytes"] < 5 << 20
        waiter.socket.sendall(request[1 << 19 :])
        assert waiter.reply() == 1
    assert "throttling" not in server.log


@each_protocol
def test_a_stranger_leaves_its_place_to_a_new_client(
    start_server: StartServer, options: tuple[str, ...], stack: ExitStack, protocol: Protocol
) -> None:
    server = start_server(*options, *LISTEN, "--max-clients", "10")
    with server.client(password=PASSWORD) as client:
        client.ping()
        strangers = [stack.enter_context(Wire(protocol, server)) for _ in range(9)]
        for one in strangers:
            assert one(protocol.get(b"q")) == protocol.unauthenticated

        def is_admitted() -> bool:
            """Return whether a new client can log in: strangers keep their places for up to two seconds."""
            late = stack.enter_context(Wire(protocol, server))
            reply = late(protocol.log_in(b"default", PASSWORD.encode()))
            assert reply in (protocol.logged_in, protocol.too_many_clients)
            return reply == protocol.logged_in

        wait_for(is_admitted, "a new client to be admitted")
        assert strangers[0].is_closed()
        assert strangers[8](protocol.get(b"q")) == protocol.unauthenticated
        assert client.ping()
    assert "all connections are in use (--max-clients), and it had not logged in" in server.log


def test_clients_that_have_logged_in_keep_their_places(
    start_server: StartServer, options: tuple[str, ...], stack: ExitStack
) -> None:
    server = start_server(*options, "--max-clients", "3")
    clients = [stack.enter_context(Waiter(server.port)) for _ in range(3)]
    for one in clients:
        assert one("AUTH", PASSWORD) == b"OK"
    assert one("RESET") == b"RESET"
    with socket.create_connection(("127.0.0.1", server.port)) as late:
        assert late.recv(100).startswith(b"-ERR max number of clients reached")
    assert one("AUTH", PASSWORD) == b"OK"
    assert [one("PING") for one in clients] == [b"PONG"] * 3
