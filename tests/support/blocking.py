"""Asyncio objects with blocking methods, so that one test serves a sync and an asyncio client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from tests.support.programs import join


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread of its own until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    with ExitStack() as stack:
        stack.callback(loop.close)
        stack.callback(join, thread)
        stack.callback(loop.call_soon_threadsafe, loop.stop)
        yield loop


class Blocking:
    """An object whose coroutine methods block. It is a context manager if the object is an asynchronous one.

    Asynchronous generators become iterators. Results of the types `wrapped` are returned as such an object.
    """

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop, *wrapped: type) -> None:
        self._target = target
        self._loop = loop
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return self._blocking(found) if callable(found) else found

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(aiter(self._target))

    def __enter__(self) -> Blocking:
        self._blocking(self._target.__aenter__)()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._blocking(self._target.__aexit__)(*exception)

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            async def run() -> Any:
                result = method(*arguments, **options)
                return await result if isinstance(result, Coroutine) else result

            result = asyncio.run_coroutine_threadsafe(run(), self._loop).result()
            if isinstance(result, AsyncGenerator):
                return self._iterate(result)
            return Blocking(result, self._loop) if isinstance(result, self._wrapped) else result

        return call

    def _iterate(self, generator: AsyncGenerator[Any, None]) -> Iterator[Any]:
        advance, close = map(self._blocking, (generator.__anext__, generator.aclose))
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield advance()
        finally:
            close()
