"""Kicking: makes buried or delayed jobs of a queue ready, in steps that are short for the backend."""

from __future__ import annotations

from pressure_server.errors import QueueDoesNotExistError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.owners import Client
from pressure_server.queues.queue_operations import QueueOperations


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
