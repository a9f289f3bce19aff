"""The asyncio log client: it sends the requests of log_requests.py with redis-py's asyncio client."""

from __future__ import annotations

import asyncio
from typing import Any, overload

from pressure_server.client.aio_connections import AsyncConnections
from pressure_server.client.log_requests import (
    RESUME_FOR,
    GroupInfo,
    GroupRequests,
    LogMessage,
    LogRequests,
    Outcome,
    Pause,
    Putting,
)
from pressure_server.client.requests import SERVER_URL, Request


class AsyncLogQueue:
    """A `LogQueue` whose methods are coroutines, with the same arguments and errors. Tasks may share it.

    A cancelled put may be done; a put with the same transaction id is then not done again. The messages that
    a cancelled read was given are read again when their time to run is up.
    """

    def __init__(
        self, name: str | bytes, url: str = SERVER_URL, *, resume_for: float = RESUME_FOR, **options: Any
    ) -> None:
        self._requests = LogRequests(name, resume_for)
        self._connections = AsyncConnections(url, options)

    async def create(self, bound: int = 0, overflow: str | None = None, if_not_exists: bool = False) -> bool:
        """Create the queue; see LogQueue.create."""
        return await self._connections.do(self._requests.create(bound, overflow, if_not_exists))

    async def put(
        self,
        message: str | bytes,
        *,
        overwrite: bool = False,
        transaction: str | bytes | None = None,
        timeout: float | None = None,
    ) -> int:
        """Put a message once, and return its offset; see LogQueue.put."""
        return await self._run(self._requests.put(message, overwrite, transaction, timeout))

    async def outcome(self, transaction: str | bytes) -> Outcome:
        """Return what became of the put with this transaction id."""
        return await self._connections.do(self._requests.outcome(transaction))

    async def get(self, timeout: float | None = None) -> bytes:
        """Take the oldest message; see LogQueue.get."""
        return await self._connections.do(self._requests.get(timeout))

    @overload
    async def at(self, offset: int) -> bytes | None: ...

    @overload
    async def at(self, offset: int, count: int) -> list[bytes | None]: ...

    async def at(self, offset: int, count: int | None = None) -> bytes | list[bytes | None] | None:
        """Return the message with this offset, or several; see LogQueue.at."""
        found: bytes | list[bytes | None] | None = await self._connections.do(
            self._requests.at(offset, count)
        )
        return found

    async def length(self) -> int:
        """Return the number of messages; see LogQueue.length."""
        return await self._connections.do(self._requests.length())

    async def info(self) -> dict[str, Any]:
        """Return the fields of PRESSURE.INFO; see LogQueue.info."""
        return await self._connections.do(self._requests.info())

    async def create_group(self, name: str | bytes, start: str | int = "head") -> None:
        """Create a group; see LogQueue.create_group."""
        await self._connections.do(self._requests.create_group(name, start))

    async def delete_group(self, name: str | bytes) -> None:
        """Delete a group; see LogQueue.delete_group."""
        await self._connections.do(self._requests.delete_group(name))

    async def seek(self, name: str | bytes, start: str | int) -> None:
        """Let a group continue elsewhere; see LogQueue.seek."""
        await self._connections.do(self._requests.seek(name, start))

    async def groups(self) -> list[GroupInfo]:
        """Describe the groups of the log."""
        return await self._connections.do(self._requests.groups())

    def group(self, name: str | bytes, consumer: str | bytes) -> AsyncGroup:
        """Return an object by which this consumer reads the log in a group. Nothing is sent."""
        return AsyncGroup(self, GroupRequests(self._requests, name, consumer))

    async def disconnect(self) -> None:
        """Close the connections; the next method call opens new ones."""
        await self._connections.disconnect()

    async def __aenter__(self) -> AsyncLogQueue:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.disconnect()

    async def _run(self, steps: Putting) -> int:
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._result_of(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            offset: int = end.value
            return offset

    async def _result_of(self, step: Request[Any] | Pause) -> Any:
        if not isinstance(step, Pause):
            return await self._connections.do(step)
        await asyncio.sleep(step.seconds)
        return None


class AsyncGroup:
    """One consumer of a group, whose methods are coroutines; see Group."""

    def __init__(self, log: AsyncLogQueue, requests: GroupRequests) -> None:
        self._connections = log._connections
        self._requests = requests

    async def read(
        self, count: int = 1, timeout: float | None = None, ttr: float | None = None
    ) -> list[LogMessage]:
        """Read up to `count` messages; see Group.read."""
        return await self._connections.do(self._requests.read(count, timeout, ttr))

    async def ack(self, *messages: LogMessage | int) -> int:
        """Finish messages; see Group.ack."""
        return await self._connections.do(self._requests.ack(messages))

    async def touch(self, *messages: LogMessage | int) -> int:
        """Have the time to run of messages begin again; see Group.touch."""
        return await self._connections.do(self._requests.touch(messages))

    async def release(self, message: LogMessage | int) -> bool:
        """Give a message back; see Group.release."""
        return await self._connections.do(self._requests.release(message))
