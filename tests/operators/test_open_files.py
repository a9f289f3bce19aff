"""A server that may open few files: it says so, and serves as many clients as it can, and no more."""

import http.client
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.programs import TIMEOUT, BackgroundProgram, StartServer, Valkey, run_here, wait_for
from tests.support.protocols import LISTEN, Protocol, each_protocol

# At 1 024 open files, HTTP connections alone could take them all.
CLIENTS, HTTP_CONNECTIONS = 480, 240


def command(limit: int, *options: str) -> list[str]:
    """Return the command of a server with this limit of open files."""
    serve = [sys.executable, "-m", "pressure_server", "serve", "--listen", "resp://127.0.0.1:0", *options]
    return ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", *serve]


def port_of(log: str, scheme: str) -> int:
    found = re.search(rf"listening on {scheme}://127\.0\.0\.1:(\d+)", log)
    assert found, log
    return int(found[1])


def readiness(port: int) -> tuple[int, str]:
    """Return the status and the text of /readyz."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def is_served(client: socket.socket) -> bool:
    client.sendall(b"PING\r\n")
    return client.recv(100) == b"+PONG\r\n"


@pytest.mark.slow
def test_with_1024_open_files_and_http_clients_come_in(backend: Valkey, tmp_path: Path) -> None:
    options = ("--http", "http://127.0.0.1:0", "--backend", backend.url)
    with BackgroundProgram(tmp_path / "log", *command(1024, *options)) as server, ExitStack() as opened:
        server.wait_for("ready: ")
        assert f"serving {CLIENTS} clients, {HTTP_CONNECTIONS} HTTP connections at most" in server.output
        port, console = port_of(server.output, "resp"), port_of(server.output, "http")

        def client() -> socket.socket:
            return opened.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT))

        assert readiness(console) == (200, "ready\n")
        # As many HTTP connections as there may be leave all files for clients.
        for _ in range(HTTP_CONNECTIONS - 1):
            opened.enter_context(socket.create_connection(("127.0.0.1", console), TIMEOUT))
        clients = [client() for _ in range(CLIENTS)]
        assert all(map(is_served, clients))
        status, reason = readiness(console)
        assert status == 503
        assert reason.startswith(f"{CLIENTS} clients connected, which is the limit (--max-clients)")
        assert client().recv(100) == b"-ERR max number of clients reached\r\n"
        clients[0].close()
        wait_for(lambda: readiness(console) == (200, "ready\n"), "the server to be ready")
        assert is_served(client())


@each_protocol
def test_a_server_with_all_its_clients_is_alive_and_not_ready(
    start_server: StartServer, backend: Valkey, protocol: Protocol
) -> None:
    server = start_server("--backend", backend.url, "--max-clients", "1", *LISTEN)
    ping = ("ping", "--listen", f"{protocol.name}://127.0.0.1:{server.port_of(protocol.name)}")
    assert run_here(*ping, "--ready").returncode == 0
    with server.client() as client:
        assert client.execute_command("PRESSURE.READY") == b"OK"
        assert run_here(*ping).returncode == 0
        assert run_here(*ping, "--ready").returncode == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_with_too_few_open_files_the_start_fails_with_one_sentence(backend: Valkey, workers: str) -> None:
    refused = subprocess.run(
        command(80, "--workers", workers, "--backend", backend.url),
        capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "the limit on open files, 80, leaves room for 16 clients only: raise it" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""
