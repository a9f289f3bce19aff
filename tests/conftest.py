"""Fixtures: a shared backend and server, and factories for tests that stop or reconfigure them."""

import asyncio
import functools
import inspect
import os
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
import redis

from handlers.resp.table import FOLLOWED_VERSION
from pressure_server.compiled import is_compiled
from tests.support import on_cluster
from tests.support.hostile import Victim, started_victim
from tests.support.programs import TIMEOUT, Client, Server, StartServer, StartValkey, Valkey
from tests.support.requirements import need, require
from tests.support.side_by_side import Pair
from tests.support.waiters import Waiter

# How long an example takes is up to the machine, which other tests share.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on-cluster", action="store_true", help="with a cluster as the shared backend")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests so that each xdist worker runs its share of slow tests first, and quick ones last.

    xdist gives each worker an equal part of the list; a worker that has finished steals tests from another.
    """
    if config.getoption("--on-cluster"):
        for item in items:
            on_cluster.mark(item)
    if is_compiled():
        items[:] = [item for item in items if not item.get_closest_marker("interpreted")]
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    workers, size = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)), len(items)
    items.clear()
    for left in range(workers, 0, -1):
        end = len(items) + (size - len(items)) // left
        some, slow = slow[: len(slow) // left], slow[len(slow) // left :]
        rest = end - len(items) - len(some)
        items += some + quick[:rest]
        quick = quick[rest:]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    runner: asyncio.Runner = pyfuncitem._request.getfixturevalue("runner")
    runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the logs of a failed test's servers."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        servers = {value: name for name, value in item.funcargs.items() if isinstance(value, Server)}
        for server, name in servers.items():
            report.sections.append((f"log of {name}", server.log[-3000:]))
    return report


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop in which a test runs that is a coroutine."""
    with asyncio.Runner() as started:
        yield started


@pytest.fixture(scope="session", autouse=True)
def redis_reads_its_version_once() -> Iterator[None]:
    """For each client, redis-py parses the metadata of its package: half of what it takes to make one."""
    with mock.patch("redis.utils.get_lib_version", functools.cache(redis.utils.get_lib_version)):
        yield


@pytest.fixture(scope="session")
def shared_backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Valkey]:
    made = on_cluster.SpreadValkey if request.config.getoption("--on-cluster") else Valkey
    valkey = made(tmp_path_factory.mktemp("backend"))
    yield valkey
    valkey.stop()


@pytest.fixture(scope="session")
def shared_server(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server") / "log", "--backend", shared_backend.url)
    yield server
    server.end_well()


@pytest.fixture
def backend(shared_backend: Valkey) -> Valkey:
    """A backend without data, and without blocked clients of the previous test."""
    shared_backend.flush()
    return shared_backend


@pytest.fixture
def server(backend: Valkey, shared_server: Server) -> Iterator[Server]:
    """A server on a backend without data."""
    yield shared_server
    shared_server.check_idle()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """redis-py, connected to the server."""
    with server.client() as connected:
        yield connected


@pytest.fixture
def direct(backend: Valkey) -> Iterator[Client]:
    """redis-py, connected to the backend."""
    with backend.client() as connected:
        yield connected


@pytest.fixture
def waiter(server: Server) -> Iterator[Waiter]:
    """A plain connection to the server."""
    with Waiter(server.port) as connected:
        yield connected


@pytest.fixture
def worker(server: Server) -> Iterator[Waiter]:
    """Another plain connection to the server."""
    with Waiter(server.port) as connected:
        yield connected


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """The Redis with which the server's replies are compared."""
    started = Valkey(tmp_path_factory.mktemp("redis"), binary=need("redis-server", "redis-server"))
    try:
        with started.client() as connected:
            version = connected.info("server")["redis_version"]
        require(version == FOLLOWED_VERSION, f"Redis {FOLLOWED_VERSION}; this is {version}")
        yield started
    finally:
        started.stop()


@pytest.fixture
def pair(original: Valkey, server: Server) -> Iterator[Pair]:
    """That Redis and the server, both without data."""
    with original.client() as connected:
        connected.flushall()
    opened = Pair(original, server)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Valkey]]:
    """A server and its backend for a module's hostile clients."""
    with started_victim(tmp_path_factory.mktemp("attacked")) as started:
        yield started


@pytest.fixture
def victim(attacked: tuple[Server, Valkey]) -> Iterator[Victim]:
    """That server, without data, and a client that observes it."""
    server, valkey = attacked
    with valkey.client() as direct:
        direct.flushall()
    with server.client(socket_timeout=TIMEOUT) as observer:
        assert observer.ping()
        found = Victim(server, valkey, observer)
        yield found
        found.close()


@pytest.fixture
def start_server(tmp_path: Path, start_valkey: StartValkey) -> Iterator[StartServer]:
    """Start servers for one test, which are stopped at its end, before the backends that it has started."""
    started: list[Server] = []

    def start(*arguments: str, **options: Any) -> Server:
        server = Server(tmp_path / f"server-{len(started)}.log", *arguments, **options)
        started.append(server)
        return server

    yield start
    for server in started:
        # Not killed, so that an embedded backend ends with its server.
        try:
            if server.process.poll() is None:
                server.check_idle()
            server.stop()
        except subprocess.TimeoutExpired:
            server.process.kill()


@pytest.fixture
def start_valkey(tmp_path: Path) -> Iterator[StartValkey]:
    """Start backends for one test, which are killed at its end."""
    started: list[Valkey] = []

    def start(*options: str) -> Valkey:
        folder = tmp_path / f"valkey-{len(started)}"
        folder.mkdir()
        started.append(Valkey(folder, *options))
        return started[-1]

    yield start
    for valkey in started:
        valkey.process.kill()
        valkey.process.wait(TIMEOUT)
