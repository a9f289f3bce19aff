"""The loop with which every connection to the backend is opened again: try, tell its owner why not, pause."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from pressure_server.errors import BackendError

FIRST_PAUSE = 0.05
MAX_PAUSE = 2.0

Opened = TypeVar("Opened")


def pauses(longest: float = MAX_PAUSE) -> Iterator[float]:
    """Yield seconds to wait between attempts: each pause is twice as long as the last, up to the longest.

    They are random within limits, so that servers do not reconnect in step.
    """
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(2 * pause, longest)


async def until_open(
    attempt: Callable[[], Awaitable[Opened]],
    failed: Callable[[BackendError], float | None],
    longest: float = MAX_PAUSE,
) -> Opened:
    """Return what `attempt` opens, as soon as it succeeds.

    `failed` hears of each failure, and may return for how many seconds to pause; otherwise it is the next of
    the pauses up to the `longest`.
    """
    backoff = pauses(longest)
    while True:
        try:
            return await attempt()
        except BackendError as error:
            why = error
        await asyncio.sleep(failed(why) or next(backoff))
