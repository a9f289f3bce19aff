"""Draining: a server that stops answers commands in flight and puts undelivered messages back."""

import contextlib
import re
import signal
import threading
from pathlib import Path

import pytest

from tests.support.faults import stopped
from tests.support.programs import (
    TIMEOUT,
    Client,
    StartServer,
    StartValkey,
    Valkey,
    records,
    run_here,
    wait_for,
)
from tests.support.protocols import LISTEN, PROTOCOLS, Protocol, Wire, each_protocol
from tests.support.waiters import Waiter, wait_for_blocked

LARGE = b"x" * (1 << 20)


@pytest.fixture(params=["redis", "embedded"])
def arguments(request: pytest.FixtureRequest, backend: Valkey, tmp_path: Path) -> list[str]:
    """Return the server's arguments for a backend of its own or an embedded one."""
    if request.param == "redis":
        return ["--backend", backend.url]
    return ["--data-dir", str(tmp_path / "data")]


@pytest.mark.slow
@each_protocol
def test_messages_that_a_client_has_not_read_are_put_back(
    start_server: StartServer, arguments: list[str], protocol: Protocol
) -> None:
    # A fifth of the time is for putting messages back.
    server = start_server(*arguments, "--drain-timeout", "10", *LISTEN)
    messages = [b"%03d" % number + LARGE for number in range(40)]
    with server.client() as client, Wire(protocol, server) as reader:
        client.rpush("q", *messages)
        reader.send(protocol.get(b"q") * 20)
        wait_for(lambda: client.scard("q") < 40, "messages to be taken")
        assert server.stop() == 0
        received = []
        with contextlib.suppress(ConnectionError):
            while True:
                received.append(reader.message())
    # A beanstalk client has only one reply at a time, which the kernel may take.
    assert "did not finish within" in server.log or protocol.finish is not None
    assert "could not all be put back" not in server.log
    second = start_server(*arguments)
    with second.client() as client:
        left = client.lrange("q", 0, -1)
        info = client.execute_command("PRESSURE.INFO", "q")
    # Messages whose whole reply was in the kernel's buffers are gone; one sent in part is put back.
    gone = 40 - len(left)
    assert left == messages[gone:]
    assert received == messages[: len(received)]
    # A job that a beanstalk client has reserved is put back, unless the client has deleted it.
    assert len(received) <= gone or protocol.finish is not None
    assert info[b"consumed_messages"] == gone


@each_protocol
def test_a_server_that_stops_leaves_only_the_queues(
    start_server: StartServer, backend: Valkey, direct: Client, protocol: Protocol
) -> None:
    # If the stop waited for a client, it would take longer than `stop` allows.
    server = start_server("--backend", backend.url, "--drain-timeout", str(2 * TIMEOUT), *LISTEN)
    with (
        server.client() as client,
        Wire(protocol, server) as waiter,
        server.client(db=4) as other,
        backend.client(db=4) as there,
    ):
        other.sadd("q", "a")
        client.sadd("q", "a", "b")
        waiter.send(protocol.get_waiting(b"empty"))
        wait_for_blocked(client, 1)
        assert client.spop("q") == b"a"
        identity = re.findall(r"the name of this server is '(.+)'", server.log)[0]
        for each in (direct, there):
            assert each.hexists("__pressure__!peers", identity)
        assert server.stop() == 0
        with pytest.raises(ConnectionError):
            waiter.reply()
        for each in (direct, there):
            assert not each.hexists("__pressure__!peers", identity)
            assert not records(each)
    assert direct.lrange("__pressure__:q", 0, -1) == [b"b"]


@each_protocol
def test_a_server_that_stops_answers_commands_in_flight(
    start_server: StartServer, backend: Valkey, protocol: Protocol
) -> None:
    server = start_server("--backend", backend.url, *LISTEN)
    with server.client() as client, Wire(protocol, server) as waiter:
        client.sadd("q", "a")
        with stopped(backend.process):
            waiter.send(protocol.get(b"q") * 3 + protocol.put(b"q", b"b"))
            client.ping()
            threading.Timer(0.3, backend.process.send_signal, (signal.SIGCONT,)).start()
            assert server.stop() == 0
        assert waiter.message() == b"a"
        is_put = False
        with contextlib.suppress(ConnectionError):
            assert [waiter.message(), waiter.message()] == [None, None]
            assert waiter.reply() == protocol.stored(1)
            is_put = True
    # Reserves run one at a time, so the later commands of a beanstalk client had not begun.
    assert is_put == (protocol.finish is None)
    with start_server("--backend", backend.url).client() as client:
        assert client.lrange("q", 0, -1) == ([b"b"] if is_put else [b"a"])


