"""Set algebra on queued messages. All queues are read at one moment; the messages stay queued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from functools import partial
from itertools import islice
from typing import Any

from handlers.resp import table
from handlers.resp.arguments import at_least_0, numbered_keys, options_in
from handlers.resp.commands.reading import ENCODED_AT_ONCE, long_reply
from handlers.resp.parser import ARGUMENT_COST, Words
from handlers.resp.replies import Raw, set_sign
from handlers.resp.session import Caller
from pressure_server.errors import (
    CommandError,
    PressureError,
    QueueChangedError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
)
from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.options import UNIQUE
from pressure_server.queues.operations.queue_info import QueueInfo
from pressure_server.queues.transaction import Transaction
from pressure_server.text import printable

command = partial(table.command, group="set")

# The most queues of a command: the backend reads all of them in one step.
MAX_QUEUES = 1000
# How often a result is computed again because a queue has changed meanwhile.
_ATTEMPTS = 20


# The messages of the distinct queues, each once: of the first queue, and of the others.
Contents = tuple[list[bytes], list[list[bytes]]]


async def _contents(client: Caller, queues: list[bytes]) -> Contents:
    """Return the messages of the queues, oldest first, as they are at one moment. Raise CommandError.

    They count as the client's memory until it has its reply.
    """
    names = _distinct(queues)
    by_name = dict(zip(names, await client.database.ranges(names, 0, -1), strict=True))
    for messages in by_name.values():
        async for some in _portions(messages or ()):
            client.session.count_bytes(sum(map(len, some)) + ARGUMENT_COST * len(some))
    others = [by_name[name] or [] for name in dict.fromkeys(queues[1:])]
    return by_name[queues[0]] or [], others


def _distinct(queues: list[bytes]) -> list[bytes]:
    """Return the names, each once. Raise CommandError if there are too many."""
    names = list(dict.fromkeys(queues))
    if len(names) > MAX_QUEUES:
        raise CommandError(f"ERR too many queues: at most {MAX_QUEUES}")
    return names


async def _unique(*several: Iterable[bytes]) -> dict[bytes, None]:
    unique: dict[bytes, None] = {}
    for messages in several:
        async for some in _portions(messages):
            unique |= dict.fromkeys(some)
    return unique


async def _portions(messages: Iterable[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the messages in portions. Other clients are served in between."""
    left = iter(messages)
    while some := list(islice(left, ENCODED_AT_ONCE)):
        yield some
        await asyncio.sleep(0)


async def _in_all(contents: Contents) -> Collection[bytes]:
    first, others = contents
    found: Collection[bytes] = await _unique(first)
    for other in sorted(others, key=len):
        seen: set[bytes] = set()
        async for some in _portions(other if found else ()):
            seen.update(message for message in some if message in found)
        found = {message: None async for some in _portions(found) for message in some if message in seen}
    return found


async def _union_of(contents: Contents) -> Collection[bytes]:
    first, others = contents
    return await _unique(first, *others)


async def _difference_of(contents: Contents) -> Collection[bytes]:
    first, others = contents
    left = await _unique(first)
    for other in others:
        async for some in _portions(other if left else ()):
            for message in some:
                left.pop(message, None)
    return left


async def _set_of(client: Caller, found: Collection[bytes]) -> Raw:
    messages = list(found)
    async for some in _portions(messages):
        client.session.count_bytes(sum(map(len, some)) + ARGUMENT_COST * len(some))
    return await long_reply(set_sign(client.session.protocol), messages)


@command(
    "SINTER key [key ...]",
    "Returns the messages that are in all of the queues, each once, in the order of the first queue.",
    needs="read",
    flags="readonly",
)
async def sinter(client: Caller, words: Words) -> Raw:
    """Reply as Redis does."""
    return await _set_of(client, await _in_all(await _contents(client, words[1:])))


@command(
    "SUNION key [key ...]",
    "Returns the messages that are in any of the queues, each once.",
    needs="read",
    flags="readonly",
)
async def sunion(client: Caller, words: Words) -> Raw:
    """Reply as Redis does."""
    return await _set_of(client, await _union_of(await _contents(client, words[1:])))


