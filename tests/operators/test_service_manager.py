"""Notifications to the service manager: a real server sends them to a socket of the test."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pressure_server.app.service_manager import ServiceManager
from tests.support.guards import reload
from tests.support.programs import TIMEOUT, StartServer, Valkey

Message = dict[str, str]


class Manager:
    """A service manager's socket, on a path or, with an @, an abstract one."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(TIMEOUT)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def receive(self) -> Message:
        """Return the next message: its assignments by name."""
        return dict(line.split("=", 1) for line in self._socket.recv(65536).decode().splitlines())

    def receive_with(self, name: str) -> Message:
        """Return the next message that assigns this name."""
        return next(message for message in iter(self.receive, {}) if name in message)

    def rest(self) -> list[Message]:
        """Return the messages that have arrived and were not received yet."""
        self._socket.setblocking(False)
        found: list[Message] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.receive())
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """A service manager on both kinds of sockets."""
    path = tmp_path / "notify.sock"
    opened = Manager(str(path) if request.param == "path" else f"@pressure-test{path}")
    yield opened
    opened.close()


def test_a_server_reports_starting_ready_reload_and_stopping(
    start_server: StartServer, backend: Valkey, manager: Manager
) -> None:
    server = start_server("--backend", backend.url, environment={"NOTIFY_SOCKET": manager.address})
    starting = manager.receive()
    assert starting == {"STATUS": "starting", "EXTEND_TIMEOUT_USEC": "60000000"}
    listening = f"listening on resp://127.0.0.1:{server.port}"
    assert manager.receive() == {"READY": "1", "STATUS": listening}

    before = time.monotonic_ns() // 1000
    reload(server)
    reloading = manager.receive()
    assert list(reloading) == ["RELOADING", "MONOTONIC_USEC"]
    assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert manager.receive() == {"READY": "1"}

    assert server.stop() == 0
    stopping = manager.receive()
    # Ten seconds for clients, sixty for Valkey, and five to spare.
    assert stopping == {"STOPPING": "1", "STATUS": "stopping", "EXTEND_TIMEOUT_USEC": "75000000"}
    assert not manager.rest()


def test_a_server_without_its_backend_is_ready_and_says_what_it_waits_for(
    start_server: StartServer, tmp_path: Path, manager: Manager
) -> None:
    start_server("--backend", f"unix://{tmp_path}/none", environment={"NOTIFY_SOCKET": manager.address})
    assert manager.receive_with("READY")["STATUS"].endswith("; waiting for the backend")


def test_a_drain_delay_is_added_to_the_time_to_stop(
    start_server: StartServer, backend: Valkey, manager: Manager
) -> None:
    server = start_server(
        "--backend", backend.url, "--drain-delay", "0.1", "--drain-timeout", "30",
        environment={"NOTIFY_SOCKET": manager.address},
    )  # fmt: skip
    server.stop()
    assert manager.receive_with("STOPPING")["EXTEND_TIMEOUT_USEC"] == "95100000"


def test_the_watchdog_gets_two_messages_in_its_time_while_the_event_loop_runs(
    start_server: StartServer, backend: Valkey, manager: Manager
) -> None:
    variables = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "200000"}
    server = start_server("--backend", backend.url, environment=variables)
    manager.receive_with("READY")
    began = time.monotonic()
    for _ in range(5):
        assert manager.receive() == {"WATCHDOG": "1"}
    assert time.monotonic() - began > 0.3
    server.process.send_signal(signal.SIGSTOP)
    manager.rest()
    time.sleep(0.5)  # a time, because nothing comes: more than the two times at which a message is due
    stopped = manager.rest()
    server.process.send_signal(signal.SIGCONT)
    assert len(stopped) <= 1


def test_a_watchdog_of_another_process_gets_no_message(manager: Manager, tmp_path: Path) -> None:
    """By the time at which the watchdog of this process has got three."""
    own = Manager(str(tmp_path / "own.sock"))

    async def run() -> None:
        watched = [
            ServiceManager({"NOTIFY_SOCKET": to, "WATCHDOG_USEC": "10000", "WATCHDOG_PID": str(process)})
            for to, process in ((manager.address, os.getpid() + 1), (own.address, os.getpid()))
        ]
        for each in watched:
            each.starting()
        for _ in range(3):
            await asyncio.to_thread(own.receive_with, "WATCHDOG")
        for each in watched:
            each.close()

    asyncio.run(run())
    own.close()
    assert [message for message in manager.rest() if "WATCHDOG" in message] == []


def test_a_socket_that_is_gone_is_logged_and_the_server_runs(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    server = start_server("--backend", backend.url, environment={"NOTIFY_SOCKET": str(tmp_path / "none")})
    assert "cannot send STATUS=starting to the service manager (NOTIFY_SOCKET)" in server.log
    assert server.stop() == 0
