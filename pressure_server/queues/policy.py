"""The policy: what is done on every queue alike, as the server's settings say."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK, ERROR = "block", "error"


@dataclass(frozen=True)
class Policy:
    """`create_bound` is the bound of a queue that a put makes; None makes none.

    `overflow` is what a put on a full queue does, where the queue was created without saying: BLOCK waits for
    room up to `put_timeout` seconds (None: for ever), ERROR fails. For a role that a native client holds
    everybody waits `role_timeout` seconds. `max_waiting` operations may wait at the same time.
    """

    create_bound: int | None = 0
    overflow: str = BLOCK
    put_timeout: float | None = None
    role_timeout: float = 5.0
    max_waiting: int = 200_000
