"""Blocks: the parts of a call of the batch script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pressure_server.queues.operations.operation import Delivery


class Block(NamedTuple):
    """What one call does on one queue, or on several queues together.

    `keys` are base keys. `mode` is how it is done (layout.py), `arguments` are its runs (batch.lua).

    `received` is called with the block's reply: a value, an exception for an error reply, or a BackendError
    if there is no reply. Its second argument is the call's delivery; None if the call has no record or takes
    nothing.

    `changes` says that the block must not be done twice, `takes` that it may bring messages. If it is unknown
    whether the call was done, `resolved` is called later, and told whether this block was done.
    """

    keys: Sequence[bytes]
    mode: bytes
    arguments: list[bytes]
    received: Callable[[Any, Delivery | None], None]
    changes: bool = True
    takes: bool = True
    resolved: Callable[[bool], None] | None = None
