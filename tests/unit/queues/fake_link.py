"""A link that keeps calls, for tests in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from pressure_server.backend.requests import Caller
from pressure_server.queues.calls.call import Call
from pressure_server.queues.calls.courier import Courier


class FakeLink:
    """A link that keeps the calls; the test replies to them."""

    number = 0
    pause_after_deaths = 0.0
    is_up = True
    heartbeats = object()
    is_back: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.called: asyncio.Queue[None] = asyncio.Queue()

    def send(self, call: Call) -> None:
        """See Link."""
        self.calls.append(call)
        self.called.put_nowait(None)

    def reply(self, reply: Any) -> None:
        """Reply to the oldest call in flight."""
        self.calls.pop(0).received(reply)


def call_without_courier() -> Call:
    """Return a call that collects blocks, and is not sent."""
    return Call(cast(Courier, SimpleNamespace(caller=Caller((), b""))))
