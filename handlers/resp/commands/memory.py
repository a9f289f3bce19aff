"""MEMORY and OBJECT: the memory of queues in the backend, and of this server."""

from __future__ import annotations

from handlers.resp.arguments import count_from_zero
from handlers.resp.parser import Words
from handlers.resp.replies import CommandError, Text, syntax_error
from handlers.resp.session import Caller
from handlers.resp.table import command, container

# Redis's default: how many items of a collection the backend measures.
_SAMPLES = 5
# The encoding of a set, which a queue is to a Redis client.
_ENCODING = b"hashtable"
_NO_LFU = (
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when "
    "switching between policies at runtime LRU and LFU data will take some time to adjust."
)


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


@command(
    "MEMORY|DOCTOR",
    "Says whether clients are throttled or evicted because of their buffers.",
    group="server",
    needs="administer",
    flags="admin",
)
async def memory_doctor(client: Caller, _words: Words) -> Text:
    """Reply with a report in a sentence or two."""
    totals = await client.session.context.workers.totals()
    report = (
        f"The buffers of clients hold {totals.buffered_bytes} of {totals.max_buffered_bytes} bytes "
        "(--max-buffered-bytes)."
    )
    if totals.throttled or totals.evicted:
        report += (
            f" {totals.throttled} clients are throttled; {totals.evicted} have been disconnected. "
            "CLIENT LIST shows the bytes of each client as tot-mem."
        )
    else:
        report += " No client is throttled, and none has been disconnected."
    return Text(report.encode())


container("OBJECT", "Describes a queue as Redis describes a key.", group="generic")


@command(
    "OBJECT|ENCODING key",
    "Returns hashtable, the encoding of a set; nil if there is no such queue.",
    group="generic",
    needs="read",
    flags="readonly",
)
async def object_encoding(client: Caller, words: Words) -> bytes | None:
    """Reply as Redis does for a set."""
    return _ENCODING if await client.database.exists(words[2]) else None


@command(
    "OBJECT|REFCOUNT key",
    "Returns 1; nil if there is no such queue.",
    group="generic",
    needs="read",
    flags="readonly",
)
async def object_refcount(client: Caller, words: Words) -> int | None:
    """Reply as Redis does for a set."""
    return 1 if await client.database.exists(words[2]) else None


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


@command(
    "OBJECT|FREQ key",
    "Replies with Redis's error, as no frequencies are tracked; nil if there is no such queue.",
    group="generic",
    needs="read",
    flags="readonly",
)
async def object_freq(client: Caller, words: Words) -> None:
    """Reply as Redis does without an LFU policy."""
    if await client.database.exists(words[2]):
        raise CommandError(_NO_LFU)
