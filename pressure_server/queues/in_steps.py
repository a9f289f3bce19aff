"""Work on all messages of a queue, in steps that are short for the backend: kick, purge, redrive them."""

from __future__ import annotations

from collections.abc import Sequence

from pressure_server.errors import QueueDoesNotExistError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.owners import Client
from pressure_server.queues.operations.refusals import exception_for
from pressure_server.queues.queue_operations import QueueOperations

READY, DELAYED, RESERVED, BURIED = b"ready", b"delayed", b"reserved", b"buried"
QUEUED = (READY, DELAYED)


async def kick(queues: QueueOperations, name: bytes, most: int, client: Client | None) -> int:
    """Make up to `most` buried jobs ready; if none are buried, delayed ones. Return how many.

    Jobs that are buried meanwhile may be kicked, too. Raises a PressureError.
    """
    count, state, is_more = 0, b"", True
    while is_more:
        try:
            some, state = (
                await queues.run(verbs.KICK, name, [b"%d" % (most - count), state], client=client)
            )[0]
        except QueueDoesNotExistError:
            if count:
                break
            raise
        count += some
        is_more = bool(state)
    return count


async def purge(queues: QueueOperations, name: bytes, states: Sequence[bytes], client: Client | None) -> int:
    """Delete the messages of a queue that are in one of the states; return how many. Raises a PressureError.

    All messages of a plain list are ready. Messages that are put meanwhile may be deleted, too.
    """
    count, is_more = 0, 1
    while is_more:
        some, is_more = (await queues.run(verbs.PURGE, name, list(states), client=client))[0]
        count += some
    return count


async def redrive(queues: QueueOperations, name: bytes, to: bytes, most: int, client: Client | None) -> int:
    """Put up to `most` dead letters back into the queues from which they came, or into one; return how many.

    `to` is the base key of the one queue, or empty. Raises a PressureError if none can go.
    """
    count, skipped, reason = 0, 0, b""
    while skipped >= 0 and count < most:
        arguments = [to, b"%d" % (most - count), b"%d" % skipped]
        (some, skipped, failed) = (await queues.run(verbs.REDRIVE, name, arguments, client=client))[0]
        count, reason = count + some, failed or reason
    if reason and not count:
        raise exception_for(name, reason.decode("utf-8", "replace"))
    return count
