"""An event loop that runs one callback at a time, and moves its clock, when the model asks for it."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, cast


@dataclass(eq=False)
class Handle:
    """A scheduled callback."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    time: float = 0.0
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Cancel the callback."""
        self.is_cancelled = True

    def when(self) -> float:
        """Return the time of the callback, by the clock of the loop."""
        return self.time


class ModelLoop:
    """The part of an asyncio event loop that lanes and the courier use."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = count()
        self.errors: list[dict[str, Any]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the running loop until the block ends."""
        asyncio._set_running_loop(cast(Any, self))
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def time(self) -> float:
        """Return the time of the model's clock, in seconds."""
        return self._now

    def call_soon(self, function: Callable[..., Any], *arguments: Any, context: Any = None) -> Handle:
        """Call the function after all callbacks that are ready."""
        handle = Handle(function, arguments)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, function: Callable[..., Any], *arguments: Any) -> Handle:
        """Call the function after `delay` seconds."""
        return self.call_at(self._now + delay, function, *arguments)

    def call_at(self, when: float, function: Callable[..., Any], *arguments: Any) -> Handle:
        """Call the function at the time `when`."""
        handle = Handle(function, arguments, when)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)  # type: ignore[arg-type] # it has what a future needs

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep the error for the test."""
        self.errors.append(context)

    def run_one(self) -> bool:
        """Run the next callback that is ready. Return False if there is none."""
        while self._ready:
            handle = self._ready.popleft()
            if not handle.is_cancelled:
                handle.function(*handle.arguments)
                return True
        return False

    def advance(self, within: float) -> bool:
        """Move the clock to the next timer and make it ready. Return False if none is due `within` s."""
        while self._timers and self._timers[0][2].is_cancelled:
            heappop(self._timers)
        if not self._timers or self._timers[0][0] > self._now + within:
            return False
        when, _, handle = heappop(self._timers)
        self._now = max(self._now, when)
        self._ready.append(handle)
        return True
