"""What the synchronous clients do otherwise than the asyncio ones, which have async_primitives.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from time import sleep
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from pressure_server.client.arguments import connection_settings

__all__ = ["Lock", "deferred_disconnect", "open_pool", "pending", "settled", "sleep"]

Result = TypeVar("Result")


# Any: redis-py's commands have no usable types.
def open_pool(url: str, options: Mapping[str, Any], *, is_patient: bool = False) -> Any:
    """Return a client of redis-py with a pool of its own; see connection_settings."""
    in_url = parse_url(url)  # type: ignore[no-untyped-call] # it has none
    settings = connection_settings(options, in_url, Retry(NoBackoff(), 0), is_patient=is_patient)
    return redis.Redis.from_pool(redis.ConnectionPool(**settings))


def settled(result: Result, undo: Callable[[Result], object]) -> Result:
    """Return the result of a call: nothing cancels one."""
    return result


def deferred_disconnect(client: Any) -> Callable[[], None]:
    """Return a function that closes the connections of a client."""
    disconnect: Callable[[], None] = client.connection_pool.disconnect
    return disconnect


def pending(result: Result) -> Result:
    """Return the result: it is not pending."""
    return result
