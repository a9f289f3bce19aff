"""LATENCY: shows the latencies of commands of all protocols."""

from __future__ import annotations

from handlers.resp.commands.info_statistics import shown_name
from handlers.resp.parser import Words
from handlers.resp.session import Caller
from handlers.resp.table import command, container
from pressure_server.net.command_statistics import CommandStatistics, all_statistics, upper_limit

container("LATENCY", "Shows the latencies of commands.", group="server")


@command(
    "LATENCY|LATEST",
    "Returns no events: the server has no latency monitor. See SLOWLOG.",
    group="server",
    needs="administer",
    flags="admin",
)
async def latency_latest(_client: Caller, _words: Words) -> list[object]:
    """Reply as Redis does without latency monitor. Monitoring tools ask for it."""
    return []


@command(
    "LATENCY|HISTOGRAM [command [command ...]]",
    "Returns how many measured calls of commands took up to a time, in microseconds.",
    group="server",
    needs="administer",
    flags="admin",
)
async def latency_histogram(_client: Caller, words: Words) -> dict[bytes, object]:
    """Reply as Redis does: cumulative counts. The name of a container means all its subcommands."""
    wanted = {word.lower().decode("utf-8", "replace") for word in words[2:]}
    return {
        shown_name(one).encode(): {b"calls": sum(one.latencies), b"histogram_usec": _cumulative(one)}
        for one in all_statistics()
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
