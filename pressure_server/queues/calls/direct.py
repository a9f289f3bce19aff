"""Calls with a block of their own, which bypass the lanes: for transactions, reads and recovery."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from pressure_server.errors import (
    BackendError,
    BackendReplyError,
    NotSafeError,
    OutcomeUnknownError,
    UnansweredError,
)
from pressure_server.lua.layout import RECOVER
from pressure_server.queues.calls.call import Block
from pressure_server.queues.operations.block_reply import Refused, refusal_of
from pressure_server.queues.operations.operation import Delivery

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard


async def call_directly(
    shard: Shard,
    keys: list[bytes],
    arguments: list[bytes],
    share: Callable[[list[Any], Delivery | None], None] = lambda _reply, _delivery: None,
    undo: Callable[[], None] = lambda: None,
    *,
    changes: bool,
    must_last: bool = False,
    how: bytes = b"",
) -> list[Any] | Refused:
    """Call the library with a block of its own, independently of the lanes, and return its reply.

    `how` is in layout.py: READ exempts a block that only reads from the limit of a transaction's work.
    `changes` and `must_last` are as in Verb. A change always waits for durability.

    `share` gets the reply when it arrives, unless it is a refusal or an error. It must register what the
    operations got of the delivery, which other blocks of the call share. If this coroutine is cancelled, or
    raises, after that, `undo` must put these messages back. Raises BackendError.
    """
    ended: asyncio.Future[list[Any] | Refused | Exception] = asyncio.get_running_loop().create_future()

    def received(value: Any, delivery: Delivery | None) -> None:
        refusal = refusal_of(value) if isinstance(value, list) else None
        if refusal is not None or not isinstance(value, list):
            end(refusal or value)
            return
        try:
            share(value, delivery)
        except Exception as error:  # the caller must not wait for ever
            end(error)
            return
        if changes or must_last:
            shard.when_durable(lambda error: end(error or value))
        else:
            end(value)

    def end(value: list[Any] | Refused | Exception) -> None:
        if ended.done():
            undo()
        else:
            ended.set_result(value)

    shard.courier.ready(Block([*dict.fromkeys(keys)], how, arguments, received, changes))
    try:
        value = await ended
    except asyncio.CancelledError:
        if ended.done() and not ended.cancelled():
            undo()
        raise
    if not isinstance(value, Exception):
        return value
    undo()
    if type(value) in (OutcomeUnknownError, NotSafeError) and not changes:
        raise UnansweredError
    if isinstance(value, BackendError):
        raise value
    raise BackendReplyError(f"the backend answered: {value}") from value


async def recover(shard: Shard, key: bytes) -> tuple[bool, int, bytes, dict[bytes, int]]:
    """Put back messages that a dead server had taken, as many as fit into one call; `key` has its records.

    Return whether there is more; how many records could not be put back, and why; and how many messages went
    back, by the queue's base key. Raises BackendError.
    """
    # It is not refused: only transactions are.
    reply = cast("list[Any]", await call_directly(shard, [key], [b""], changes=False, how=RECOVER))
    more, _, failed, why = reply[:4]
    back = dict(zip(reply[4::2], reply[5::2], strict=True))
    shard.messages_are_back(list(back))
    return more == 1, failed, why, back
