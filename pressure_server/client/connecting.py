"""The connection settings of the clients, and the script that they call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from pressure_server.lua.scripts import library

DEFAULT_URL = "redis://127.0.0.1:6379/0"
LIBRARY = library()
# The library is loaded at most this often for one call.
MAX_LOADS = 100
# The channel on which Redis reports changed keys to RESP2 clients.
CHANGES = "__redis__:invalidate"


def function_instead(function: bytes, error: ResponseError) -> bytes:
    """Return the function to call instead of one that the backend has refused, or raise the error."""
    code = "OOM" if isinstance(error, OutOfMemoryError) else str(error).partition(" ")[0]
    instead = LIBRARY.instead(function, code, is_recorded=False)
    if instead is None:
        raise error
    return instead


def is_unknown_function(error: ResponseError) -> bool:
    """Return whether the backend does not have the library."""
    return str(error).startswith("Function not found")


def tracking(number: int, prefixes: Iterable[bytes]) -> list[str | int | bytes]:
    """Return the command that makes Redis report changed keys with these prefixes to client id `number`."""
    chosen = [word for prefix in prefixes for word in ("PREFIX", prefix)]
    return ["CLIENT", "TRACKING", "ON", "REDIRECT", number, "BCAST", *chosen]


def settings(options: Mapping[str, Any], in_url: Mapping[str, Any], retry: Any) -> dict[str, Any]:
    """Return the arguments for a connection pool of redis-py.

    Precedence: what the client needs, then the URL, then `options`. `retry` is a Retry of redis-py that
    retries nothing.
    """
    return {
        **options,
        **in_url,
        "decode_responses": False,
        # In RESP2, reports of changed keys are ordinary messages; in RESP3, redis-py handles them itself.
        "protocol": 2,
        # A command that was sent may have been done.
        "retry": retry,
        # Each waiting thread or task has a connection; redis-py would refuse the 101st.
        "max_connections": 1 << 31,
    }


def patient(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for connections that wait for a reply as long as it takes.

    TCP finds out if the server's machine is gone; redis-py asks it to from its version 8 on.
    """
    keepalive = {} if "path" in own else {"socket_keepalive": True}
    return {**keepalive, **own, "socket_timeout": None}
