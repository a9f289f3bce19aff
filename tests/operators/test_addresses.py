"""The addresses on which a server listens: clients of IPv4 and IPv6 reach it by each of them."""

import re
import socket

import pytest

from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, StartServer, Valkey


def is_served(host: str, port: int) -> bool:
    with socket.create_connection((host, port), TIMEOUT) as client:
        client.sendall(b"PING\r\n")
        return client.recv(100) == b"+PONG\r\n"


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("host", ["localhost", "[::]"])
def test_clients_of_both_families_reach_a_listener(
    start_server: StartServer, backend: Valkey, host: str, workers: str
) -> None:
    listen = ("--listen", f"resp://{host}:0", "--http", f"http://{host}:0")
    log = start_server("--backend", backend.url, "--workers", workers, *listen).log
    found = re.search(rf"listening on resp://{re.escape(host)}:(\d+)", log)
    assert found
    assert all(is_served(address, int(found[1])) for address in ("127.0.0.1", "::1"))
    found = re.search(rf"listening on http://{re.escape(host)}:(\d+)", log)
    assert found
    for address in ("127.0.0.1", "::1"):
        socket.create_connection((address, int(found[1])), TIMEOUT).close()


def test_all_of_ipv6_goes_with_all_of_ipv4_and_the_same_port(
    start_server: StartServer, backend: Valkey
) -> None:
    (port,) = free_ports(1)
    start_server(
        "--backend", backend.url, "--listen", f"resp://[::]:{port}", "--listen", f"resp://0.0.0.0:{port}"
    )
    assert all(is_served(address, port) for address in ("127.0.0.1", "::1"))
