"""Fixtures for applications: one at a server of its own, or in its usual place, at a Redis."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.installed_applications import Application, Stand
from tests.support.programs import Server, StartServer, Valkey

SetUp = Callable[[Application], Stand]


@pytest.fixture
def own_server(backend: Valkey, start_server: StartServer) -> Iterator[Server]:
    """A server for one test, whose log has what that test's application does."""
    server = start_server("--backend", backend.url)
    yield server
    server.end_well()


@pytest.fixture
def set_up(own_server: Server, tmp_path: Path) -> SetUp:
    """Set an application up with the test's server."""
    return lambda application: Stand(application, own_server.port, _folder(tmp_path))


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a backend in which applications keep their own data."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    valkey = Valkey(tmp_path_factory.mktemp("redis"), "--port", str(port))
    yield port
    valkey.stop()


@pytest.fixture
def set_up_with_redis(redis_port: int, tmp_path: Path) -> SetUp:
    """Set an application up with a Redis."""
    return lambda application: Stand(application, redis_port, _folder(tmp_path))


def _folder(parent: Path) -> Path:
    folder = parent / "application"
    folder.mkdir()
    return folder
