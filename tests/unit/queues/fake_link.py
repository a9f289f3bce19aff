"""A link that keeps calls, for tests in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pressure_server.queues.calls.call import Call


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