@command(
    "SDIFF key [key ...]",
    "Returns the messages of the first queue that are in none of the others, each once.",
    needs="read",
    flags="readonly",
)
async def sdiff(client: Caller, words: Words) -> Raw:
    """Reply as Redis does."""
    return await _set_of(client, await _difference_of(await _contents(client, words[1:])))


@command(
    "SINTERCARD numkeys key [key ...] [LIMIT limit]",
    "Returns how many messages are in all of the queues. Counts up to LIMIT (0: no limit).",
    needs="read",
    flags="readonly movablekeys",
)
async def sintercard(client: Caller, words: Words) -> int:
    """Reply as Redis does."""
    queues, rest = numbered_keys(words[1:], "ERR Number of keys can't be greater than number of args")
    limit: int = options_in(rest, {b"LIMIT": at_least_0("LIMIT")}, last_counts=True, of_redis=True).get(
        b"LIMIT", 0
    )
    found = len(await _in_all(await _contents(client, queues)))
    return min(found, limit) if limit else found


Algebra = Callable[[Contents], Coroutine[Any, Any, Collection[bytes]]]


async def _store(client: Caller, destination: bytes, sources: list[bytes], algebra: Algebra) -> int:
    """Replace the messages of a queue by those of other queues, in one step; return how many there are."""
    database = client.session.database
    if isinstance(client.database, Transaction):
        # The server computes them, between two calls: docs/internals/transactions.md.
        raise CommandError(
            "ERR results of set algebra cannot be stored in a transaction: WATCH the queues, read them, and "
            "put the result after MULTI"
        )
    names = _distinct([destination, *sources])
    for _ in range(_ATTEMPTS):
        before = client.session.counted_bytes
        versions = {name: (await database.run(verbs.VERSION, name))[0] for name in names}
        found = list(await algebra(await _contents(client, sources)))
        try:
            await _replace(database, destination, found, versions, client)
        except QueueChangedError:
            client.session.count_bytes(before - client.session.counted_bytes)
            continue
        return len(found)
    raise CommandError("ERR the queues change too often: try again")


async def _replace(
    database: Database, queue: bytes, messages: list[bytes], versions: dict[bytes, bytes], client: Caller
) -> None:
    """Purge the queue and put the messages, if no queue has changed. Raise a PressureError."""
    try:
        about: QueueInfo = (await database.run(verbs.INFO, queue))[0]
        bound, is_closed = about.bound, about.is_closed
    except QueueDoesNotExistError:
        if not messages:
            return
        bound, is_closed = database.policy.limits_of_new(queue)[0], 0
    if is_closed:
        raise QueueClosedError(printable(queue))
    if bound and len(messages) > bound:
        raise QueueFullError(printable(queue))
    transaction = Transaction(database, client.session)
    runs = [transaction.run(verbs.PURGE, queue, [b"ready"])]
    if messages:
        runs.append(transaction.run(verbs.PUT, queue, messages, len(messages), options=UNIQUE))
    done = [asyncio.ensure_future(run) for run in runs]
    await asyncio.sleep(0)  # until both have been submitted
    try:
        await transaction.commit(versions)
    except BaseException:
        for step in done:
            step.cancel()
        raise
    purged, *others = await asyncio.gather(*done, return_exceptions=True)
    if isinstance(purged, PressureError) and not isinstance(purged, QueueDoesNotExistError):
        raise purged
    for error in others:
        if isinstance(error, PressureError):
            raise error


def _enter_store(name: str, stored: str, algebra: Algebra) -> None:
    @command(
        f"{name} destination key [key ...]",
        f"Replaces the messages of a queue by {stored} of the others; returns how many there are.",
        needs="read put get",
        flags="write denyoom",
    )
    async def _function(client: Caller, words: Words) -> int:
        return await _store(client, words[1], words[2:], algebra)


_enter_store("SINTERSTORE", "those that are in all", _in_all)
_enter_store("SUNIONSTORE", "those that are in any", _union_of)
_enter_store("SDIFFSTORE", "those that are in the first and in none", _difference_of)
