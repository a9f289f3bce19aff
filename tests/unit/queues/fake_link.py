"""A link that keeps calls, for tests in memory."""

import asyncio
from typing import Any, cast

from pressure_server.backend.requests import BackendRequest, Caller
from pressure_server.queues.calls.call import Call
from pressure_server.queues.calls.courier import Courier
from tests.interleavings.connections import LinkInMemory


class FakeLink(LinkInMemory):
    """A link that keeps the calls; the test replies to them."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "backend"
        self.calls: list[Call] = []
        self.called: asyncio.Queue[None] = asyncio.Queue()

    def send(self, request: BackendRequest) -> None:
        """See Link."""
        self.calls.append(cast(Call, request))
        self.called.put_nowait(None)

    def reply(self, reply: Any) -> None:
        """Reply to the oldest call in flight."""
        self.calls.pop(0).received(reply)


class _NoCourier(Courier):
    """A courier that sends nothing."""

    def __init__(self) -> None:
        self.caller = Caller((), b"")


def call_without_courier() -> Call:
    """Return a call that collects blocks, and is not sent."""
    return Call(_NoCourier())
