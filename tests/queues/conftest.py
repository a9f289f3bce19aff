"""Fixtures: a second server on the shared backend."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.programs import Server, Valkey
from tests.support.waiters import Waiter


@pytest.fixture(scope="module")
def peer(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A second server on the backend, for all tests of a module."""
    started = Server(tmp_path_factory.mktemp("peer") / "log", "--backend", shared_backend.url)
    yield started
    started.end_well()


@pytest.fixture
def busy_at(server: Server, request: pytest.FixtureRequest) -> Callable[[str], Waiter]:
    """Return a function that connects to the server where a client waits, or to another one."""

    def connect(at: str) -> Waiter:
        chosen = server if at == "same server" else request.getfixturevalue("peer")
        return Waiter(chosen.port)

    return connect
