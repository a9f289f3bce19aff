"""A drain that is clean: a server that is told to stop answers, hands back, and leaves nothing behind."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

import pytest

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
from tests.support.waiters import Waiter, wait_for_blocked

LARGE = b"x" * (1 << 20)


@pytest.fixture(params=["redis", "embedded"])
def arguments(request: pytest.FixtureRequest, backend: Valkey, tmp_path: Path) -> list[str]:
    """What both kinds of backend are named by."""
    if request.param == "redis":
        return ["--backend", backend.url]
    return ["--data-dir", str(tmp_path / "data")]


@pytest.mark.slow
def test_what_a_client_has_not_read_is_back_when_the_server_has_stopped(
    start_server: StartServer, arguments: list[str]
) -> None:
    server = start_server(*arguments, "--drain-timeout", "2")
    messages = [b"%03d" % number + LARGE for number in range(40)]
    with server.client() as client, Waiter(server.port) as lazy:
        client.rpush("q", *messages)
        for _ in range(20):
            lazy.send("SPOP", "q")
        wait_for(lambda: client.scard("q") < 40, "some to be taken")
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 2 + 3
        received = lazy.half_close()
    assert "disconnected 1 clients that did not finish" in server.log
    second = start_server(*arguments)
    with second.client() as client:
        left = client.lrange("q", 0, -1)
        info = client.execute_command("PRESSURE.INFO", "q")
    # Those whose reply the kernel had taken whole are gone; that it had taken in part is back.
    gone = 40 - len(left)
    assert left == messages[gone:]
    assert received == messages[: len(received)]
    assert len(received) <= gone
    assert info[b"consumed_messages"] == gone


def test_it_leaves_no_trace_but_the_queues(
    start_server: StartServer, backend: Valkey, direct: Client
) -> None:
    server = start_server("--backend", backend.url)
    with server.client() as client, Waiter(server.port) as waiter:
        client.sadd("q", "a", "b")
        waiter.send("BLPOP", "empty", 0)
        wait_for_blocked(client, 1)
        assert client.spop("q") == b"a"
        identity = re.findall(r"the name of this server is '(.+)'", server.log)[0]
        assert direct.hexists("__pressure__!peers", identity)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 2
        assert str(waiter.reply()).startswith("STOPPING")
    assert not direct.hexists("__pressure__!peers", identity)
    assert not records(direct)
    assert direct.lrange("__pressure__:q", 0, -1) == [b"b"]


def test_what_is_under_way_is_answered(start_server: StartServer, backend: Valkey, direct: Client) -> None:
    server = start_server("--backend", backend.url)
    with server.client() as client, Waiter(server.port) as waiter:
        client.sadd("q", "a")
        backend.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(3):
                waiter.send("SPOP", "q")
            waiter.send("SADD", "q", "b")
            client.ping()
            stopping = threading.Timer(0.3, backend.process.send_signal, (signal.SIGCONT,))
            stopping.start()
            assert server.stop() == 0
        finally:
            backend.process.send_signal(signal.SIGCONT)
        assert [waiter.reply() for _ in range(4)] == [b"a", None, None, 1]
    assert direct.lrange("__pressure__:q", 0, -1) == [b"b"]


@pytest.mark.slow
def test_a_backend_that_is_away_does_not_hold_it_up(start_server: StartServer, backend: Valkey) -> None:
    server = start_server("--backend", backend.url, "--drain-timeout", "1")
    with server.client() as client, Waiter(server.port) as waiter:
        client.sadd("q", "a")
        backend.process.send_signal(signal.SIGSTOP)
        try:
            waiter.send("SPOP", "q")
            client.ping()
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 1 + 2
        finally:
            backend.process.send_signal(signal.SIGCONT)
    successor = start_server("--backend", backend.url, "--proxy-timeout", "0.5")
    with successor.client() as client:
        wait_for(lambda: client.scard("q") == 1, "what had been taken for nobody to be back")


@pytest.mark.slow
def test_it_is_not_ready_before_it_stops_to_serve(start_server: StartServer, backend: Valkey) -> None:
    # The delay must be longer than a busy machine needs for all that happens within it.
    server = start_server("--backend", backend.url, "--drain-delay", "5", "--password", "secret")
    listen = f"resp://127.0.0.1:{server.port}"
    ready = ("ping", "--ready", "--listen", listen)
    assert run_here(*ready).stdout == f"{listen} is ready\n"
    with Waiter(server.port) as stranger, server.client(password="secret") as client:
        assert stranger("PRESSURE.READY") == b"OK"
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "not ready" in server.log, "it to stop")
        draining = "STOPPING the server is draining: connect to another one"
        assert str(stranger("PRESSURE.READY")) == draining
        refused = run_here(*ready)
        assert (refused.returncode, refused.stderr) == (
            1,
            f"pressure-server: {listen} is not ready: {draining}\n",
        )
        assert client.sadd("q", "a") == 1
        with server.client(password="secret") as late:
            assert late.spop("q") == b"a"
        assert server.process.wait(5 + TIMEOUT) == 0


def test_it_is_not_ready_while_its_backend_is_away(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url)
    with Waiter(server.port) as client:
        assert client("PRESSURE.READY") == b"OK"
        valkey.kill()
        wait_for(lambda: str(client("PRESSURE.READY")).startswith("BACKEND"), "it to be seen")


def test_a_server_that_had_taken_nothing_says_of_nothing_that_it_is_left(start_server: StartServer) -> None:
    server = start_server("--backend", "unix:///nowhere/none.sock")
    assert server.stop() == 0
    assert "messages are left" not in server.log


def test_to_be_told_to_stop_again_changes_nothing(start_server: StartServer, backend: Valkey) -> None:
    server = start_server("--backend", backend.url)

    def ends() -> bool:
        server.process.send_signal(signal.SIGTERM)
        return server.process.poll() is not None

    wait_for(ends, "it to end")
    assert server.process.returncode == 0, server.log
