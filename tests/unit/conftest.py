"""An event loop for the tests and fixtures of each test, in which tests that are coroutines run."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.net.fake_server import Server

# A function that calls another one in the event loop of the test.
InLoop = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as started:
        yield started


@pytest.fixture
def in_loop(runner: asyncio.Runner) -> InLoop:
    """Call a function in the event loop, and return what it returns."""

    def run(make: Callable[[], Any]) -> Any:
        async def made() -> Any:
            return make()

        return runner.run(made())

    return run


@pytest.fixture
def server(in_loop: InLoop) -> Iterator[Server]:
    """A server whose sockets and backend are in memory."""
    started: Server = in_loop(Server)
    yield started
    started.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, for 20 seconds at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    runner: asyncio.Runner = pyfuncitem._request.getfixturevalue("runner")
    runner.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 20))
    return True
