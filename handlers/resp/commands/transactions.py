"""MULTI, EXEC, DISCARD, WATCH, UNWATCH: commands on queues that are done in one step.

Consecutive commands on queues are done in one call. Other commands are executed between these calls.
"""

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from typing import Any

from handlers.resp import table
from handlers.resp.parser import Words
from handlers.resp.replies import OK, NullArray, Raw
from handlers.resp.session import Caller, QueuedCommands, RespSession, TransactionCaller
from handlers.resp.table import Command
from pressure_server.errors import (
    CommandError,
    PressureError,
    QueueChangedError,
    StoppingError,
    forget_frames,
)
from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.transaction import Transaction

command = partial(table.command, group="transactions")

# In bytes. batch.lua limits the replies of one call; after this many bytes, no further call is made.
_MAX_REPLIED = 64 << 20
# Commands that are begun, and other ones that are executed, before other clients are served.
_BEGUN_AT_ONCE, _OTHERS_AT_ONCE = 1000, 100
_TOO_MUCH = "ERR the replies of the transaction exceed 64 MiB: this command was not executed"

Queued = tuple[Command, Words]
# A command's reply, or the operation or task from which it will come.
Begun = bytes | Operation | asyncio.Task[Any]


async def execute(
    session: RespSession, queued: list[Queued], watched: dict[Database, dict[bytes, bytes]]
) -> list[bytes]:
    """Execute the commands and return their replies.

    Raises QueueChangedError if a watched queue has changed; nothing has been done then. Raises other
    PressureErrors if the first part fails. If a later part fails, its commands have the error as their reply.
    A stop of the server is raised unless a part that works on queues is done: EXEC may be sent again then.
    """
    here = watched.pop(session.database, {})
    for database, versions in watched.items():
        await Transaction(database, session).commit(versions)
    replies: list[bytes] = []
    too_much = session.error_reply(CommandError(_TOO_MUCH))
    has_changed, size = False, 0
    if here and not (queued and queued[0][0].names_queues):
        await Transaction(session.database, session).commit(here)
        here = {}
    for on_queues, commands in _parts(queued):
        if size > _MAX_REPLIED:
            replies += [too_much] * len(commands)
        elif on_queues:
            try:
                found = await _execute_in_one_call(session, commands, here)
                replies += found
                size += sum(map(len, found))
                has_changed = True
            except PressureError as reason:
                if not replies or (isinstance(reason, StoppingError) and not has_changed):
                    raise
                replies += [session.error_reply(reason)] * len(commands)
                forget_frames(reason)
            here = {}
        else:
            for entry, words in commands:
                if size > _MAX_REPLIED:
                    replies.append(too_much)
                    continue
                begun = _start(TransactionCaller(session, session.database), entry, words)
                replies.append(await _reply_of(session, entry, begun))
                size += len(replies[-1])
            await asyncio.sleep(0)
    return replies


def _parts(queued: Iterable[Queued]) -> Iterator[tuple[bool, list[Queued]]]:
    """Yield the parts, and whether each works on queues. Of other commands, a part has some only."""
    for on_queues, group in groupby(queued, lambda command: command[0].names_queues):
        while some := list(group if on_queues else islice(group, _OTHERS_AT_ONCE)):
            yield on_queues, some


async def _execute_in_one_call(
    session: RespSession, commands: list[Queued], unchanged: dict[bytes, bytes]
) -> list[bytes]:
    transaction = Transaction(session.database, session)
    begun: list[Begun] = []
    try:
        for entry, words in commands:
            begun.append(_start(TransactionCaller(session, transaction), entry, words))
            if isinstance(begun[-1], asyncio.Task) or len(begun) % _BEGUN_AT_ONCE == 0:
                # When a task first waits, it has submitted all its operations.
                await asyncio.sleep(0)
        await transaction.commit(unchanged)
        return [
            await _reply_of(session, entry, outcome)
            for (entry, _), outcome in zip(commands, begun, strict=True)
        ]
    finally:
        for outcome in begun:
            if isinstance(outcome, asyncio.Task):
                outcome.cancel()


def _start(caller: TransactionCaller, entry: Command, words: Words) -> Begun:
    session = caller.session
    try:
        if entry not in session.user.allowed:
            session.check(entry, words, by_exec=True)
        coroutine = entry.function(caller, words)
    except Exception as reason:
        reply = session.error_reply(reason)
        entry.statistics.reject(session.error_code(reason, reply))
        return reply
    entry.statistics.calls += 1
    if coroutine is not None:
        return asyncio.create_task(coroutine)
    outcome, caller.outcome = caller.outcome, b""  # an operation refers to its owner, the caller
    return outcome


async def _reply_of(session: RespSession, entry: Command, begun: Begun) -> bytes:
    if isinstance(begun, bytes):
        return begun
    try:
        if isinstance(begun, Operation):
            reply: bytes = begun.encode(begun)
            begun.command = entry.statistics
            session.count_failures(begun, reply)
            return reply
        return session.encode(await begun)
    except Exception as reason:
        reply = session.error_reply(reason)
        entry.statistics.fail(session.error_code(reason, reply))
        forget_frames(reason)
        return reply


@command("MULTI", needs="nothing", flags="fast")
async def multi(client: Caller, _words: Words) -> str:
    """Begins a transaction: later commands are queued until EXEC."""
    session = client.session
    if session.transaction is not None:
        raise CommandError("ERR MULTI calls can not be nested")
    session.transaction = QueuedCommands(session.most_bytes)
    return OK


@command("EXEC", needs="nothing", flags="slow")
async def exec_(client: Caller, _words: Words) -> object:
    """Executes the commands queued since MULTI. Does nothing and returns nil if a watched queue has
    changed.
    """
    # Commands that would wait do not wait, and a put on a full queue fails.
    commands, watched = client.session.end_transaction()
    if commands is None:
        raise CommandError("ERR EXEC without MULTI")
    if commands.is_broken:
        raise CommandError("EXECABORT Transaction discarded because of previous errors.")
    try:
        replies = await execute(client.session, commands.queued, watched)
    except QueueChangedError:
        return NullArray()
    return Raw(b"*%d\r\n" % len(replies) + b"".join(replies))


@command("DISCARD", needs="nothing", flags="fast")
async def discard(client: Caller, _words: Words) -> str:
    """Discards the commands queued since MULTI."""
    commands, _watched = client.session.end_transaction()
    if commands is None:
        raise CommandError("ERR DISCARD without MULTI")
    return OK


@command("WATCH key [key ...]", needs="read", flags="fast")
async def watch(client: Caller, words: Words) -> str:
    """Makes the next EXEC do nothing if one of the queues changes before it."""
    # Changes by native clients count, too.
    if client.session.transaction is not None:
        raise CommandError("ERR WATCH inside MULTI is not allowed")
    versions = client.session.watch(words[1:])
    names = [name for name in dict.fromkeys(words[1:]) if name not in versions]
    client.session.database.common_shard(*versions, *names)
    found = await client.session.database.run_each(verbs.VERSION, names)
    for name, version in zip(names, found, strict=True):
        if isinstance(version, PressureError):
            raise version
        client.session.add_watched(name, version)
    return OK


@command("UNWATCH", needs="nothing", flags="fast")
async def unwatch(client: Caller, _words: Words) -> str:
    """Stops watching all queues."""
    client.session.unwatch()
    return OK
