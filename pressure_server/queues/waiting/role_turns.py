"""Role turns: wait for roles in line with native clients, which hand them from one to the next.

backend/turns.py does the waiting. This module tells the lanes when a turn begins, and ends it.
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

# The suffix of the key at which a role's token is parked during this server's turn.
_PARKED = {WaitCondition.PRODUCER: PRODUCER_TURN, WaitCondition.CONSUMER: CONSUMER_TURN}


class Changes(Protocol):
    """Tells listeners when a queue changes."""

    def tell(self, name: bytes) -> None:
        """Tell all listeners that a queue may have changed."""


class Host(Protocol):
    """The lanes of one database."""

    prefix: bytes
    number: int

    @property
    def changes(self) -> Changes:
        """The listeners to queues."""

    @property
    def is_up(self) -> bool:
        """Whether the backend can be reached."""

    def submit(self, operation: Operation) -> None:
        """Do an operation."""

    async def attempt(self, operation: Operation, call: Completion) -> list[Any] | PressureError:
        """Do an operation, and wait until it ends; `call` is its owner."""

    def take_turn(self, name: bytes, role: WaitCondition) -> None:
        """Begin the turn of a queue's lane in a role: its token has been parked."""

    def after(self, turns: int, follows: Callable[[], None]) -> None:
        """Call `follows` after so many iterations of the event loop."""

    def poke(self, names: Iterable[bytes]) -> None:
        """Try the operations that wait on these queues again."""


class RoleTurns:
    """The turns of this server on the queues of one database."""

    def __init__(self, lanes: Host, turns: Turns) -> None:
        self._lanes = lanes
        self._turns = turns
        # Queues whose turns are to be given back; kept while the backend is away.
        self._owed: set[bytes] = set()

    def ask(self, name: bytes, lack: WaitCondition, *, elsewhere: bool = False) -> None:
        """Wait for a role in line with native clients, then begin the turn of the queue's lane.

        With `elsewhere`, tell the listeners to the queue instead; they act at once.
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
        """Stop waiting for a role for which the queue's lane has asked."""
        self._turns.withdraw(self._lanes.number, base_key(self._lanes.prefix, name) + _PARKED[lack])

    def give_back(self, name: bytes) -> None:
        """End this server's turns on a queue.

        Operations that wait there act in the same call, before a native client gets the role.
        """
        self._owed.add(name)
        if self._lanes.is_up:
            self._lanes.submit(Operation(verbs.TURN, name, [], 1, OnSuccess(self._given_back)))

    def backend_is_back(self) -> None:
        """Give back the turns that could not be given back while the backend was away."""
        for name in list(self._owed):
            self.give_back(name)

    def _given_back(self, name: bytes) -> None:
        self._owed.discard(name)
        base = base_key(self._lanes.prefix, name)
        for suffix in _PARKED.values():
            self._turns.given_back(self._lanes.number, base + suffix)

    async def give_all_back(self) -> None:
        """End all turns that are noted in the backend: a server that died may have left them.

        If a turn was that of a live server, that server asks for it again.
        """
        prefix = self._lanes.prefix + b":"
        for parked in await self._turns.left_behind(self._lanes.number):
            for suffix in _PARKED.values():
                if parked.startswith(prefix) and parked.endswith(suffix):
                    name = parked[len(prefix) : -len(suffix)]
                    call = Completion(None)
                    await self._lanes.attempt(Operation(verbs.TURN, name, [], 1, call), call)
                    self._given_back(name)
