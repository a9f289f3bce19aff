"""SLOWLOG: shows the commands that took long, of the clients of all protocols."""

from __future__ import annotations

from handlers.resp.parser import Words, integer_from
from handlers.resp.replies import OK, CommandError
from handlers.resp.session import Caller
from handlers.resp.table import command, container

_DEFAULT_COUNT = 10
_MICROSECONDS = 1_000_000

container("SLOWLOG", "Shows the commands that took long.", group="server")


@command(
    "SLOWLOG|GET [count]",
    "Returns the latest slow commands, latest first: 10, or count; -1 returns all.",
    group="server",
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
    log = client.session.clients.slow_log
    return [
        [
            one.number,
            int(one.ended),
            int(one.seconds * _MICROSECONDS),
            one.words,
            one.address.encode(),
            one.client_name.encode(),
        ]
        for one in log.latest(len(log) if count == -1 else count)
    ]


@command(
    "SLOWLOG|LEN",
    "Returns the number of slow commands that are kept.",
    group="server",
    needs="administer",
    flags="admin",
)
async def slowlog_len(client: Caller, _words: Words) -> int:
    """Reply as Redis does."""
    return len(client.session.clients.slow_log)


@command(
    "SLOWLOG|RESET",
    "Removes all slow commands.",
    group="server",
    needs="administer",
    flags="admin",
)
async def slowlog_reset(client: Caller, _words: Words) -> str:
    """Reply as Redis does."""
    client.session.clients.slow_log.reset()
    return OK
