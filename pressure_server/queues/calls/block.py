"""Blocks: what one call of the batch script does on one queue, or on some together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pressure_server.queues.operations.operation import Delivery


class Block(NamedTuple):
    """A part of a call; `how` is that of layout.py, `arguments` its runs.

    `received` gets the reply, an error reply as an exception, or a BackendError; and, if the call has a
    record, its delivery. `changes` is whether it must not be done twice, `takes` whether it may bring what
    was taken. If it is not known whether the call was done, `resolved` is told later whether this block was.
    """

    keys: Sequence[bytes]
    how: bytes
    arguments: list[bytes]
    received: Callable[[Any, Delivery | None], None]
    changes: bool = True
    takes: bool = True
    resolved: Callable[[bool], None] | None = None
