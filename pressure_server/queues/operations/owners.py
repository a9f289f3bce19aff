"""Owners: what is told that an operation waits, or has ended, if that is not a client's connection.

An owner gets what its operation has taken in the step in which it is told of the end. From then on it has to
call `delivered` or `put_back`, once, whatever is cancelled. Before that the lane has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from pressure_server.queues.operations.operation import Operation, Owner


class Client(Protocol):
    """The client for which a coroutine runs."""

    def begin_wait(self) -> None:
        """It waits, until `end_wait`."""

    def end_wait(self) -> None:
        """It waits no longer."""

    def has_some(self, operation: Operation) -> None:
        """A call has brought some of what the operation takes, and others are to follow."""

    def took(self, operation: Operation) -> None:
        """The reply that follows brings what the operation has taken, which is the client's from now on."""


class Completion(Owner):
    """The owner of operations that a coroutine waits for. `ended` is the queue of the first that ends.

    What that one has taken goes to the client at once. `end` is called when the coroutine ends, however it
    does; what an operation takes later goes back.
    """

    __slots__ = ("_client", "_has_ended", "_loop", "_tried", "_waits", "_was_tried", "ended")

    def __init__(self, client: Client | None) -> None:
        """`client` is told when the coroutine waits, and of what was taken; None if there is no client."""
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._waits = False
        self._has_ended = False
        # Whether the operation submitted last has been tried; and who waits for that.
        self._was_tried = False
        self._tried: asyncio.Future[None] | None = None
        # Not the operation itself, which knows its owner: cycles stay in memory for long.
        self.ended: asyncio.Future[bytes] = self._loop.create_future()

    async def tried(self) -> None:
        """Return when the operation submitted last has ended, or waits, which may be so already."""
        if not (self.ended.done() or self._was_tried):
            self._tried = self._loop.create_future()
            await self._tried
        self._was_tried = False

    def waits(self, _operation: Operation) -> None:
        """The operation begins to wait."""
        if self._client is not None and not self._waits:
            self._waits = True
            self._client.begin_wait()
        self._has_tried()

    def completed(self, operation: Operation) -> None:
        """The operation has ended."""
        self._has_tried()
        if self._has_ended or self.ended.done():
            operation.put_back()
            return
        if operation.has_taken:
            if self._client is None:
                operation.delivered()
            else:
                self._client.took(operation)
        self.ended.set_result(operation.name)

    def has_some(self, operation: Operation) -> None:
        """See Client."""
        if self._client is not None:
            self._client.has_some(operation)

    def end(self) -> None:
        """The coroutine has ended."""
        self._has_ended = True
        if self._client is not None and self._waits:
            self._waits = False
            self._client.end_wait()

    def _has_tried(self) -> None:
        self._was_tried = True
        if self._tried is not None and not self._tried.done():
            self._tried.set_result(None)


class OnSuccess(Owner):
    """The owner of what is done for no client; something follows where it has been done."""

    __slots__ = ("_follows",)

    def __init__(self, follows: Callable[[bytes], None] = lambda _: None) -> None:
        self._follows = follows

    def completed(self, operation: Operation) -> None:
        """Tell, with the queue's name."""
        if operation.error is None:
            self._follows(operation.name)
