"""What waits for a client, and the request of another client to end these waits (CLIENT UNBLOCK)."""

import asyncio
from collections.abc import Sequence

from pressure_server.errors import PressureError
from pressure_server.queues.database import Database
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.owners import Waiter
from pressure_server.queues.operations.wait import Unblocking


class Waits(dict[Operation | Waiter, Sequence[bytes]]):
    """What waits for a client, each with the queues on which it waits. Empty if the client does not wait."""

    __slots__ = ("_answer", "_unblocking")
    _answer: asyncio.Future[bool]  # whether a wait has ended by the request

    def __init__(self) -> None:
        self._unblocking: Unblocking | None = None  # the request to end the waits, until they have ended

    @property
    def queues(self) -> list[bytes]:
        """The queues on which the client waits, each once."""
        return list(dict.fromkeys(queue for queues in self.values() for queue in queues))

    @property
    def are_to_end(self) -> bool:
        """Whether another client has asked to end the waits, and has no answer yet."""
        return self._unblocking is not None

    def unblock(self, error: PressureError | None, database: Database) -> asyncio.Future[bool]:
        """End the waits as if their time were up, or with an error.

        The result is False if the client gets something, which was in flight.
        """
        self._unblocking, self._answer = Unblocking(error), asyncio.get_running_loop().create_future()
        self.end_all(database)
        return self._answer

    def end_all(self, database: Database) -> None:
        """End what waits now, as another client has asked for."""
        for waiter in list(self):
            if self._unblocking is None:
                break
            if isinstance(waiter, Operation):
                database.unblock(waiter, self._unblocking)
            else:
                waiter.unblock(self._unblocking)

    def answer_if_ended(self) -> None:
        """Answer the request to end the waits, if there is one and nothing waits any longer."""
        if self or self._unblocking is None:
            return
        unblocking, self._unblocking = self._unblocking, None
        if not self._answer.done():  # the client that wants to know may have gone
            self._answer.set_result(unblocking.has_ended_wait)
