"""MEMORY and OBJECT: the memory of queues in the backend, and of this server."""

from __future__ import annotations

from handlers.resp.parser import Words
from handlers.resp.session import Caller
from handlers.resp.table import command, container
from pressure_server.words import count_from_zero, syntax_error

# Redis's default: how many items of a collection the backend measures.
_SAMPLES = 5

container("MEMORY", "Shows the memory of queues and of the server.", group="server")


@command(
    "MEMORY|USAGE key [SAMPLES count]",
    "Returns the bytes that the queue takes in the backend; nil if there is no such queue.",
    group="server",
    needs="read",
    flags="readonly",
)
async def memory_usage(client: Caller, words: Words) -> int | None:
    """Reply as Redis does. The backend measures `count` items of each key, 0 for all."""
    samples = _SAMPLES
    if len(words) > 3:
        if words[3].upper() != b"SAMPLES" or len(words) != 5:
            raise syntax_error()
        samples = count_from_zero(words[4])
    return await client.session.database.shard_of(words[2]).keys.stored_bytes_of(words[2], samples)


@command(
    "MEMORY|STATS",
    "Returns the memory of this server, in bytes.",
    group="server",
    needs="administer",
    flags="admin",
)
async def memory_stats(client: Caller, _words: Words) -> dict[bytes, object]:
    """Reply with those of Redis's fields that apply, and with the limit of the buffers."""
    totals = await client.session.context.workers.totals()
    return {
        b"peak.allocated": totals.peak_bytes,
        b"total.allocated": totals.resident_bytes,
        b"clients.normal": totals.buffered_bytes,
        b"clients.limit": totals.max_buffered_bytes,
        b"clients.throttled": totals.throttled,
        b"clients.evicted": totals.evicted,
    }


container("OBJECT", "Tells when a queue was used.", group="generic")


@command(
    "OBJECT|IDLETIME key",
    "Returns the seconds since a client or a server used the queue; nil if there is no such queue.",
    group="generic",
    needs="read",
    flags="readonly",
)
async def object_idletime(client: Caller, words: Words) -> int | None:
    """Reply as Redis does. Servers use a queue that a put created when they look whether it has expired."""
    return await client.session.database.shard_of(words[2]).keys.idle_seconds_of(words[2])
