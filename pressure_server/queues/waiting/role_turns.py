"""Role turns: wait for roles in line with native clients, which hand them from one to the next.

backend/turns.py does the waiting. This module tells the lanes when a turn begins, and ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pressure_server.backend.turns import Turns
from pressure_server.queues.names import CONSUMER_TURN, PRODUCER_TURN, base_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.batch import Progress
from pressure_server.queues.operations.operation import Line, Operation
from pressure_server.queues.operations.owners import CoroutineOwner, WithoutClient
from pressure_server.queues.operations.wait import WaitCondition
from pressure_server.queues.waiting.waiting_line import WaitingLine

if TYPE_CHECKING:
    from pressure_server.queues.shard import Shard

# For each role: the line that needs it, and the condition for which a native client that holds it may wait.
_NEEDED = {
    WaitCondition.PRODUCER_ROLE: (Line.PRODUCERS, WaitCondition.ROOM),
    WaitCondition.CONSUMER_ROLE: (Line.CONSUMERS, WaitCondition.MESSAGE),
}

# The suffix of the key at which a role's token is parked during this server's turn.
_PARKED = {WaitCondition.PRODUCER_ROLE: PRODUCER_TURN, WaitCondition.CONSUMER_ROLE: CONSUMER_TURN}


class RoleTurns:
    """The turns of this server on the queues of one database."""

    def __init__(self, shard: Shard, turns: Turns) -> None:
        self._shard = shard
        self._turns = turns
        # Queues whose turns have ended, until the backend knows it.
        self._to_give_back: set[bytes] = set()

    def ask(self, name: bytes, condition: WaitCondition, *, for_listeners: bool = False) -> None:
        """Wait for a role in line with native clients. Then the lane has its turn, or listeners are told."""
        base = base_key(self._shard.prefix, name)
        token, parked = base + condition.value[0], base + _PARKED[condition]

        def ended(has_come: bool) -> None:
            if for_listeners and has_come:
                self._shard.notifications.notify(name)
                self._shard.after_iterations(2, lambda: self.give_back(name))
            elif has_come:
                self._shard.take_turn(name, condition)
            else:
                self._shard.wake_up([name])

        self._turns.wait_in_line(self._shard.database_number, token, parked, ended)

    def withdraw(self, name: bytes, condition: WaitCondition) -> None:
        """Stop waiting for a role for which the queue's lane has asked."""
        self._turns.withdraw(
            self._shard.database_number, base_key(self._shard.prefix, name) + _PARKED[condition]
        )

    def give_back(self, name: bytes) -> None:
        """End this server's turns on a queue; operations that wait there act in the same call."""
        self._to_give_back.add(name)
        if self._shard.is_up:
            self._shard.submit(Operation(verbs.TURN, name, [], 1, WithoutClient(self._ended)))

    def backend_is_back(self) -> None:
        """Give back the turns that could not be given back while the backend was away."""
        for name in list(self._to_give_back):
            self.give_back(name)

    def _ended(self, turn: Operation) -> None:
        if turn.error is None:
            self._given_back(turn.name)

    def _given_back(self, name: bytes) -> None:
        self._to_give_back.discard(name)
        base = base_key(self._shard.prefix, name)
        for suffix in _PARKED.values():
            self._turns.forget_note(self._shard.database_number, base + suffix)

    async def end_noted_turns(self) -> None:
        """End all turns noted in the backend, which nobody may have any longer. Live servers ask again."""
        prefix = self._shard.prefix + b":"
        for parked in await self._turns.noted_keys(self._shard.database_number):
            for suffix in _PARKED.values():
                if parked.startswith(prefix) and parked.endswith(suffix):
                    name = parked[len(prefix) : -len(suffix)]
                    call = CoroutineOwner(None)
                    await self._shard.attempt(Operation(verbs.TURN, name, [], 1, call), call)
                    self._given_back(name)


class QueueTurns:
    """The turns of one lane."""

    __slots__ = ("_asked", "_held", "_lines", "_name", "_role_turns")

    def __init__(self, name: bytes, lines: Mapping[Line, WaitingLine], role_turns: RoleTurns) -> None:
        self._name = name
        self._lines = lines
        self._role_turns = role_turns
        self._held: frozenset[WaitCondition] = frozenset()
        self._asked: frozenset[WaitCondition] = frozenset()

    def ask(self, progress: Progress) -> None:
        """Ask for the roles that native clients hold and waiting operations need, after a call.

        If the holder waits for the same message or room, too, Redis would always serve the holder first.
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
