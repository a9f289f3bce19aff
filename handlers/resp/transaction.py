"""The execution of a client's transaction: the commands between MULTI and EXEC.

Consecutive commands on queues are done in one call. Other commands are executed between these calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from handlers.resp.access import check
from handlers.resp.client import RespClient, Spec
from handlers.resp.parser import Command
from handlers.resp.replies import CommandError
from pressure_server.errors import PressureError, forget_frames
from pressure_server.queues.database import Database
from pressure_server.queues.operations.operation import Encode, Operation, Owner, Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.transaction import Transaction

# In bytes. batch.lua limits the replies of one call; after this many bytes, no further call is made.
_MAX_REPLIED = 64 << 20
_TOO_MUCH = "ERR the replies of the transaction exceed 64 MiB: this command was not executed"

Queued = tuple[Spec, Command]
# A command's reply, or the operation or task from which it will come.
Begun = bytes | Operation | asyncio.Task[Any]


class TransactionCaller(Owner):
    """The caller of one command in a transaction. It keeps the command's reply or operation as `outcome`.

    It owns the operation, so it has the attributes of a client that encoders use.
    """

    __slots__ = ("connection", "database", "outcome")

    def __init__(self, connection: RespClient, database: Database | Transaction) -> None:
        self.connection = connection
        self.database = database
        self.outcome: bytes | Operation = b""

    @property
    def transaction_id(self) -> bytes | None:
        """See RespClient."""
        return self.connection.transaction_id

    @property
    def protocol(self) -> int:
        """See RespClient."""
        return self.connection.protocol

    @property
    def null(self) -> bytes:
        """See RespClient."""
        return self.connection.null

    def reply(self, data: bytes) -> None:
        """See Connection.reply."""
        self.outcome = data

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
        """See Connection.submit. `wait` is ignored: nothing waits in a transaction."""
        self.outcome = Operation(verb, name, messages, size, self, encode, commands, options=options)
        self.database.submit(self.outcome)

    def wait_began(self, _operation: Operation) -> None:
        """Raise AssertionError: nothing waits in a transaction."""
        raise AssertionError

    def completed(self, operation: Operation) -> None:
        """See Connection.completed. `execute` encodes the entry later, for the reply of EXEC."""
        if operation.has_taken:
            self.connection.take_over(operation)


async def execute(
    connection: RespClient, queued: Iterable[Queued], watched: dict[Database, dict[bytes, bytes]]
) -> list[bytes]:
    """Execute the commands and return their replies.

    Raises QueueChangedError if a watched queue has changed; nothing has been done then. Raises other
    PressureErrors if the first part fails. If a later part fails, its commands have the error as their reply.
    """
    here = watched.pop(connection.database, {})
    for database, versions in watched.items():
        await Transaction(database, connection).commit(versions)
    replies: list[bytes] = []
    for on_queues, group in groupby(queued, lambda command: command[0].names_queues):
        if sum(map(len, replies)) > _MAX_REPLIED:
            replies += [connection.error_reply(CommandError(_TOO_MUCH))] * len(list(group))
        elif on_queues:
            commands = list(group)
            try:
                replies += await _execute_in_one_call(connection, commands, here)
            except PressureError as reason:
                if not replies:
                    raise
                replies += [connection.error_reply(reason)] * len(commands)
                forget_frames(reason)
            here = {}
        else:
            if here:
                await Transaction(connection.database, connection).commit(here)
                here = {}
            for spec, words in group:
                begun = _start(TransactionCaller(connection, connection.database), spec, words)
                replies.append(await _reply_of(connection, spec, begun))
    if here:
        await Transaction(connection.database, connection).commit(here)
    return replies


async def _execute_in_one_call(
    connection: RespClient, commands: list[Queued], unchanged: dict[bytes, bytes]
) -> list[bytes]:
    transaction = Transaction(connection.database, connection)
    begun: list[Begun] = []
    try:
        for spec, words in commands:
            begun.append(_start(TransactionCaller(connection, transaction), spec, words))
            if isinstance(begun[-1], asyncio.Task):
                # When the task first waits, it has submitted all its operations.
                await asyncio.sleep(0)
        await transaction.commit(unchanged)
        return [
            await _reply_of(connection, spec, entry) for (spec, _), entry in zip(commands, begun, strict=True)
        ]
    finally:
        for entry in begun:
            if isinstance(entry, asyncio.Task):
                entry.cancel()


def _start(caller: TransactionCaller, spec: Spec, words: Command) -> Begun:
    connection = caller.connection
    try:
        if not connection.user.is_unrestricted:
            check(connection, spec, words, by_exec=True)
        coroutine = spec.function(caller, words)
    except Exception as reason:
        reply = connection.error_reply(reason)
        spec.statistics.reject(connection.error_code(reason, reply))
        return reply
    spec.statistics.calls += 1
    if coroutine is not None:
        return asyncio.create_task(coroutine)
    outcome, caller.outcome = caller.outcome, b""  # an operation refers to its owner, the caller
    return outcome


async def _reply_of(connection: RespClient, spec: Spec, begun: Begun) -> bytes:
    if isinstance(begun, bytes):
        return begun
    try:
        if isinstance(begun, Operation):
            if begun.error is not None:
                spec.statistics.fail(begun.error.code, len(begun.sizes))
            reply: bytes = begun.encode(begun)
            return reply
        return connection.encode(await begun)
    except Exception as reason:
        reply = connection.error_reply(reason)
        spec.statistics.fail(connection.error_code(reason, reply))
        forget_frames(reason)
        return reply
