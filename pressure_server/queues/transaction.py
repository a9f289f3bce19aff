"""Transactions: operations on several queues in one call, with no other client in between.

Operations in a transaction do not wait for messages or room. Only roles that native clients hold are waited
for, before anything is done. All queues of a transaction are in one shard.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from pressure_server.errors import (
    PressureError,
    QueueChangedError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueInUseError,
    StoppingError,
)
from pressure_server.queues.calls.direct import call_directly
from pressure_server.queues.database import UP_TO_COUNT, Database
from pressure_server.queues.names import base_key
from pressure_server.queues.operations import batch, verbs
from pressure_server.queues.operations.block_reply import Refused
from pressure_server.queues.operations.operation import Delivery, Line, Operation, Verb
from pressure_server.queues.operations.options import WAITS
from pressure_server.queues.operations.owners import Client, CoroutineOwner
from pressure_server.queues.operations.refusals import condition_for, exception_for
from pressure_server.queues.operations.wait import Unblocking, WaitCondition
from pressure_server.queues.queue_operations import QueueOperations
from pressure_server.queues.shard import Shard

_ROLES = {Line.PRODUCERS: b"producer", Line.CONSUMERS: b"consumer"}


def _split_waiting(run: list[Operation]) -> list[list[Operation]]:
    """Split a run whose operations cannot wait here: each needs its own reason for having no message."""
    return [[operation] for operation in run] if run[0].options.waits else [run]


class Transaction(QueueOperations):
    """Operations that `commit` does in one call; coroutines that have asked for one wait until then.

    Each coroutine must submit all its operations before it first waits.
    """

    can_wait = False

    def __init__(self, database: Database, client: Client | None = None) -> None:
        """`client` is told when the transaction waits for a role."""
        self._database = database
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._operations: list[Operation] = []
        # Until when it waits for roles, by the loop's clock, and the request to wait no longer.
        self._until = 0.0
        self._unblocking: Unblocking | None = None
        # Lets it look again while it waits.
        self._look_again: Callable[[], None] | None = None

    def prefix_of(self, first: bytes, *others: bytes) -> bytes:
        """See QueueOperations."""
        return self._database.prefix_of(first, *others)

    def submit(self, operation: Operation) -> None:
        """Do the operation at `commit`. Raises QueueNameError."""
        base_key(self.prefix_of(operation.name), operation.name)
        self._operations.append(operation)

    async def attempt(self, operation: Operation, owner: CoroutineOwner) -> list[Any] | PressureError:
        """See QueueOperations. The operation is done at `commit`."""
        self._begin(operation, owner)
        try:
            await owner.first_ended
        finally:
            owner.end()
        return operation.error or operation.results

    def _begin(self, operation: Operation, owner: CoroutineOwner) -> None:
        """Submit an operation. It ends at once if it has no place in the transaction."""
        try:
            self.submit(operation)
        except PressureError as error:
            operation.error = error
            owner.completed(operation)

    async def run_each(
        self, verb: Verb, names: Sequence[bytes], arguments: list[bytes] | None = None, client: object = None
    ) -> list[Any]:
        """See QueueOperations. `client` is not used, as nothing waits."""
        begun: list[tuple[Operation, CoroutineOwner]] = []
        for name in names:
            owner = CoroutineOwner(None)
            begun.append((Operation(verb, name, list(arguments or []), 1, owner), owner))
            self._begin(*begun[-1])
        for _, owner in begun:
            await owner.first_ended
        return [operation.error or operation.results[0] for operation, _ in begun]

    async def take(
        self, names: Sequence[bytes], timeout: float | None, count: int = 1, client: Client | None = None
    ) -> tuple[bytes, list[bytes]] | None:
        """See Database.take. This one never waits."""
        for name in names:
            base_key(self.prefix_of(name), name)  # raise before any operation is submitted
        first = WAITS if count == 1 else UP_TO_COUNT
        operations: list[Operation] = []
        calls: list[CoroutineOwner] = []
        for name in names:
            options = replace(first, if_none_taken=bool(operations))
            calls.append(CoroutineOwner(client))
            operations.append(Operation(verbs.GET, name, [], count, calls[-1], options=options))
            self.submit(operations[-1])
        for call in calls:
            await call.first_ended
        for operation in operations:
            if operation.results:
                return operation.name, operation.results
        for operation in operations:
            # With a timeout of 0, closed queues are skipped: see Database.take.
            if operation.error is not None and (
                timeout != 0 or not isinstance(operation.error, QueueClosedError)
            ):
                raise operation.error
        return None

    async def ranges(self, names: Sequence[bytes], first: int, last: int) -> list[list[bytes] | None]:
        """See QueueOperations."""
        ranges = await self.run_each(verbs.RANGE, names, [b"%d" % first, b"%d" % last])
        for found in ranges:
            if isinstance(found, PressureError) and not isinstance(found, QueueDoesNotExistError):
                raise found
        return [None if isinstance(found, PressureError) else found for found in ranges]

    async def commit(self, versions: Mapping[bytes, bytes] | None = None) -> None:
        """Do all submitted operations, if the queues in `versions` still have these versions (verb VERSION).

        Nothing is done after a QueueChangedError, a QueueInUseError (a role is not free in time), a
        StoppingError or a CrossShardError. After an OutcomeUnknownError all may have been done, after a
        NotSafeError all has been. If it is cancelled after the call was done, the messages taken are put
        back.
        """
        names = list(dict.fromkeys([*(versions or {}), *(operation.name for operation in self._operations)]))
        if not names:
            return
        shard = self._database.common_shard(*names)
        runs, arguments = self._pack(shard.prefix, versions or {})
        keys = [base_key(shard.prefix, name) for name in versions or {}]
        # Owners of operations refer to the transaction: both are freed without the garbage collector if it
        # does not refer to the operations any longer.
        operations, self._operations = self._operations, []
        for operation in operations:
            keys.append(base_key(shard.prefix, operation.name))
            if operation.verb.moves:
                keys.append(operation.messages[0])

        def share(reply: list[Any], delivery: Delivery | None) -> None:
            batch.distribute(runs, reply)
            if delivery is not None:
                delivery.add([operation for operation in operations if operation.has_taken])

        def undo() -> None:
            for operation in operations:
                operation.put_back()

        shard.flush_put_backs(names)
        changes = any(operation.verb.changes for operation in operations)
        must_last = any(operation.verb.must_last for operation in operations)
        self._until = self._loop.time() + self._database.policy.role_timeout
        while True:
            reply = await call_directly(
                shard, keys, arguments, share, undo, changes=changes, must_last=must_last
            )
            if not isinstance(reply, Refused):
                break
            await self._wait_until_callable(shard, reply)
        deletes = [operation for operation in operations if operation.verb is verbs.FINISH_DELETE]
        # Without an await before: owners get the messages before anything can be cancelled.
        for operation in operations:
            if operation in deletes:
                continue
            wait = operation.wait
            if wait is not None and wait.condition is not None and wait.timeout_error is not None:
                operation.fail(wait.timeout_error)
            operation.owner.completed(operation)
        for operation in deletes:
            await self._finish_delete(operation)
            operation.owner.completed(operation)
        shard.wake_up({operation.name for operation in operations})

    def _pack(
        self, prefix: bytes, unchanged: Mapping[bytes, bytes]
    ) -> tuple[list[list[Operation]], list[bytes]]:
        arguments: list[bytes] = []

        def say(word: bytes, argument: bytes) -> None:
            arguments.extend((word, b"1", argument))

        for name, version in unchanged.items():
            say(b"on", base_key(prefix, name))
            say(b"unchanged", version)
        roles: dict[bytes, set[bytes]] = {}
        for operation in self._operations:
            if operation.verb.line is not None and operation.verb is not verbs.DELETE:
                roles.setdefault(operation.name, set()).add(_ROLES[operation.verb.line])
        for name, needed in roles.items():
            say(b"on", base_key(prefix, name))
            say(b"free", b" ".join(sorted(needed)))
        runs: list[list[Operation]] = []
        for name, group in groupby(self._operations, lambda operation: operation.name):
            say(b"on", base_key(prefix, name))
            of_queue = [part for run in batch.fold(list(group)) for part in _split_waiting(run)]
            arguments += batch.pack(of_queue)
            runs += of_queue
        return runs, arguments

    async def _wait_until_callable(self, shard: Shard, refused: Refused) -> None:
        """Wait until the call may be repeated. Raises QueueChangedError, QueueInUseError or StoppingError."""
        name, reason = refused.base[len(shard.prefix) + 1 :], refused.reason
        if reason == "CHANGED":
            raise QueueChangedError()
        if refused.must_be_repeated:
            return
        condition = condition_for(reason) or WaitCondition.REMOVED
        if condition in (WaitCondition.PRODUCER_ROLE, WaitCondition.CONSUMER_ROLE):
            shard.role_turns.ask(name, condition, for_listeners=True)
        if not shard.is_stopping:
            self._look_again = partial(shard.notifications.notify, name)
            if self._client is not None:
                self._client.begin_wait(self, (name,))
            try:
                if await shard.notifications.wait_for(name, condition, self._until - self._loop.time()):
                    return
            finally:
                if self._client is not None:
                    self._client.end_wait(self)
        if shard.is_stopping:
            raise StoppingError()
        unblocked = self._unblocking.take_effect() if self._unblocking is not None else None
        raise unblocked or exception_for(name, reason)

    def unblock(self, unblocking: Unblocking) -> None:
        """See owners.Waiter. The call is tried once more."""
        self._unblocking, self._until = unblocking, 0.0
        if self._look_again is not None:
            self._look_again()

    async def _finish_delete(self, operation: Operation) -> None:
        """Delete what is left, after the native client that holds a role has noticed the deletion."""
        try:
            operation.results = await self._database.run(verbs.FINISH_DELETE, operation.name)
        except QueueInUseError as error:
            operation.fail(error)
