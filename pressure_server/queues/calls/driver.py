"""The driver: the interface through which lanes use their surroundings.

Lanes have no event loop, socket or clock of their own. `LaneDispatcher` implements this interface; tests
implement parts of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from pressure_server.errors import BackendError
from pressure_server.queues.calls.call import Block, Part
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.wait import Timer, WaitCondition, WaiterCount
from pressure_server.queues.policy import Policy


class DrivenLane(Part, Protocol):
    """A lane, as its driver sees it."""

    name: bytes
    bound_state: int | None
    is_in_use: bool


class KeyListener(Protocol):
    """An object that is told when a queue changes."""

    def armed(self, name: bytes, watched: list[bytes], mask: int | None, due: bytes | None) -> None:
        """Note that the queue is watched.

        `watched` are the suffixes of its watched keys. `mask` says which of them exist (see `may_proceed`).
        If the backend cannot watch, `mask` is None after a pause: try again now. `due` is the note of when
        the queue may have another job, if jobs are waited for.
        """

    def changed(self, name: bytes) -> None:
        """Note that the queue has changed. It is not watched any longer."""


class KeyWatcher(Protocol):
    """Watches queues for changes that others make."""

    def arm(self, listener: KeyListener, name: bytes, watched: list[bytes], *, own: bool = False) -> None:
        """Tell the listener, once, when one of the queue's keys changes; `watched` are their suffixes.

        `own` says that it is the queue of the listener's lane, which is told anyway.
        """

    def leave(self, listener: KeyListener, name: bytes, watched: Iterable[bytes] = ()) -> None:
        """Stop telling the listener of a queue. `watched` are the suffixes still watched for it."""


class RoleWaiter(Protocol):
    """Waits for the roles of queues in line with native clients."""

    def ask(self, name: bytes, condition: WaitCondition, *, for_listeners: bool = False) -> None:
        """Wait for a role, then begin the turn of the queue's lane.

        With `for_listeners`, tell the listeners to the queue instead; they act at once.
        """

    def withdraw(self, name: bytes, condition: WaitCondition) -> None:
        """Stop waiting for a role."""

    def give_back(self, name: bytes) -> None:
        """End this server's turns on a queue."""


class Reserver(Protocol):
    """Gives up jobs whose clients have gone."""

    def deliver(self, operation: Operation) -> None:
        """Note that an operation has reserved jobs: to put these back gives them up."""


class Driver(Protocol):
    """The driver of the lanes of one database."""

    policy: Policy
    waiters: WaiterCount
    # Whether the server is stopping, so that no operation may wait.
    is_stopping: bool
    # Whether changes must be durable before clients are answered.
    is_durable: bool
    # The number of other servers on the backend, whose clients may wait for the same messages.
    peer_count: int

    @property
    def is_lost(self) -> bool:
        """Whether the backend of these lanes cannot be reached. Operations that wait are not tried then."""

    @property
    def notifications(self) -> KeyWatcher:
        """The watcher of queues."""

    @property
    def role_turns(self) -> RoleWaiter:
        """The turns in roles that native clients hold."""

    @property
    def reservations(self) -> Reserver:
        """The jobs that clients have reserved."""

    def ready(self, lane: DrivenLane, *, goes_first: bool = False) -> None:
        """Ask the lane for a block when the next call is sent; if it `goes_first`, before all others."""

    def send_ahead(self, lane: DrivenLane) -> None:
        """Send the lane's block at once, unless too many calls are in flight."""

    def drop(self, lane: DrivenLane) -> None:
        """Forget a lane that has nothing to send and on which no operation waits."""

    def note_existence(self, name: bytes, *, exists: bool) -> bool:
        """Note whether a queue exists. Return False if this must be noted again with the next reply."""

    def submit(self, operation: Operation) -> None:
        """Do an operation after those submitted for its queue before."""

    def send(self, block: Block) -> None:
        """Send a block with the next call, independently of the lanes' own blocks."""

    def wake_up(self, names: Iterable[bytes]) -> None:
        """Try the operations that wait on these queues again."""

    def when_durable(self, follows: Callable[[BackendError | None], None]) -> None:
        """Call `follows` when the backend's last replies are as durable as configured, or with an error."""

    def when_back(self, follows: Callable[[], None]) -> None:
        """Call `follows` when the backend is back; if it is up but has refused something, after a pause."""

    def after_iterations(self, iterations: int, follows: Callable[[], None]) -> None:
        """Call `follows` after so many iterations of the event loop."""

    def time(self) -> float:
        """Return the time of the driver's clock, in seconds."""

    def call_at(self, when: float, follows: Callable[[Operation], None], operation: Operation) -> Timer:
        """Call `follows` with the operation at the time `when`, by the driver's clock."""

    def call_later(self, seconds: float, follows: Callable[[], None]) -> Timer:
        """Call `follows` after so many seconds."""
