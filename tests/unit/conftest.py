"""Fixtures that are made in the event loop of a test."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.net.fake_server import Server

# A function that calls another one in the event loop of the test.
InLoop = Callable[[Callable[[], Any]], Any]


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
