"""Operations on queues as coroutines, for callers that need not know whether a transaction does them.

`kick`, `purge` and `redrive` work on all messages of a queue, in steps that are short for the backend.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pressure_server.errors import PressureError, QueueDoesNotExistError
from pressure_server.queues.names import base_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.owners import Client, CoroutineOwner
from pressure_server.queues.operations.refusals import exception_for
from pressure_server.queues.operations.wait import AS_CONFIGURED, Wait

READY, DELAYED, RESERVED, BURIED = b"ready", b"delayed", b"reserved", b"buried"
QUEUED = (READY, DELAYED)


class QueueOperations(ABC):
    """The interface that databases and transactions share."""

    can_wait = True

    @abstractmethod
    def prefix_of(self, first: bytes, *others: bytes) -> bytes:
        """Return the beginning of the keys of queues in one shard. Raises CrossShardError."""

    @abstractmethod
    async def attempt(self, operation: Operation, owner: CoroutineOwner) -> list[Any] | PressureError:
        """Do an operation for its `owner`. Return its `results`, or the error that it met."""

    async def run(
        self,
        verb: Verb,
        name: bytes,
        arguments: list[bytes] | None = None,
        size: int = 1,
        wait: Wait | None = None,
        client: Client | None = None,
        options: Options = DEFAULT,
    ) -> list[Any]:
        """Do one operation, and return its `results`; a single value in a list. Raises PressureError.

        If the coroutine is cancelled while the operation waits, it is not done. `client` is told when it
        waits, and takes over what it has taken.
        """
        call = CoroutineOwner(client)
        outcome = await self.attempt(
            Operation(verb, name, arguments or [], size, call, wait=wait, options=options), call
        )
        if isinstance(outcome, PressureError):
            try:
                raise outcome
            finally:
                del outcome  # no cycle of the error, its traceback and this frame, which keeps the messages
        return outcome

    @abstractmethod
    async def run_each(
        self,
        verb: Verb,
        names: Sequence[bytes],
        arguments: list[bytes] | None = None,
        client: Client | None = None,
    ) -> list[Any]:
        """Do the same on several queues. Return for each the one value, or the PressureError that it met."""

    @abstractmethod
    async def ranges(self, names: Sequence[bytes], first: int, last: int) -> list[list[bytes] | None]:
        """Return the messages of several queues at one moment, oldest first, from `first` to `last`.

        Positions count as in LRANGE. A queue that does not exist has None. Raises a PressureError.
        """

    async def exists(self, name: bytes) -> bool:
        """Return whether the queue exists (pressure 0.15, Exists)."""
        return bool((await self.run(verbs.EXISTS, name))[0])

    async def move(
        self,
        source: bytes,
        destination: bytes,
        *,
        message: bytes | None = None,
        unique: bool = False,
        timeout: float | None = 0,
        client: Client | None = None,
    ) -> bytes | None:
        """Move the oldest message, or the given one, to another queue. Return it; None if there is none.

        With `unique`, a message that the destination has is only removed. `timeout` is the seconds to wait
        for a message (0: not, None: for ever). The operation waits for room as a put does. Raises a
        PressureError.
        """
        arguments = [base_key(self.prefix_of(source, destination), destination)]
        if message is not None:
            arguments.append(message)
        wait = Wait(AS_CONFIGURED if timeout == 0 else timeout, destination=destination)
        moved: list[bytes] = await self.run(
            verbs.MOVE,
            source,
            arguments,
            wait=wait,
            client=client,
            options=Options(unique=unique, waits=timeout != 0),
        )
        return moved[0] if moved else None


async def kick(queues: QueueOperations, name: bytes, most: int, client: Client | None) -> int:
    """Make up to `most` buried jobs ready, or if there are none, delayed ones. Return how many."""
    count, state, is_more = 0, b"", True
    while is_more:
        try:
            some, state = (
                await queues.run(verbs.KICK, name, [b"%d" % (most - count), state], client=client)
            )[0]
        except QueueDoesNotExistError:
            if count:
                break
            raise
        count += some
        is_more = bool(state)
    return count


async def purge(queues: QueueOperations, name: bytes, states: Sequence[bytes], client: Client | None) -> int:
    """Delete the messages in these states (all of a plain list are ready). Return how many."""
    count, is_more = 0, 1
    while is_more:
        some, is_more = (await queues.run(verbs.PURGE, name, list(states), client=client))[0]
        count += some
    return count


async def redrive(queues: QueueOperations, name: bytes, to: bytes, most: int, client: Client | None) -> int:
    """Put up to `most` dead letters back where they came from, or to the base key `to`. Return how many.

    Raises a PressureError if none can go.
    """
    count, skipped, reason = 0, 0, b""
    while skipped >= 0 and count < most:
        arguments = [to, b"%d" % (most - count), b"%d" % skipped]
        (some, skipped, failed) = (await queues.run(verbs.REDRIVE, name, arguments, client=client))[0]
        count, reason = count + some, failed or reason
    if reason and not count:
        raise exception_for(name, reason.decode("utf-8", "replace"))
    return count
