"""A loop whose callbacks run one at a time, when the model says so, and whose clock it moves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any


@dataclass(eq=False)
class Handle:
    """A callback that will be called."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    time: float = 0.0
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Do not call it."""
        self.is_cancelled = True

    def when(self) -> float:
        """Return the time at which it is called."""
        return self.time


class ModelLoop:
    """The part of an asyncio loop that the core uses."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = count()
        self.errors: list[dict[str, Any]] = []

    def time(self) -> float:
        """Return the time."""
        return self._now

    def call_soon(self, function: Callable[..., Any], *arguments: Any, context: Any = None) -> Handle:
        """Call it after all that is ready."""
        handle = Handle(function, arguments)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, function: Callable[..., Any], *arguments: Any) -> Handle:
        """Call it after so many seconds."""
        return self.call_at(self._now + delay, function, *arguments)

    def call_at(self, when: float, function: Callable[..., Any], *arguments: Any) -> Handle:
        """Call it then."""
        handle = Handle(function, arguments, when)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)  # type: ignore[arg-type] # what a future needs is there

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an error."""
        self.errors.append(context)

    def run_one(self) -> bool:
        """Run the next callback that is ready; False if there is none."""
        while self._ready:
            handle = self._ready.popleft()
            if not handle.is_cancelled:
                handle.function(*handle.arguments)
                return True
        return False

    def move_on(self, within: float = 1e9) -> bool:
        """Move the clock to the next timer, if that is within so many seconds, and make it ready."""
        while self._timers and self._timers[0][2].is_cancelled:
            heappop(self._timers)
        if not self._timers or self._timers[0][0] > self._now + within:
            return False
        when, _, handle = heappop(self._timers)
        self._now = max(self._now, when)
        self._ready.append(handle)
        return True