@pytest.mark.slow
def test_an_unavailable_backend_does_not_delay_a_stop(start_server: StartServer, backend: Valkey) -> None:
    # If the stop waited for the backend, it would take longer than `stop` allows.
    patience = ("--backend-timeout", str(2 * TIMEOUT), "--backend-grace", str(2 * TIMEOUT))
    options = ("--drain-timeout", "1", "--proxy-timeout", "0.5")
    server = start_server("--backend", backend.url, *options, *patience)
    with server.client() as client, Waiter(server.port) as waiter:
        client.sadd("q", "a")
        with stopped(backend.process):
            waiter.send("SPOP", "q")
            client.ping()
            assert server.stop() == 0
    successor = start_server("--backend", backend.url, "--proxy-timeout", "0.5")
    with successor.client() as client:
        wait_for(lambda: client.scard("q") == 1, "the message to be put back")


DRAINING = "the server is draining: connect to another one"


@pytest.mark.slow
@pytest.mark.parametrize("password", ["", "secret"], ids=["open", "with a password"])
def test_a_draining_server_is_not_ready_but_serves_all_clients(
    start_server: StartServer, backend: Valkey, password: str
) -> None:
    delay = 4  # seconds: a busy machine needs up to this long for all steps before the server ends
    options = ("--drain-delay", str(delay), *LISTEN, *(["--password", password] if password else []))
    server = start_server("--backend", backend.url, *options)
    urls = {each: f"{each.name}://127.0.0.1:{server.port_of(each.name)}" for each in PROTOCOLS}
    unauthenticated = {each: Wire(each, server) for each in PROTOCOLS}
    for protocol, url in urls.items():
        assert run_here("ping", "--listen", url).stdout == f"{url} is healthy\n"
        assert run_here("ping", "--listen", url, "--ready").stdout == f"{url} is ready\n"
        assert unauthenticated[protocol](protocol.ready) == protocol.is_ready
    with server.client(password=password or None) as client:
        client.ping()
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "not ready for new clients" in server.log, "the drain to begin")
        for protocol, url in urls.items():
            not_ready = protocol.stopping.decode() + DRAINING * protocol.has_reasons
            assert unauthenticated[protocol](protocol.ready).decode() == not_ready
            assert run_here("ping", "--listen", url).returncode == 0
            refused = run_here("ping", "--listen", url, "--ready")
            reason = f"pressure-server: {url} is not ready: {not_ready.removeprefix('-')}\n"
            assert (refused.returncode, refused.stderr) == (1, reason)
        assert client.sadd("q", "a") == 1
        with server.client(password=password or None) as new:
            assert new.spop("q") == b"a"
        assert server.process.wait(delay + TIMEOUT) == 0
    for client in unauthenticated.values():
        client.close()


def test_a_server_without_its_backend_is_not_ready(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url, *LISTEN)
    clients = [Wire(protocol, server) for protocol in PROTOCOLS]
    for client in clients:
        assert client(client.protocol.ready) == client.protocol.is_ready
    valkey.kill()

    def is_not_ready(client: Wire) -> bool:
        return client(client.protocol.ready).startswith(client.protocol.backend_lost)

    wait_for(lambda: all(map(is_not_ready, clients)), "the server to be not ready")
    for client in clients:
        client.close()


def test_an_idle_server_that_stops_logs_no_undelivered_messages(start_server: StartServer) -> None:
    server = start_server("--backend", "unix:///nowhere/none.sock")
    assert server.stop() == 0
    assert "could not all be put back" not in server.log


def test_a_second_stop_changes_nothing(start_server: StartServer, backend: Valkey) -> None:
    server = start_server("--backend", backend.url)

    def stop_again() -> bool:
        server.process.send_signal(signal.SIGTERM)
        return server.process.poll() is not None

    wait_for(stop_again, "the server to end")
    assert server.process.returncode == 0, server.log
