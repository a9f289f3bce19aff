"""SLOWLOG, LATENCY and MONITOR: what the clients of all protocols do. MEMORY and OBJECT: what they keep."""

from __future__ import annotations

from functools import partial

from handlers.resp import table
from handlers.resp.commands.info import shown_name
from handlers.resp.parser import Words
from handlers.resp.replies import OK, too_many_arguments
from handlers.resp.session import Caller
from pressure_server.errors import CommandError
from pressure_server.net.command_statistics import CommandStatistics, upper_limit
from pressure_server.words import count_from_zero, integer_from, syntax_error

command = partial(table.command, group="server")
container = partial(table.container, group="server")

_DEFAULT_COUNT = 10
_MICROSECONDS = 1_000_000
# Redis's default: how many items of a collection the backend measures.
_SAMPLES = 5

container("SLOWLOG", "Shows the commands that took long.")


@command("SLOWLOG|GET [count]", needs="administer", flags="admin")
async def slowlog_get(client: Caller, words: Words) -> list[object]:
    """Returns the latest slow commands, latest first: 10, or count; -1 returns all."""
    if len(words) > 3:
        raise too_many_arguments(words)
    count = _DEFAULT_COUNT if len(words) == 2 else integer_from(words[2])
    if count is None or count < -1:
        raise CommandError("ERR count should be greater than or equal to -1")
    kept = client.session.clients.slow_log.length
    found = await client.session.context.workers.slow_commands(kept if count == -1 else min(count, kept))
    return [
        [
            one.number,
            int(one.ended),
            int(one.seconds * _MICROSECONDS),
            one.words,
            one.address.encode(),
            one.client_name.encode(),
        ]
        for one in found
    ]


@command("SLOWLOG|LEN", needs="administer", flags="admin")
async def slowlog_len(client: Caller, _words: Words) -> int:
    """Returns the number of slow commands that are kept."""
    session = client.session
    return len(await session.context.workers.slow_commands(session.clients.slow_log.length))


@command("SLOWLOG|RESET", needs="administer", flags="admin")
async def slowlog_reset(client: Caller, _words: Words) -> str:
    """Removes all slow commands."""
    await client.session.context.workers.reset_slow_log()
    return OK


container("LATENCY", "Shows the latencies of commands.")


@command("LATENCY|LATEST", needs="administer", flags="admin")
async def latency_latest(_client: Caller, _words: Words) -> list[object]:
    """Returns no events: the server has no latency monitor. See SLOWLOG."""
    # redis_exporter asks for it at each scrape.
    return []


@command("LATENCY|HISTOGRAM [command [command ...]]", needs="administer", flags="admin")
async def latency_histogram(client: Caller, words: Words) -> dict[bytes, object]:
    """Returns how many measured calls of commands took up to a time, in microseconds."""
    # The name of a container means all its subcommands.
    wanted = {word.lower().decode("utf-8", "replace") for word in words[2:]}
    return {
        shown_name(one).encode(): {b"calls": sum(one.latencies), b"histogram_usec": _cumulative(one)}
        for one in await client.session.context.workers.statistics()
        if any(one.latencies)
        and (not wanted or {shown_name(one), shown_name(one).partition("|")[0]} & wanted)
    }


def _cumulative(statistics: CommandStatistics) -> dict[int, int]:
    """Return for the upper limit of each bucket that is not empty how many calls took no longer."""
    found: dict[int, int] = {}
    calls = 0
    for bucket, count in enumerate(statistics.latencies):
        calls += count
        if count:
            found[round(upper_limit(bucket) * _MICROSECONDS)] = calls
    return found


@command("MONITOR", needs="administer", flags="admin")
async def monitor(client: Caller, _words: Words) -> str:
    """Shows the commands that clients of any protocol send, without logins, until the connection ends."""
    # RESET ends it; a second MONITOR has no effect.
    if client is not client.session:
        raise CommandError("ERR MONITOR isn't allowed for DENY BLOCKING client")
    client.session.clients.monitor(client.session)
    return OK


container("MEMORY", "Shows the memory of queues and of the server.")


@command("MEMORY|USAGE key [SAMPLES count]", needs="read", flags="readonly")
async def memory_usage(client: Caller, words: Words) -> int | None:
    """Returns the bytes that the queue takes in the backend; nil if there is no such queue."""
    # The backend measures `count` items of each key, 0 for all.
    samples = _SAMPLES
    if len(words) > 3:
        if words[3].upper() != b"SAMPLES" or len(words) != 5:
            raise syntax_error()
        samples = count_from_zero(words[4])
    return await client.session.database.shard_of(words[2]).keys.stored_bytes_of(words[2], samples)


@command("MEMORY|STATS", needs="administer", flags="admin")
async def memory_stats(client: Caller, _words: Words) -> dict[bytes, object]:
    """Returns the memory of this server, in bytes."""
    totals = await client.session.context.workers.totals()
    return {
        b"peak.allocated": totals.peak_bytes,
        b"total.allocated": totals.resident_bytes,
        b"clients.normal": totals.buffered_bytes,
        b"clients.limit": totals.max_buffered_bytes,
        b"clients.throttled": totals.throttled,
        b"clients.evicted": totals.evicted,
    }


table.container("OBJECT", "Tells when a queue was used.", group="generic")


@table.command("OBJECT|IDLETIME key", group="generic", needs="read", flags="readonly")
async def object_idletime(client: Caller, words: Words) -> int | None:
    """Returns the seconds since a client or a server used the queue; nil if there is no such queue."""
    # Servers use a queue that a put created when they look whether it has expired.
    return await client.session.database.shard_of(words[2]).keys.idle_seconds_of(words[2])
