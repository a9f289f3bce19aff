"""The queues of one of the backend's databases: operations on one of them, and listing them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from pressure_server.backend.link import Link
from pressure_server.broker import operation as kinds
from pressure_server.broker.lane import Lane
from pressure_server.broker.names import base_key, existence_pattern, queue_name
from pressure_server.broker.operation import Kind, Operation

_SCAN_COUNT = 1000


class Database:
    """Made by the broker, one for each database number in use."""

    def __init__(
        self,
        link: Link,
        *,
        prefix: bytes,
        identity: bytes,
        create_bound: int | None,
    ) -> None:
        self.number = link.number
        self._link = link
        self._prefix = prefix
        self._header = (identity, b"" if create_bound is None else b"%d" % create_bound)
        self._lanes: dict[bytes, Lane] = {}
        self._to_send: list[Lane] = []
        self._loop = asyncio.get_running_loop()

    def submit(self, operation: Operation) -> None:
        """Do the operation after those submitted for its queue; its owner is told of its end.

        It is sent by `flush`, with what is submitted for its queue until then; or with the next call for
        the queue, where one is under way. Raises QueueNameError.
        """
        lane = self._lanes.get(operation.name)
        if lane is None:
            lane = Lane(self, base_key(self._prefix, operation.name))
            self._lanes[operation.name] = lane
        lane.waiting.append(operation)
        if lane.idle:
            lane.idle = False
            self._to_send.append(lane)

    def flush(self) -> None:
        """Send what has been submitted."""
        if self._to_send:
            lanes, self._to_send = self._to_send, []
            for lane in lanes:
                lane.send()

    def call(self, base: bytes, arguments: list[bytes], received: Callable[[Any], None]) -> None:
        """Call the batch script for a lane. Raises BackendError when there is no connection."""
        self._link.call_script(base, (*self._header, *arguments), received)

    def soon(self, send: Callable[[], None]) -> None:
        """Call after the loop has looked for input once more."""
        self._loop.call_soon(self._loop.call_soon, send)

    def drop(self, lane: Lane) -> None:
        """Forget a lane on which nothing waits."""
        del self._lanes[lane.base[len(self._prefix) + 1 :]]

    async def run(self, kind: Kind, name: bytes, arguments: list[bytes] | None = None, size: int = 1) -> Any:
        """Do one operation and wait for its end.

        Returns the operation's `results` for kinds with one entry a message or command, else the one value.
        Raises a PressureError.
        """
        call = _Call(self._loop)
        operation = Operation(kind, name, arguments or [], size, call)
        self.submit(operation)
        self.flush()
        await call.ended
        if operation.error is not None:
            raise operation.error
        return operation.results

    async def command(self, *arguments: bytes) -> Any:
        """Send a plain command to the backend. Raises BackendError, also for an error reply."""
        return await self._link.command(*arguments)

    async def scan(self, cursor: bytes, count: int = _SCAN_COUNT) -> tuple[bytes, list[bytes]]:
        """One step over the names of all queues: the next cursor (b"0" at the end), and some names.

        `count` is about how many keys of the backend are looked at.

        As Redis's SCAN: each queue that exists all the while is returned, maybe more than once.
        """
        reply = await self.command(
            b"SCAN", cursor, b"MATCH", existence_pattern(self._prefix), b"COUNT", b"%d" % count
        )
        names = [queue_name(self._prefix, key) for key in reply[1]]
        return reply[0], [name for name in names if name is not None]

    async def queues(self) -> AsyncIterator[bytes]:
        """The names of all queues, each once."""
        seen: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, names = await self.scan(cursor)
            for name in names:
                if name not in seen:
                    seen.add(name)
                    yield name
            if cursor == b"0":
                return

    async def exists(self, name: bytes) -> bool:
        """pressure 0.15, Exists."""
        return bool((await self.run(kinds.EXISTS, name))[0])


class _Call:
    """The owner of an operation that a coroutine waits for."""

    __slots__ = ("ended",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()

    def completed(self, _operation: Operation) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
