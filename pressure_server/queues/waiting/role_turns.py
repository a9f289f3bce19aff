"""Role turns: wait for roles in line with native clients, which hand them from one to the next.

backend/turns.py does the waiting. This module tells the lanes when a turn begins, and ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from pressure_server.backend.turns import Turns
from pressure_server.errors import PressureError
from pressure_server.queues.calls.driver import RoleWaiter
from pressure_server.queues.names import CONSUMER_TURN, PRODUCER_TURN, base_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.batch import Progress
from pressure_server.queues.operations.operation import Line, Operation
from pressure_server.queues.operations.owners import CoroutineOwner, NotifyOnSuccess
from pressure_server.queues.operations.wait import WaitCondition
from pressure_server.queues.waiting.waiting_line import WaitingLine

# For each role: the line that needs it, and the condition for which a native client that holds it may wait.
_NEEDED = {
    WaitCondition.PRODUCER_ROLE: (Line.PRODUCERS, WaitCondition.ROOM),
    WaitCondition.CONSUMER_ROLE: (Line.CONSUMERS, WaitCondition.MESSAGE),
}

# The suffix of the key at which a role's token is parked during this server's turn.
_PARKED = {WaitCondition.PRODUCER_ROLE: PRODUCER_TURN, WaitCondition.CONSUMER_ROLE: CONSUMER_TURN}


class QueueTurns:
    """The turns of one lane."""

    __slots__ = ("_asked", "_held", "_lines", "_name", "_role_turns")

    def __init__(self, name: bytes, lines: Mapping[Line, WaitingLine], role_turns: RoleWaiter) -> None:
        self._name = name
        self._lines = lines
        self._role_turns = role_turns
        self._held: frozenset[WaitCondition] = frozenset()
        self._asked: frozenset[WaitCondition] = frozenset()

    def ask(self, progress: Progress) -> None:
        """Ask for the roles that native clients hold and waiting operations need, after a call.

        This includes a role whose holder waits for the same message or room: Redis would always serve the
        holder first.
        """
        for role in progress.held_roles:
            if self._is_wanted(role):
                self._ask(role)
        for operation in progress.must_wait:
            wait = operation.wait
            if wait is not None and wait.in_line and wait.condition in _NEEDED:
                if wait.at_destination:
                    self._role_turns.ask(wait.destination, wait.condition, for_listeners=True)
                else:
                    self._ask(wait.condition)

    def _ask(self, role: WaitCondition) -> None:
        self._asked |= {role}
        self._role_turns.ask(self._name, role)

    def begin(self, role: WaitCondition) -> None:
        """Begin a turn: the role's token has been parked for this server."""
        self._asked -= {role}
        self._held |= {role}

    def end(self, ended: Iterable[Operation] = ()) -> None:
        """End the turns that operations in `ended` have used, and those no longer needed."""
        for role in self._asked:
            if not self._is_wanted(role):
                self._asked -= {role}
                self._role_turns.withdraw(self._name, role)
        if not self._held:
            return
        gone_on = {o.verb.line for o in ended if o.wait is not None and o.wait.in_line}
        for role in self._held:
            if _NEEDED[role][0] in gone_on or not self._is_wanted(role):
                self._held -= {role}
                self._role_turns.give_back(self._name)

    def _is_wanted(self, role: WaitCondition) -> bool:
        wanted = {(self._name, role), (self._name, _NEEDED[role][1])}
        return any(not wanted.isdisjoint(line.conditions) for line in self._lines.values())


class Notifier(Protocol):
    """Tells listeners when a queue changes."""

    def notify(self, name: bytes) -> None:
        """Tell all listeners that a queue may have changed."""


class TurnHost(Protocol):
    """The lanes of one database."""

    prefix: bytes
    database_number: int

    @property
    def notifications(self) -> Notifier:
        """The listeners to queues."""

    @property
    def is_up(self) -> bool:
        """Whether the backend can be reached."""

    def submit(self, operation: Operation) -> None:
        """Do an operation."""

    async def attempt(self, operation: Operation, owner: CoroutineOwner) -> list[Any] | PressureError:
        """Do an operation, and wait until it ends; `owner` is told of its progress."""

    def take_turn(self, name: bytes, role: WaitCondition) -> None:
        """Begin the turn of a queue's lane in a role: its token has been parked."""

    def after_iterations(self, iterations: int, follows: Callable[[], None]) -> None:
        """Call `follows` after so many iterations of the event loop."""

    def wake_up(self, names: Iterable[bytes]) -> None:
        """Try the operations that wait on these queues again."""


class RoleTurns:
    """The turns of this server on the queues of one database."""

    def __init__(self, lanes: TurnHost, turns: Turns) -> None:
        self._lanes = lanes
        self._turns = turns
        # Queues whose turns are to be given back; kept while the backend is away.
        self._to_give_back: set[bytes] = set()

    def ask(self, name: bytes, condition: WaitCondition, *, for_listeners: bool = False) -> None:
        """Wait for a role in line with native clients, then begin the turn of the queue's lane.

        With `for_listeners`, tell the listeners to the queue instead; they act at once.
        """
        base = base_key(self._lanes.prefix, name)
        token, parked = base + condition.value[0], base + _PARKED[condition]

        def ended(has_come: bool) -> None:
            if for_listeners and has_come:
                self._lanes.notifications.notify(name)
                self._lanes.after_iterations(2, lambda: self.give_back(name))
            elif has_come:
                self._lanes.take_turn(name, condition)
            else:
                self._lanes.wake_up([name])

        self._turns.wait_in_line(self._lanes.database_number, token, parked, ended)

    def withdraw(self, name: bytes, condition: WaitCondition) -> None:
        """Stop waiting for a role for which the queue's lane has asked."""
        self._turns.withdraw(
            self._lanes.database_number, base_key(self._lanes.prefix, name) + _PARKED[condition]
        )

    def give_back(self, name: bytes) -> None:
        """End this server's turns on a queue.

        Operations that wait there act in the same call, before a native client gets the role.
        """
        self._to_give_back.add(name)
        if self._lanes.is_up:
            self._lanes.submit(Operation(verbs.TURN, name, [], 1, NotifyOnSuccess(self._given_back)))

    def backend_is_back(self) -> None:
        """Give back the turns that could not be given back while the backend was away."""
        for name in list(self._to_give_back):
            self.give_back(name)

    def _given_back(self, name: bytes) -> None:
        self._to_give_back.discard(name)
        base = base_key(self._lanes.prefix, name)
        for suffix in _PARKED.values():
            self._turns.forget_note(self._lanes.database_number, base + suffix)

    async def end_noted_turns(self) -> None:
        """End all turns that are noted in the backend: a server that died may have left them.

        If a turn was that of a live server, that server asks for it again.
        """
        prefix = self._lanes.prefix + b":"
        for parked in await self._turns.noted_keys(self._lanes.database_number):
            for suffix in _PARKED.values():
                if parked.startswith(prefix) and parked.endswith(suffix):
                    name = parked[len(prefix) : -len(suffix)]
                    call = CoroutineOwner(None)
                    await self._lanes.attempt(Operation(verbs.TURN, name, [], 1, call), call)
                    self._given_back(name)
