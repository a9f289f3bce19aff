"""Queue turns: the roles of one queue for which this server has asked, or has its turn.

The lane asks for a role when an operation that waits needs it and a native client holds it. It gives the role
back when such an operation has ended, or when no operation needs the role any longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pressure_server.queues.calls.driver import Roles
from pressure_server.queues.operations.batch import Outcome
from pressure_server.queues.operations.operation import Line, Operation
from pressure_server.queues.operations.wait_condition import WaitCondition
from pressure_server.queues.waiting.waiting_line import WaitingLine

# For each role: the line that needs it, and the condition for which a native client that holds it may wait.
_NEEDED = {
    WaitCondition.PRODUCER: (Line.PRODUCERS, WaitCondition.ROOM),
    WaitCondition.CONSUMER: (Line.CONSUMERS, WaitCondition.MESSAGE),
}


class QueueTurns:
    """The turns of one lane."""

    __slots__ = ("_asked", "_lines", "_name", "_ours", "_role_turns")

    def __init__(self, name: bytes, lines: Mapping[Line, WaitingLine], role_turns: Roles) -> None:
        self._name = name
        self._lines = lines
        self._role_turns = role_turns
        self._ours: frozenset[WaitCondition] = frozenset()
        self._asked: frozenset[WaitCondition] = frozenset()

    def ask(self, outcome: Outcome) -> None:
        """Ask for the roles that native clients hold and waiting operations need, after a call.

        This includes a role whose holder waits for the same message or room: Redis would always serve the
        holder first.
        """
        for role in outcome.held:
            if self._is_wanted(role):
                self._ask(role)
        for operation in outcome.lacking:
            wait = operation.wait
            if wait is not None and wait.in_line and wait.lack in _NEEDED:
                if wait.elsewhere:
                    self._role_turns.ask(wait.other, wait.lack, elsewhere=True)
                else:
                    self._ask(wait.lack)

    def _ask(self, role: WaitCondition) -> None:
        self._asked |= {role}
        self._role_turns.ask(self._name, role)

    def begin(self, role: WaitCondition) -> None:
        """Begin a turn: the role's token has been parked for this server."""
        self._asked -= {role}
        self._ours |= {role}

    def end(self, ended: Iterable[Operation] = ()) -> None:
        """End the turns that operations in `ended` have used, and those no longer needed."""
        for role in self._asked:
            if not self._is_wanted(role):
                self._asked -= {role}
                self._role_turns.withdraw(self._name, role)
        if not self._ours:
            return
        gone_on = {o.verb.line for o in ended if o.wait is not None and o.wait.in_line}
        for role in self._ours:
            if _NEEDED[role][0] in gone_on or not self._is_wanted(role):
                self._ours -= {role}
                self._role_turns.give_back(self._name)

    def _is_wanted(self, role: WaitCondition) -> bool:
        wanted = {(self._name, role), (self._name, _NEEDED[role][1])}
        return any(not wanted.isdisjoint(line.lacks) for line in self._lines.values())
