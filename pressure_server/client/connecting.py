"""How the clients connect, and the script that they send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha1
from typing import Any

from pressure_server.lua.scripts import batch_script

DEFAULT_URL = "redis://127.0.0.1:6379/0"
SCRIPT = batch_script()
DIGEST = sha1(SCRIPT, usedforsecurity=False).hexdigest()
# Where Redis tells those who speak RESP2 of changes.
CHANGES = "__redis__:invalidate"


def tracking(number: int, prefixes: Iterable[bytes]) -> list[str | int | bytes]:
    """The command that has the connection of that number told of changes to keys that begin so."""
    chosen = [word for prefix in prefixes for word in ("PREFIX", prefix)]
    return ["CLIENT", "TRACKING", "ON", "REDIRECT", number, "BCAST", *chosen]


def settings(options: Mapping[str, Any], in_url: Mapping[str, Any], retry: Any) -> dict[str, Any]:
    """What redis-py makes a pool with: what the URL says goes over `options`, and what we need over both.

    `retry` is one of redis-py's that tries nothing twice.
    """
    return {
        **options,
        **in_url,
        "decode_responses": False,
        # In which news of changes are messages, and not redis-py's own business.
        "protocol": 2,
        # What has been sent may have been done.
        "retry": retry,
        # Each thread or task that waits has one; redis-py would refuse the 101st.
        "max_connections": 1 << 31,
    }
