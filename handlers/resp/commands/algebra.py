"""Set algebra on queued messages. All queues are read at one moment; the messages stay queued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import chain, islice

from handlers.resp.arguments import numbered_keys
from handlers.resp.client import Caller
from handlers.resp.commands.reading import ENCODED_AT_ONCE, long_reply
from handlers.resp.errors import syntax_error
from handlers.resp.parser import Command, integer_from
from handlers.resp.replies import CommandError, Raw, set_sign
from handlers.resp.table import command


async def _contents(client: Caller, queues: list[bytes]) -> list[dict[bytes, None]]:
    """Return the distinct messages of each queue, oldest first. A queue that is named twice is read once."""
    read = list(dict.fromkeys(queues))
    ranges = await client.database.ranges(read, 0, -1)
    contents = {queue: await _unique(found or []) for queue, found in zip(read, ranges, strict=True)}
    return [contents[queue] for queue in queues]


async def _unique(messages: Sequence[bytes]) -> dict[bytes, None]:
    unique: dict[bytes, None] = {}
    async for some in _portions(messages):
        unique |= dict.fromkeys(some)
    return unique


async def _portions(messages: Iterable[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the messages in portions. Other clients are served in between."""
    left = iter(messages)
    while some := list(islice(left, ENCODED_AT_ONCE)):
        yield some
        await asyncio.sleep(0)


async def _in_all(contents: list[dict[bytes, None]]) -> list[bytes]:
    first, *others = contents
    found: list[bytes] = []
    async for some in _portions(first):
        found += [message for message in some if all(message in other for other in others)]
    return found


async def _set_of(client: Caller, messages: Sequence[bytes]) -> Raw:
    return await long_reply(set_sign(client.connection.protocol), messages)


@command(
    "SINTER key [key ...]",
    "Returns the messages that are in all of the queues, each once, in the order of the first queue.",
    group="set",
    needs="read",
    flags="readonly",
)
async def sinter(client: Caller, words: Command) -> Raw:
    """Reply as Redis does."""
    return await _set_of(client, await _in_all(await _contents(client, words[1:])))


@command(
    "SUNION key [key ...]",
    "Returns the messages that are in any of the queues, each once.",
    group="set",
    needs="read",
    flags="readonly",
)
async def sunion(client: Caller, words: Command) -> Raw:
    """Reply as Redis does."""
    contents = await _contents(client, words[1:])
    return await _set_of(client, list(await _unique(list(chain.from_iterable(contents)))))


@command(
    "SDIFF key [key ...]",
    "Returns the messages of the first queue that are in none of the others, each once.",
    group="set",
    needs="read",
    flags="readonly",
)
async def sdiff(client: Caller, words: Command) -> Raw:
    """Reply as Redis does."""
    first, *others = await _contents(client, words[1:])
    left: list[bytes] = []
    async for some in _portions(first):
        left += [message for message in some if not any(message in other for other in others)]
    return await _set_of(client, left)


@command(
    "SINTERCARD numkeys key [key ...] [LIMIT limit]",
    "Returns how many messages are in all of the queues. Counts up to LIMIT (0: no limit).",
    group="set",
    needs="read",
    flags="readonly movablekeys",
)
async def sintercard(client: Caller, words: Command) -> int:
    """Reply as Redis does."""
    queues, rest = numbered_keys(words[1:], "ERR Number of keys can't be greater than number of args")
    limit = 0
    if rest:
        if len(rest) != 2 or rest[0].upper() != b"LIMIT":
            raise syntax_error()
        number = integer_from(rest[1])
        if number is None or number < 0:
            raise CommandError("ERR LIMIT can't be negative")
        limit = number
    found = len(await _in_all(await _contents(client, queues)))
    return min(found, limit) if limit else found
