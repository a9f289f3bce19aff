"""How a synchronous client runs an asyncio client's coroutines, as `Queue` does with `AsyncQueue`.

A synchronous client holds an asyncio client whose connections are `BlockingRedis`. Their coroutines
never suspend, so the first step of each is also its last, and no event loop is needed.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise RuntimeError(f"{coroutine!r} has suspended, although its connections block")


def synchronous(
    method: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """Return a method of a synchronous client that does the same as one of its asyncio client."""

    @wraps(method)
    def call(self: Synchronous, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        return run(method(self._target, *arguments, **options))

    return call


class Synchronous:
    """A synchronous client of an asyncio client, its target. Both are context managers."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        run(self._target.__aexit__(*exception))
