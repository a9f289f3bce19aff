"""Role turns: a role that native clients hand to each other is waited for in line with them.

The broker's side of backend/turns.py: whose turn it is, and how it is given back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pressure_server.backend.turns import Turns
from pressure_server.broker import kinds
from pressure_server.broker.lack import Lack
from pressure_server.broker.names import CONSUMER_TURN, PRODUCER_TURN, base_key
from pressure_server.broker.operation import Operation
from pressure_server.broker.owners import OnSuccess
from pressure_server.errors import PressureError

if TYPE_CHECKING:
    from pressure_server.broker.database import Database

# Where the token of a role is, while it is our turn.
_PARKED = {Lack.PRODUCER: PRODUCER_TURN, Lack.CONSUMER: CONSUMER_TURN}


class RoleTurns:
    """Of the queues of one database."""

    def __init__(self, database: Database, turns: Turns) -> None:
        self._database = database
        self._turns = turns
        # Queues whose turns are to be given back; while the backend is away, later.
        self._owed: set[bytes] = set()

    def ask(self, name: bytes, lack: Lack, *, elsewhere: bool = False) -> None:
        """Wait for a role in line with native clients; then it is the turn of that queue's lane.

        `elsewhere`: of others, who act at once.
        """
        base = base_key(self._database.prefix, name)
        token, parked = base + lack.value[0], base + _PARKED[lack]

        def ended(has_come: bool) -> None:
            if elsewhere and has_come:
                self._database.changes.tell(name)
                self._database.soon(lambda: self.give_back(name))
            elif has_come:
                self._database.take_turn(name, lack)
            else:
                self._database.poke([name])

        self._turns.ask(self._database.number, token, parked, ended)

    def give_back(self, name: bytes) -> None:
        """End our turns on a queue. Who is in line there acts before, in the same call."""
        self._owed.add(name)
        if self._database.is_up:
            self._database.submit(Operation(kinds.TURN, name, [], 1, OnSuccess(self._given_back)))
            self._database.flush()

    def backend_is_back(self) -> None:
        """Give back what could not be while the backend was away."""
        for name in list(self._owed):
            self.give_back(name)

    def _given_back(self, name: bytes) -> None:
        self._owed.discard(name)
        base = base_key(self._database.prefix, name)
        for suffix in _PARKED.values():
            self._turns.given_back(self._database.number, base + suffix)

    async def give_all_back(self) -> None:
        """Give back what a server that died may have waited for.

        Where it is another server that lives, it waits for its turn once more.
        """
        prefix = self._database.prefix + b":"
        for parked in await self._turns.left_behind(self._database.number):
            for suffix in _PARKED.values():
                if parked.startswith(prefix) and parked.endswith(suffix):
                    name = parked[len(prefix) : -len(suffix)]
                    with suppress(PressureError):
                        await self._database.run(kinds.TURN, name)
                    self._given_back(name)
