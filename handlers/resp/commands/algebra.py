"""Set algebra on queued messages. All queues are read at one moment; the messages stay queued."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from functools import partial
from itertools import islice
from typing import Any

from handlers.resp import table
from handlers.resp.arguments import at_least_0, numbered_keys
from handlers.resp.commands.reading import ENCODED_AT_ONCE, long_reply
from handlers.resp.options import OptionTable
from handlers.resp.parser import ARGUMENT_COST, Words
from handlers.resp.replies import Raw, set_sign
from handlers.resp.session import Caller, TransactionCaller
from pressure_server.errors import (
    CommandError,
    QueueChangedError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueTypeError,
)
from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation
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
Algebra = Callable[[Contents], Coroutine[Any, Any, Collection[bytes]]]


async def _contents(client: Caller, queues: list[bytes]) -> Contents:
    """Return the messages of the queues, oldest first, as they are at one moment. Raise CommandError.

    They count as the client's memory until it has its reply.
    """
    names = _distinct(queues)
    by_name = dict(zip(names, await client.database.ranges(names, 0, -1), strict=True))
    for messages in by_name.values():
        await _count(client, messages or ())
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


async def _count(client: Caller, messages: Iterable[bytes]) -> None:
    async for some in _portions(messages):
        client.session.count_bytes(sum(map(len, some)) + ARGUMENT_COST * len(some))


async def _in_all(contents: Contents) -> Collection[bytes]:
    first, others = contents
    found: Collection[bytes] = await _unique(first)
    for other in sorted(others, key=len):
        seen: set[bytes] = set()
        async for some in _portions(other if found else ()):
            seen.update(message for message in some if message in found)
        found = {message: None async for some in _portions(found) for message in some if message in seen}
    return found


async def _in_any(contents: Contents) -> Collection[bytes]:
    first, others = contents
    return await _unique(first, *others)


async def _only_in_first(contents: Contents) -> Collection[bytes]:
    first, others = contents
    left = await _unique(first)
    for other in others:
        async for some in _portions(other if left else ()):
            for message in some:
                left.pop(message, None)
    return left


async def _read(client: Caller, words: Words, *, algebra: Algebra) -> Raw:
    messages = list(await algebra(await _contents(client, words[1:])))
    await _count(client, messages)
    return await long_reply(set_sign(client.session.protocol), messages)


for _name, _algebra, _summary in (
    ("SINTER", _in_all, "that are in all of the queues, each once, in the order of the first queue."),
    ("SUNION", _in_any, "that are in any of the queues, each once."),
    ("SDIFF", _only_in_first, "of the first queue that are in none of the others, each once."),
):
    command(
        f"{_name} key [key ...]",
        needs="read",
        flags="readonly",
        summary=f"Returns the messages {_summary}",
    )(partial(_read, algebra=_algebra))


_SINTERCARD = OptionTable({b"LIMIT": at_least_0("LIMIT")}, last_counts=True, of_redis=True)


@command("SINTERCARD numkeys key [key ...] [LIMIT limit]", needs="read", flags="readonly movablekeys")
async def sintercard(client: Caller, words: Words) -> int:
    """Returns how many messages are in all of the queues. Counts up to LIMIT (0: no limit)."""
    queues, rest = numbered_keys(words[1:], "ERR Number of keys can't be greater than number of args")
    limit: int = _SINTERCARD.values(rest).get(b"LIMIT", 0)
    found = len(await _in_all(await _contents(client, queues)))
    return min(found, limit) if limit else found


async def _store(client: Caller, words: Words, *, algebra: Algebra) -> int:
    """Replace the messages of a queue by those of other queues, in one step; return how many there are."""
    database = client.session.database
    if isinstance(client.database, Transaction):
        # The server computes them, between two calls: docs/internals/transactions.md.
        raise CommandError(
            "ERR results of set algebra cannot be stored in a transaction: WATCH the queues, read them, and "
            "put the result after MULTI"
        )
    destination, *sources = words[1:]
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
        if about.log:
            raise QueueTypeError(printable(queue), "is-group")
        bound, is_closed, stay = about.bound, about.is_closed, about.delayed
    except QueueDoesNotExistError:
        if not messages:
            return
        bound, is_closed, stay = database.policy.limits_of_new(queue)[0], 0, 0
    if is_closed:
        raise QueueClosedError(printable(queue))
    if messages and bound and stay + len(messages) > bound:
        raise QueueFullError(printable(queue))
    transaction = Transaction(database, client.session)
    owner = TransactionCaller(client.session, transaction)
    steps = [Operation(verbs.PURGE, queue, [b"ready"], 1, owner)]
    if messages:
        steps.append(Operation(verbs.PUT, queue, messages, len(messages), owner, options=UNIQUE))
    for step in steps:
        transaction.submit(step)
    await transaction.commit(versions)
    for step in steps:
        had_nothing = step.verb is verbs.PURGE and isinstance(step.error, QueueDoesNotExistError)
        if step.error is not None and not had_nothing:
            raise step.error


for _name, _algebra, _summary in (
    ("SINTERSTORE", _in_all, "those that are in all"),
    ("SUNIONSTORE", _in_any, "those that are in any"),
    ("SDIFFSTORE", _only_in_first, "those that are in the first and in none"),
):
    command(
        f"{_name} destination key [key ...]",
        needs="read put get",
        flags="write denyoom",
        summary=f"Replaces the messages of a queue by {_summary} of the others; returns how many there are.",
    )(partial(_store, algebra=_algebra))
