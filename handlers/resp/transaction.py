"""A client's transaction: what stands between MULTI and EXEC, and how it is done.

Commands on queues that stand together are one call of the broker's; others are done where they stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import groupby
from typing import Any

from handlers.resp.parser import Command
from handlers.resp.replies import CommandError
from handlers.resp.table import Spec
from pressure_server.broker.database import Database
from pressure_server.broker.operation import Kind, Operation
from pressure_server.broker.transaction import Transaction
from pressure_server.broker.wait import Wait
from pressure_server.connection import Encode
from pressure_server.errors import PressureError

# As the parser counts an argument's cost.
_ARGUMENT_COST = 64

Queued = tuple[Spec, Command]


class Commands:
    """The commands behind MULTI. `is_broken` when one of them was refused."""

    def __init__(self, most_bytes: int) -> None:
        self.queued: list[Queued] = []
        self.is_broken = False
        self._bytes_left = most_bytes

    def add(self, spec: Spec, words: Command) -> None:
        """Queue a command. Raises CommandError where they have become too much."""
        self._bytes_left -= sum(map(len, words)) + _ARGUMENT_COST * len(words)
        if self._bytes_left < 0:
            self.queued.clear()
            raise CommandError("ERR the transaction is too large")
        self.queued.append((spec, words))


class Stand:
    """What a command sees of its client: all of it, but its replies are kept here."""

    __slots__ = ("_client", "entries")

    def __init__(self, client: Any) -> None:
        object.__setattr__(self, "_client", client)
        object.__setattr__(self, "entries", [])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._client, name, value)

    def reply(self, data: bytes) -> None:
        """See Connection.reply."""
        self.entries.append(data)

    def waits(self, _operation: Operation) -> None:
        """Nothing waits in a transaction."""
        raise AssertionError

    def completed(self, _operation: Operation) -> bool:
        """See Connection.completed; the entry is encoded later."""
        return True


class StandInTransaction(Stand):
    """The same, and what it submits becomes part of a transaction."""

    __slots__ = ("database",)

    def __init__(self, client: Any, transaction: Transaction) -> None:
        super().__init__(client)
        object.__setattr__(self, "database", transaction)

    def submit(
        self,
        kind: Kind,
        name: bytes,
        messages: list[bytes],
        size: int,
        encode: Encode,
        *,
        commands: int = 1,
        wait: Wait | None = None,
    ) -> None:
        """See Connection.submit; nothing waits."""
        operation = Operation(kind, name, messages, size, self, encode, commands)
        self.database.submit(operation)
        self.entries.append(operation)


async def execute(
    client: Any, queued: Iterable[Queued], watched: dict[Database, dict[bytes, bytes]]
) -> list[bytes]:
    """Do the commands; returns their replies.

    Raises QueueChangedError when a watched queue has changed, and other PressureErrors; then nothing has
    been done. Where a part fails after another has been done, its commands have the error for a reply.
    """
    here = watched.pop(client.database, {})
    for database, versions in watched.items():
        await Transaction(database, client).commit(versions)
    replies: list[bytes] = []
    for on_queues, group in groupby(queued, lambda command: command[0].is_on_queues):
        if on_queues:
            commands = list(group)
            try:
                replies += await _together(client, commands, here)
            except PressureError as reason:
                if not replies:
                    raise
                replies += [client.failed(reason)] * len(commands)
            here = {}
        else:
            if here:
                await Transaction(client.database, client).commit(here)
                here = {}
            for spec, words in group:
                replies.append(await _alone(client, spec, words))
    if here:
        await Transaction(client.database, client).commit(here)
    return replies


async def _alone(client: Any, spec: Spec, words: Command) -> bytes:
    stand = Stand(client)
    try:
        coroutine = spec.function(stand, words)
        if coroutine is None:
            return b"".join(stand.entries)
        return bytes(client.encode(await coroutine))
    except (CommandError, PressureError) as reason:
        return bytes(client.failed(reason))


async def _together(client: Any, commands: list[Queued], unchanged: dict[bytes, bytes]) -> list[bytes]:
    transaction = Transaction(client.database, client)
    stand = StandInTransaction(client, transaction)
    begun: list[bytes | Operation | asyncio.Task[Any]] = []
    try:
        for spec, words in commands:
            begun.append(await _begin(client, stand, spec, words))
        await transaction.commit(unchanged)
        return [await _reply_of(client, entry) for entry in begun]
    finally:
        for entry in begun:
            if isinstance(entry, asyncio.Task):
                entry.cancel()


async def _begin(
    client: Any, stand: StandInTransaction, spec: Spec, words: Command
) -> bytes | Operation | asyncio.Task[Any]:
    """Let a command submit what it has to submit."""
    try:
        coroutine: Coroutine[Any, Any, Any] | None = spec.function(stand, words)
    except (CommandError, PressureError) as reason:
        return bytes(client.failed(reason))
    if coroutine is None:
        entry: bytes | Operation = stand.entries.pop()
        return entry
    task = asyncio.create_task(coroutine)
    # When it waits it has submitted everything; what it began itself, for several queues, one turn later.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def _reply_of(client: Any, entry: bytes | Operation | asyncio.Task[Any]) -> bytes:
    if isinstance(entry, bytes):
        return entry
    if isinstance(entry, Operation):
        return bytes(entry.reply(entry))
    try:
        return bytes(client.encode(await entry))
    except Exception as reason:
        return bytes(client.failed(reason))
