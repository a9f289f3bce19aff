"""Queue turns: the roles of one queue for which this server has asked, or has its turn.

The lane asks for a role when an operation that waits needs it and a native client holds it. It gives the role
back when such an operation has ended, or when no operation needs the role any longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pressure_server.queues.calls.driver import RoleWaiter
from pressure_server.queues.operations.batch import Progress
from pressure_server.queues.operations.operation import Line, Operation
from pressure_server.queues.operations.wait_condition import WaitCondition
from pressure_server.queues.waiting.waiting_line import WaitingLine

# For each role: the line that needs it, and the condition for which a native client that holds it may wait.
_NEEDED = {
    WaitCondition.PRODUCER_ROLE: (Line.PRODUCERS, WaitCondition.ROOM),
    WaitCondition.CONSUMER_ROLE: (Line.CONSUMERS, WaitCondition.MESSAGE),
}


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
