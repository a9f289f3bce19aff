"""Role turns: a role that native clients hand to each other is waited for in line with them.

The broker's side of backend/turns.py: whose turn it is, and how it is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pressure_server.backend.turns import Turns
from pressure_server.errors import PressureError
from pressure_server.queues.names import CONSUMER_TURN, PRODUCER_TURN, base_key
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.owners import Completion, OnSuccess
from pressure_server.queues.operations.wait_condition import WaitCondition

# Where the token of a role is, while it is our turn.
_PARKED = {WaitCondition.PRODUCER: PRODUCER_TURN, WaitCondition.CONSUMER: CONSUMER_TURN}


class Changes(Protocol):
    """What tells others that a queue may have changed."""

    def tell(self, name: bytes) -> None:
        """Tell them."""


class Host(Protocol):
    """The lanes of one database."""

    prefix: bytes
    number: int

    @property
    def changes(self) -> Changes:
        """What watches queues."""

    @property
    def is_up(self) -> bool:
        """Whether the backend can be reached."""

    def submit(self, operation: Operation) -> None:
        """Do an operation."""

    async def attempt(self, operation: Operation, call: Completion) -> list[Any] | PressureError:
        """Do an operation, whose owner the call is."""

    def take_turn(self, name: bytes, role: WaitCondition) -> None:
        """A role's token has been parked for those that wait on that queue."""

    def after(self, turns: int, follows: Callable[[], None]) -> None:
        """Call it after so many turns of the loop."""

    def poke(self, names: Iterable[bytes]) -> None:
        """Let operations that wait on these queues go on."""


class RoleTurns:
    """Of the queues of one database."""

    def __init__(self, lanes: Host, turns: Turns) -> None:
        self._lanes = lanes
        self._turns = turns
        # Queues whose turns are to be given back; while the backend is away, later.
        self._owed: set[bytes] = set()

    def ask(self, name: bytes, lack: WaitCondition, *, elsewhere: bool = False) -> None:
        """Wait for a role in line with native clients; then it is the turn of that queue's lane.

        `elsewhere`: of others, who act at once.
        """
        base = base_key(self._lanes.prefix, name)
        token, parked = base + lack.value[0], base + _PARKED[lack]

        def ended(has_come: bool) -> None:
            if elsewhere and has_come:
                self._lanes.changes.tell(name)
                self._lanes.after(2, lambda: self.give_back(name))
            elif has_come:
                self._lanes.take_turn(name, lack)
            else:
                self._lanes.poke([name])

        self._turns.ask(self._lanes.number, token, parked, ended)

    def withdraw(self, name: bytes, lack: WaitCondition) -> None:
        """The lane of that queue does not want the role any longer for which it has asked."""
        self._turns.withdraw(self._lanes.number, base_key(self._lanes.prefix, name) + _PARKED[lack])

    def give_back(self, name: bytes) -> None:
        """End our turns on a queue. Who is in line there acts before, in the same call."""
        self._owed.add(name)
        if self._lanes.is_up:
            self._lanes.submit(Operation(verbs.TURN, name, [], 1, OnSuccess(self._given_back)))

    def backend_is_back(self) -> None:
        """Give back what could not be while the backend was away."""
        for name in list(self._owed):
            self.give_back(name)

    def _given_back(self, name: bytes) -> None:
        self._owed.discard(name)
        base = base_key(self._lanes.prefix, name)
        for suffix in _PARKED.values():
            self._turns.given_back(self._lanes.number, base + suffix)

    async def give_all_back(self) -> None:
        """Give back what a server that died may have waited for.

        Where it is another server that lives, it waits for its turn once more.
        """
        prefix = self._lanes.prefix + b":"
        for parked in await self._turns.left_behind(self._lanes.number):
            for suffix in _PARKED.values():
                if parked.startswith(prefix) and parked.endswith(suffix):
                    name = parked[len(prefix) : -len(suffix)]
                    call = Completion(None)
                    await self._lanes.attempt(Operation(verbs.TURN, name, [], 1, call), call)
                    self._given_back(name)
