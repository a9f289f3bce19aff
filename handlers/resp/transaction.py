"""A client's transaction: what stands between MULTI and EXEC, and how it is done.

Commands on queues that stand together are one call of the broker's; others are done where they stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from handlers.resp.access import check
from handlers.resp.parser import ARGUMENT_COST, Command
from handlers.resp.replies import CommandError
from handlers.resp.table import Spec
from pressure_server.errors import PressureError
from pressure_server.net.connection import Encode
from pressure_server.queues.database import Database
from pressure_server.queues.operations.operation import Operation, Owner, Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.transaction import Transaction

if TYPE_CHECKING:
    from handlers.resp.connection import RespConnection

# What one step may be replied is batch.lua's affair; when steps come to that much no other is done.
_MOST_REPLIED = 64 << 20
_TOO_MUCH = "ERR the replies of the transaction exceed 64 MiB: this has not been done"

Queued = tuple[Spec, Command]
# A command's reply, or what it will be the reply of.
Begun = bytes | Operation | asyncio.Task[Any]


class Commands:
    """The commands behind MULTI, and their `size` in bytes. `is_broken` when one of them was refused."""

    def __init__(self, most_bytes: int) -> None:
        self.queued: list[Queued] = []
        self.is_broken = False
        self.size = 0
        self._most_bytes = most_bytes

    def add(self, spec: Spec, words: Command) -> None:
        """Queue a command. Raises CommandError where they have become too much."""
        self.size += sum(map(len, words)) + ARGUMENT_COST * len(words)
        if self.size > self._most_bytes:
            self.queued.clear()
            raise CommandError("ERR the transaction is too large")
        self.queued.append((spec, words))


class Stand(Owner):
    """The Caller of one command in a transaction. What it replies or submits is kept here, as `entry`.

    It is the owner of what is submitted, so it has what replies are encoded by.
    """

    __slots__ = ("connection", "database", "entry")

    def __init__(self, connection: RespConnection, database: Database | Transaction) -> None:
        self.connection = connection
        self.database = database
        self.entry: bytes | Operation = b""

    @property
    def protocol(self) -> int:
        """See RespConnection."""
        return self.connection.protocol

    @property
    def null(self) -> bytes:
        """See RespConnection."""
        return self.connection.null

    def reply(self, data: bytes) -> None:
        """See Connection.reply."""
        self.entry = data

    def submit(
        self,
        verb: Verb,
        name: bytes,
        messages: list[bytes],
        size: int,
        encode: Encode,
        *,
        commands: int = 1,
        wait: Wait | None = None,
        options: Options = DEFAULT,
    ) -> None:
        """See Connection.submit; nothing waits."""
        self.entry = Operation(verb, name, messages, size, self, encode, commands, options=options)
        self.database.submit(self.entry)

    def waits(self, _operation: Operation) -> None:
        """Nothing waits in a transaction."""
        raise AssertionError

    def completed(self, operation: Operation) -> None:
        """See Connection.completed; the entry is encoded later, for EXEC's reply."""
        if operation.has_taken:
            self.connection.took(operation)


async def execute(
    connection: RespConnection, queued: Iterable[Queued], watched: dict[Database, dict[bytes, bytes]]
) -> list[bytes]:
    """Do the commands; returns their replies.

    Raises QueueChangedError when a watched queue has changed, and other PressureErrors; then nothing has
    been done. Where a part fails after another has been done, its commands have the error for a reply.
    """
    here = watched.pop(connection.database, {})
    for database, versions in watched.items():
        await Transaction(database, connection).commit(versions)
    replies: list[bytes] = []
    for on_queues, group in groupby(queued, lambda command: command[0].is_on_queues):
        if sum(map(len, replies)) > _MOST_REPLIED:
            replies += [connection.failed(CommandError(_TOO_MUCH))] * len(list(group))
        elif on_queues:
            commands = list(group)
            try:
                replies += await _together(connection, commands, here)
            except PressureError as reason:
                if not replies:
                    raise
                replies += [connection.failed(reason)] * len(commands)
            here = {}
        else:
            if here:
                await Transaction(connection.database, connection).commit(here)
                here = {}
            for spec, words in group:
                begun = _begin(Stand(connection, connection.database), spec, words)
                replies.append(await _reply_of(connection, begun))
    if here:
        await Transaction(connection.database, connection).commit(here)
    return replies


async def _together(
    connection: RespConnection, commands: list[Queued], unchanged: dict[bytes, bytes]
) -> list[bytes]:
    transaction = Transaction(connection.database, connection)
    begun: list[Begun] = []
    try:
        for spec, words in commands:
            begun.append(_begin(Stand(connection, transaction), spec, words))
            if isinstance(begun[-1], asyncio.Task):
                # When it waits it has submitted everything.
                await asyncio.sleep(0)
        await transaction.commit(unchanged)
        return [await _reply_of(connection, entry) for entry in begun]
    finally:
        for entry in begun:
            if isinstance(entry, asyncio.Task):
                entry.cancel()


def _begin(stand: Stand, spec: Spec, words: Command) -> Begun:
    try:
        if not stand.connection.user.is_free:
            check(stand.connection, spec, words, by_exec=True)
        coroutine = spec.function(stand, words)
    except Exception as reason:
        return stand.connection.failed(reason)
    return stand.entry if coroutine is None else asyncio.create_task(coroutine)


async def _reply_of(connection: RespConnection, begun: Begun) -> bytes:
    if isinstance(begun, bytes):
        return begun
    try:
        if isinstance(begun, Operation):
            reply: bytes = begun.reply(begun)
            return reply
        return connection.encode(await begun)
    except Exception as reason:
        return connection.failed(reason)
