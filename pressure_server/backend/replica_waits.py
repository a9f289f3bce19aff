"""WAIT for clients: how many replicas have all that the backend has answered so far.

WAIT blocks its connection. One connection, which is open while clients wait, asks in rounds of a small write
and a short WAIT that serve all of them.
"""

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from pressure_server.backend.durability import write_command
from pressure_server.backend.greeting import greet
from pressure_server.backend.link import Timeouts
from pressure_server.backend.resp import BackendConnection
from pressure_server.backend.route import Route
from pressure_server.errors import BackendError, StoppingError

# Seconds for a round: for so long, a client that waits for many replicas may delay those that wait for few.
_ROUND = 0.1


@dataclass(slots=True)
class Deadline:
    """When a wait ends, by the loop's clock: inf for never. It may become earlier during the wait."""

    at: float


class _Client(NamedTuple):
    replicas: int
    deadline: Deadline
    found: asyncio.Future[int]


class ReplicaWaits:
    """The clients that wait for replicas of one backend. `key` is written before each WAIT."""

    def __init__(self, route: Route, name: str, key: bytes, timeouts: Timeouts) -> None:
        self._route = route
        self._name = name
        self._key = key
        self._answer_timeout = timeouts.answer
        self._waiting: list[_Client] = []
        self._asking: asyncio.Task[None] | None = None
        self._is_ended = False

    async def wait(self, replicas: int, deadline: Deadline) -> int:
        """Return how many replicas have all that the backend has answered before this call.

        Return when there are `replicas` of them, or at the deadline; within a tenth of a second if that has
        become earlier. Raise BackendError if the backend cannot be asked, and StoppingError if the server
        stops first.
        """
        if self._is_ended:
            raise StoppingError()
        client = _Client(replicas, deadline, asyncio.get_running_loop().create_future())
        self._waiting.append(client)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await client.found

    def end(self) -> None:
        """End all waits, as the server stops."""
        self._is_ended = True
        if self._asking is not None:
            self._asking.cancel()
        self._fail(StoppingError())

    async def _ask(self) -> None:
        connection, address = BackendConnection(self._answer_timeout), self._route.address
        try:
            await address.open(connection)
            await greet(connection, address, 0, self._name)
            while self._waiting:
                await self._ask_once(connection)
        except BackendError as error:
            self._fail(error)
        finally:
            self._asking = None
            connection.close()

    async def _ask_once(self, connection: BackendConnection) -> None:
        now, asking = asyncio.get_running_loop().time(), list(self._waiting)
        longest = min(_ROUND, min(client.deadline.at for client in asking) - now)
        await connection.command(*write_command(self._key))
        # To Redis, 0 is no timeout.
        milliseconds = max(1, int(1000 * longest))
        count = await connection.command(
            b"WAIT", b"%d" % max(client.replicas for client in asking), b"%d" % milliseconds
        )
        ended = asyncio.get_running_loop().time()
        for client in asking:
            has_left = client.found.done()
            if not has_left and (count >= client.replicas or client.deadline.at <= ended):
                client.found.set_result(count)
        self._waiting = [client for client in self._waiting if not client.found.done()]

    def _fail(self, error: Exception) -> None:
        failed, self._waiting = self._waiting, []
        for client in failed:
            if not client.found.done():
                client.found.set_exception(error)
