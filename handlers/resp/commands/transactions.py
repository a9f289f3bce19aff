"""MULTI, EXEC, DISCARD, WATCH, UNWATCH: commands on queues that are done in one step."""

from __future__ import annotations

from handlers.resp.parser import Words
from handlers.resp.replies import OK, CommandError, NullArray, Raw
from handlers.resp.session import Caller
from handlers.resp.table import command
from handlers.resp.transaction import execute
from pressure_server.errors import QueueChangedError
from pressure_server.queues.operations import verbs


@command(
    "MULTI",
    "Begins a transaction: later commands are queued until EXEC.",
    group="transactions",
    needs="nothing",
    flags="fast",
)
async def multi(client: Caller, _words: Words) -> str:
    """Reply as Redis does."""
    client.session.begin_transaction()
    return OK


@command(
    "EXEC",
    "Executes the commands queued since MULTI. Does nothing and returns nil if a watched queue has changed.",
    group="transactions",
    needs="nothing",
    flags="slow",
)
async def exec_(client: Caller, _words: Words) -> object:
    """Reply as Redis does. Commands that would wait do not wait, and a put on a full queue fails."""
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


@command(
    "DISCARD",
    "Discards the commands queued since MULTI.",
    group="transactions",
    needs="nothing",
    flags="fast",
)
async def discard(client: Caller, _words: Words) -> str:
    """Reply as Redis does."""
    commands, _watched = client.session.end_transaction()
    if commands is None:
        raise CommandError("ERR DISCARD without MULTI")
    return OK


@command(
    "WATCH key [key ...]",
    "Makes the next EXEC do nothing if one of the queues changes before it.",
    group="transactions",
    needs="read",
    flags="fast",
)
async def watch(client: Caller, words: Words) -> str:
    """Reply as Redis does. Changes by native clients count, too."""
    if client.session.transaction is not None:
        raise CommandError("ERR WATCH inside MULTI is not allowed")
    versions = client.session.watch(words[1:])
    for name in words[1:]:
        if name not in versions:
            versions[name] = (await client.session.database.run(verbs.VERSION, name))[0]
    return OK


@command("UNWATCH", "Stops watching all queues.", group="transactions", needs="nothing", flags="fast")
async def unwatch(client: Caller, _words: Words) -> str:
    """Reply as Redis does."""
    client.session.unwatch()
    return OK
