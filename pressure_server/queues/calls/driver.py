"""The driver: what lanes ask of whoever drives them. Lanes have no event loop, socket or clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from pressure_server.errors import BackendError
from pressure_server.queues.calls.block import Block
from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.wait import Timer
from pressure_server.queues.operations.wait_condition import WaitCondition
from pressure_server.queues.operations.waiters import Waiters
from pressure_server.queues.policy import Policy


class Source(Protocol):
    """A lane, as its driver sees it."""

    name: bytes

    def block(self) -> Block | None:
        """Make the queue's part of the next call; None if there is nothing to send now."""


class KeyListener(Protocol):
    """What is told that a queue has changed."""

    def armed(self, name: bytes, watched: list[bytes], mask: int | None) -> None:
        """The queue is watched. `mask` says which keys exist (see `possible`); on None, try again now."""

    def changed(self, name: bytes) -> None:
        """The queue has changed, and is watched no longer."""


class Watcher(Protocol):
    """What watches queues for changes by others."""

    def arm(self, listener: KeyListener, name: bytes, watched: list[bytes], *, own: bool = False) -> None:
        """Tell of the next change of one of these keys of the queue. `own`: it is the listener's own."""

    def leave(self, listener: KeyListener, name: bytes, watched: Iterable[bytes] = ()) -> None:
        """Do not tell the listener any longer. `watched` are the keys that are still watched for it."""


class Roles(Protocol):
    """What waits for roles of queues in line with native clients."""

    def ask(self, name: bytes, lack: WaitCondition, *, elsewhere: bool = False) -> None:
        """Wait for a role. Then the queue's lane takes its turn; if `elsewhere`, those that asked do."""

    def withdraw(self, name: bytes, lack: WaitCondition) -> None:
        """Do not wait for it any longer."""

    def give_back(self, name: bytes) -> None:
        """End our turns on a queue."""


class Opener(Protocol):
    """What keeps messages that clients are to acknowledge."""

    def keep(self, operation: Operation, number: int) -> Delivery:
        """Return the delivery of what the operation has opened in the call of that number."""


class Driver(Protocol):
    """What drives the lanes of one database."""

    policy: Policy
    waiters: Waiters
    # Whether the server stops, so that nothing may wait.
    is_stopping: bool
    # Whether what a call has done must be confirmed before it is told.
    is_durable: bool
    # How many other servers use the backend: their clients may wait for the same as ours.
    neighbours: int

    @property
    def changes(self) -> Watcher:
        """What watches queues."""

    @property
    def role_turns(self) -> Roles:
        """What waits for roles."""

    @property
    def opened(self) -> Opener:
        """What keeps messages that are to be acknowledged."""

    def ready(self, lane: Source, *, goes_first: bool = False) -> None:
        """Ask the lane for a block when the next call is sent; if it `goes_first`, before all others."""

    def drop(self, lane: Source) -> None:
        """Forget a lane on which nothing is to be done, and nothing waits."""

    def learn(self, name: bytes, found: int) -> None:
        """Note what a call has found: see the first value of a reply in batch.lua."""

    def submit(self, operation: Operation) -> None:
        """Do the operation after those submitted for its queue."""

    def call(self, block: Block) -> None:
        """Do the block with the next call, beside what lanes have ready."""

    def poke(self, names: Iterable[bytes]) -> None:
        """Let operations that wait on these queues go on."""

    def when_safe(self, follows: Callable[[BackendError | None], None]) -> None:
        """Call `follows` when what the backend has just answered has the durability asked for."""

    def when_back(self, follows: Callable[[], None]) -> None:
        """Call it when the backend is back, or a little later if it is there, but has refused."""

    def after(self, turns: int, follows: Callable[[], None]) -> None:
        """Call it after so many turns of the loop."""

    def time(self) -> float:
        """Return the time, in seconds."""

    def at(self, when: float, follows: Callable[[Operation], None], operation: Operation) -> Timer:
        """Call it with the operation at that time."""

    def later(self, seconds: float, follows: Callable[[], None]) -> Timer:
        """Call it after so many seconds."""
