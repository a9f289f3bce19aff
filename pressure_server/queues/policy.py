"""The policy: the settings that apply to all queues."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK, ERROR = "block", "error"


@dataclass(frozen=True)
class Policy:
    """The settings that apply to all queues.

    `create_bound` is the bound of a queue that a put creates; None creates none.
    `overflow` is what a put on a full queue does if the queue has no setting: BLOCK waits for room up to
    `put_timeout` seconds (None: for ever), ERROR fails. Operations wait `role_timeout` seconds for a role
    that a native client holds. At most `max_waiting` operations may wait at the same time. A queue remembers
    the outcome of a put with a transaction id for `outcome_ttl` seconds, but not of more than `max_outcomes`
    puts. A queue that is created without a limit of bytes gets `max_bytes`; servers create at most
    `max_queues` queues, and put nothing while the backend uses more than `max_stored_bytes`. 0: no limit.
    """

    create_bound: int | None = 0
    overflow: str = BLOCK
    put_timeout: float | None = None
    role_timeout: float = 5.0
    max_waiting: int = 200_000
    outcome_ttl: float = 3600.0
    max_outcomes: int = 100_000
    max_bytes: int = 0
    max_queues: int = 0
    max_stored_bytes: int = 0
