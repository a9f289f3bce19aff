"""The key watch, on a route in memory: what it keeps of keys that are no longer needed."""

import asyncio
from typing import Any, cast

from pressure_server.backend.route import Route
from pressure_server.backend.watch import Watch
from tests.support.codecs import traced_memory
from tests.unit.net.fake_server import FakeTransport

KEYS = 5000
# The bytes of what else is made meanwhile.
LEAST = 50_000


class FakeRoute:
    """A route that leads to a backend once."""

    def __init__(self) -> None:
        self.connection: Any = None

    async def connect(self, connection: Any, _greet: Any) -> Any:
        if self.connection is not None:
            await asyncio.Event().wait()
        self.connection = connection
        connection.connection_made(FakeTransport())
        return connection


def a_watch(route: FakeRoute) -> Watch:
    return Watch(cast(Route, route), "test", lambda _key: None, lambda: None, 1.0)


async def test_without_a_connection_no_key_is_kept() -> None:
    watch = a_watch(FakeRoute())
    with traced_memory() as traced:
        watch.disarm(0, (b"%d" % number for number in range(KEYS)))
        kept, _ = traced()
    assert kept < LEAST


async def test_the_keys_of_a_connection_that_is_lost_are_dropped() -> None:
    route = FakeRoute()
    watch = a_watch(route)
    watch.start()
    await watch.attempted.wait()
    with traced_memory() as traced:
        watch.disarm(0, (b"%d" % number for number in range(KEYS)))
        assert traced()[0] > LEAST
        route.connection.connection_lost(None)
        while watch.is_up:  # noqa: ASYNC110 -- no event tells that
            await asyncio.sleep(0)
        assert traced()[0] < LEAST
    await watch.close()
