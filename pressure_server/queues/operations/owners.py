"""Owners of operations other than a client's connection: they are told of waits and of the end.

An owner gets the messages in the step in which the operation ends, and must then call `acknowledge` or
`put_back` exactly once, even if it is cancelled. Before that, the lane has the messages.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from pressure_server.queues.operations.operation import Operation, Owner
from pressure_server.queues.operations.wait import Unblocking

logger = logging.getLogger(__name__)


class Waiter(Protocol):
    """What waits for a client."""

    def unblock(self, unblocking: Unblocking) -> None:
        """End the wait as if its time were up."""


class Client(Protocol):
    """The client for which a coroutine runs."""

    @property
    def has_disconnected(self) -> bool:
        """Whether the client has closed its side, and cannot wait."""

    def begin_wait(self, waiter: Waiter, queues: Sequence[bytes]) -> None:
        """Note that the client waits on these queues, until `end_wait` of this waiter."""

    def end_wait(self, waiter: Waiter) -> None:
        """Note that this wait has ended."""

    def partly_taken(self, operation: Operation) -> None:
        """Note that a call has brought some of what the operation takes, and another call is to follow."""

    def begin_pop(self, name: bytes) -> tuple[bytes, list[bytes]] | None:
        """See Owner."""

    def take_over(self, operation: Operation) -> None:
        """Take over the messages that the operation has taken; the reply that follows contains them."""


class AnsweredClient(Protocol):
    """A client with replies that are ready."""

    def flush(self) -> None:
        """Write the replies that are ready."""


class Answers:
    """The clients that a call has answered so far: when its reply has been shared out, each writes once.

    With `several_shards`, each writes once for all calls that are answered in one iteration of the event
    loop. `clients` is None except while replies are shared out: then a client writes its replies itself.
    """

    __slots__ = ("_has_ended", "clients", "end")

    def __init__(self, *, several_shards: bool = False) -> None:
        self._has_ended = False
        # Let the clients write their replies: the reply to a call has been shared out.
        self.end: Callable[[], None] = self._end_soon if several_shards else self._flush
        self.clients: dict[AnsweredClient, None] | None = None

    def _end_soon(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        answered, self.clients, self._has_ended = self.clients, None, False
        for client in answered or {}:
            try:
                client.flush()
            except Exception:  # the other clients must get their replies all the same
                logger.exception("error while writing replies to a client")


class CoroutineOwner(Owner):
    """The owner of operations that a coroutine waits for.

    `first_ended` is a future with the queue name of the first operation that ends. Its messages go to the
    client at once. Operations that end later put their messages back. The coroutine must call `end` when it
    ends in any way.
    """

    __slots__ = (
        "_client", "_has_ended", "_loop", "_tried", "_waits", "_was_tried", "first_ended", "on_unblock",
        "tries_more",
    )  # fmt: skip

    def __init__(self, client: Client | None) -> None:
        """`client` is told when the coroutine waits and what was taken; None if there is no client."""
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._waits: list[bytes] = []  # the queues
        # Whether more queues will be tried. Until then the client does not wait: it gets what one of them has
        # even if it closes its side meanwhile.
        self.tries_more = False
        # Ends the wait of the operations; None if they cannot wait.
        self.on_unblock: Callable[[Unblocking], None] | None = None
        self._has_ended = False
        # Whether the last submitted operation has been tried, and the future that `wait_until_tried` awaits.
        self._was_tried = False
        self._tried: asyncio.Future[None] | None = None
        # Not the operation, which refers to its owner: cycles stay in memory until a garbage collection.
        self.first_ended: asyncio.Future[bytes] = self._loop.create_future()

    async def wait_until_tried(self) -> None:
        """Return when the last submitted operation has ended or waits; at once if this is so already."""
        if not (self.first_ended.done() or self._was_tried):
            self._tried = self._loop.create_future()
            await self._tried
        self._was_tried = False

    def wait_began(self, operation: Operation) -> None:
        """Note that the operation has begun to wait."""
        self._waits.append(operation.name)
        if self._client is not None and len(self._waits) == 1 and not self.tries_more:
            self._client.begin_wait(self, self._waits)
        self._has_tried()

    def all_are_tried(self, watched: Iterable[bytes] = ()) -> None:
        """Note that no more are tried: if none had anything, the client waits, for the `watched`, too."""
        self.tries_more = False
        self._waits += watched
        if self._client is not None and self._waits and not self.first_ended.done():
            self._client.begin_wait(self, self._waits)

    def completed(self, operation: Operation) -> None:
        """Take over the ended operation, or put back its messages if it is not the first one."""
        self._has_tried()
        if self._has_ended or self.first_ended.done():
            operation.put_back()
            return
        if operation.has_taken:
            if self._client is None:
                operation.acknowledge()
            else:
                self._client.take_over(operation)
        self.first_ended.set_result(operation.name)

    def partly_taken(self, operation: Operation) -> None:
        """Tell the client: see Client."""
        if self._client is not None:
            self._client.partly_taken(operation)

    def begin_pop(self, name: bytes) -> tuple[bytes, list[bytes]] | None:
        """See Owner."""
        return None if self._client is None else self._client.begin_pop(name)

    def unblock(self, unblocking: Unblocking) -> None:
        """See Waiter."""
        if self.on_unblock is not None:
            self.on_unblock(unblocking)

    def end(self) -> None:
        """Note that the coroutine has ended."""
        self._has_ended = True
        self.on_unblock = None  # it may refer to operations, and these refer to their owner
        if self._client is not None and self._waits:
            self._waits = []
            self._client.end_wait(self)

    def _has_tried(self) -> None:
        self._was_tried = True
        if self._tried is not None and not self._tried.done():
            self._tried.set_result(None)


class WithoutClient(Owner):
    """The owner of an operation without a client: it calls a function when the operation has ended."""

    __slots__ = ("_follows",)

    def __init__(self, follows: Callable[[Operation], None] = lambda _: None) -> None:
        self._follows = follows

    def completed(self, operation: Operation) -> None:
        """See Owner."""
        self._follows(operation)
