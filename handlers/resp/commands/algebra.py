"""Set algebra over what is queued: read from all queues at one moment, nothing is taken."""

from __future__ import annotations

from typing import Any

from handlers.resp.caller import Caller
from handlers.resp.commands.words import numbered_keys
from handlers.resp.errors import syntax_error
from handlers.resp.parser import Command, integer_from
from handlers.resp.replies import CommandError, SetReply
from handlers.resp.table import command
from pressure_server.broker import kinds
from pressure_server.errors import QueueDoesNotExistError


async def _contents(client: Caller, queues: list[bytes]) -> list[dict[bytes, None]]:
    """The messages of each queue, oldest first, each once. A queue that is named again is not read again."""
    read = list(dict.fromkeys(queues))
    ranges = await client.database.together(kinds.RANGE, read, [b"0", b"-1"])
    contents: dict[bytes, dict[bytes, None]] = {}
    for queue, messages in zip(read, ranges, strict=True):
        if isinstance(messages, Exception) and not isinstance(messages, QueueDoesNotExistError):
            raise messages
        contents[queue] = {} if isinstance(messages, Exception) else dict.fromkeys(messages)
    return [contents[queue] for queue in queues]


def _in_all(contents: list[dict[bytes, None]]) -> list[Any]:
    first, *others = contents
    return [message for message in first if all(message in other for other in others)]


@command(
    "SINTER key [key ...]",
    "Returns the messages that are queued in all of the queues, in the order of the first.",
    group="set",
    needs="read",
    flags="readonly",
)
async def sinter(client: Caller, words: Command) -> SetReply:
    """As Redis."""
    return SetReply(_in_all(await _contents(client, words[1:])))


@command(
    "SUNION key [key ...]",
    "Returns the messages that are queued in any of the queues, each once.",
    group="set",
    needs="read",
    flags="readonly",
)
async def sunion(client: Caller, words: Command) -> SetReply:
    """As Redis."""
    union: dict[bytes, None] = {}
    for messages in await _contents(client, words[1:]):
        union |= messages
    return SetReply(union)


@command(
    "SDIFF key [key ...]",
    "Returns the messages of the first queue that are in none of the others.",
    group="set",
    needs="read",
    flags="readonly",
)
async def sdiff(client: Caller, words: Command) -> SetReply:
    """As Redis."""
    first, *others = await _contents(client, words[1:])
    return SetReply(message for message in first if not any(message in other for other in others))


@command(
    "SINTERCARD numkeys key [key ...] [LIMIT limit]",
    "Says how many messages are queued in all of the queues; at most LIMIT, if that is not 0.",
    group="set",
    needs="read",
    flags="readonly movablekeys",
)
async def sintercard(client: Caller, words: Command) -> int:
    """As Redis."""
    queues, rest = numbered_keys(words[1:], "ERR Number of keys can't be greater than number of args")
    limit = 0
    if rest:
        if len(rest) != 2 or rest[0].upper() != b"LIMIT":
            raise syntax_error()
        number = integer_from(rest[1])
        if number is None or number < 0:
            raise CommandError("ERR LIMIT can't be negative")
        limit = number
    found = len(_in_all(await _contents(client, queues)))
    return min(found, limit) if limit else found
