"""SLOWLOG, LATENCY and MONITOR: what the clients of all protocols do."""

from __future__ import annotations

from functools import partial

from handlers.resp import table
from handlers.resp.commands.info import shown_name
from handlers.resp.parser import Words
from handlers.resp.replies import OK
from handlers.resp.session import Caller
from pressure_server.errors import CommandError
from pressure_server.net.command_statistics import CommandStatistics, upper_limit
from pressure_server.words import integer_from

command = partial(table.command, group="server")
container = partial(table.container, group="server")

_DEFAULT_COUNT = 10
_MICROSECONDS = 1_000_000

container("SLOWLOG", "Shows the commands that took long.")


@command(
    "SLOWLOG|GET [count]",
    "Returns the latest slow commands, latest first: 10, or count; -1 returns all.",
    needs="administer",
    flags="admin",
)
async def slowlog_get(client: Caller, words: Words) -> list[object]:
    """Reply as Redis does: id, time, microseconds, words, address and name of the client."""
    if len(words) > 3:
        text = words[1].decode("utf-8", "replace")
        raise CommandError(
            f"ERR unknown subcommand or wrong number of arguments for '{text}'. Try SLOWLOG HELP."
        )
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


@command(
    "SLOWLOG|LEN", "Returns the number of slow commands that are kept.", needs="administer", flags="admin"
)
async def slowlog_len(client: Caller, _words: Words) -> int:
    """Reply as Redis does."""
    session = client.session
    return len(await session.context.workers.slow_commands(session.clients.slow_log.length))


@command("SLOWLOG|RESET", "Removes all slow commands.", needs="administer", flags="admin")
async def slowlog_reset(client: Caller, _words: Words) -> str:
    """Reply as Redis does."""
    await client.session.context.workers.reset_slow_log()
    return OK


container("LATENCY", "Shows the latencies of commands.")


@command(
    "LATENCY|LATEST",
    "Returns no events: the server has no latency monitor. See SLOWLOG.",
    needs="administer",
    flags="admin",
)
async def latency_latest(_client: Caller, _words: Words) -> list[object]:
    """Reply as Redis does without latency monitor. redis_exporter asks for it at each scrape."""
    return []


@command(
    "LATENCY|HISTOGRAM [command [command ...]]",
    "Returns how many measured calls of commands took up to a time, in microseconds.",
    needs="administer",
    flags="admin",
)
async def latency_histogram(client: Caller, words: Words) -> dict[bytes, object]:
    """Reply as Redis does: cumulative counts. The name of a container means all its subcommands."""
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
            found[round(upper_limit(bucket) * 1_000_000)] = calls
    return found


@command(
    "MONITOR",
    "Shows the commands that clients of any protocol send, without logins, until the connection ends.",
    needs="administer",
    flags="admin",
)
async def monitor(client: Caller, _words: Words) -> str:
    """Reply as Redis does, also in a transaction. RESET ends it; a second MONITOR has no effect."""
    if client is not client.session:
        raise CommandError("ERR MONITOR isn't allowed for DENY BLOCKING client")
    client.session.clients.monitor(client.session)
    return OK
