"""Operations on queues as coroutines, for those who do not mind whether they are part of a transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pressure_server.errors import PressureError
from pressure_server.queues.names import base_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.owners import Client, Completion
from pressure_server.queues.operations.wait import AS_CONFIGURED, Wait


class QueueOperations(ABC):
    """What a database and a transaction have in common. `prefix` is what keys of queues begin with."""

    can_wait = True
    prefix: bytes

    @abstractmethod
    async def attempt(self, operation: Operation, call: Completion) -> list[Any] | PressureError:
        """Do an operation, whose owner the call is. Returns its `results`, or the error that it met."""

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
        """Do one operation and wait for its end.

        Returns the operation's `results` for verbs with one entry a message or command, else a list with the
        one value. Raises a PressureError. Where it is cancelled while the operation waits, that does not
        happen. `client` is told when it waits, and asked whether it is still there for what has been taken.
        """
        call = Completion(client)
        outcome = await self.attempt(
            Operation(verb, name, arguments or [], size, call, wait=wait, options=options), call
        )
        if isinstance(outcome, PressureError):
            raise outcome
        return outcome

    @abstractmethod
    async def run_each(
        self,
        verb: Verb,
        names: Sequence[bytes],
        arguments: list[bytes] | None = None,
        client: Client | None = None,
    ) -> list[Any]:
        """Do the same on several queues. Returns for each the one value, or the PressureError that it met."""

    @abstractmethod
    async def ranges(self, names: Sequence[bytes], first: int, last: int) -> list[list[bytes] | None]:
        """What is queued in several queues at one moment, from position `first` to `last`, oldest first.

        Positions are LRANGE's. None for a queue that does not exist. Raises a PressureError.
        """

    async def exists(self, name: bytes) -> bool:
        """pressure 0.15, Exists."""
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
        """Move the oldest message, or that one, from one queue to the other, in one step.

        With `unique` it is not put where it is queued already. `timeout` is how many seconds a message is
        waited for: 0 not at all, None for ever; room is waited for as for a put. Returns the message; None
        where there is none. Raises a PressureError.
        """
        arguments = [base_key(self.prefix, destination)]
        if message is not None:
            arguments.append(message)
        wait = Wait(AS_CONFIGURED if timeout == 0 else timeout, other=destination)
        moved: list[bytes] = await self.run(
            verbs.MOVE,
            source,
            arguments,
            wait=wait,
            client=client,
            options=Options(unique=unique, waits=timeout != 0),
        )
        return moved[0] if moved else None
