"""Places for connections and streams: their number is limited, and no client can take all."""

from __future__ import annotations

import asyncio
from collections import Counter
from operator import itemgetter
from typing import NamedTuple

from pressure_server.auth.peer_address import network_of


class Owner(NamedTuple):
    """To whom a place counts: a user who has logged in, or the address of a client that has not."""

    is_user: bool
    name: str

    @classmethod
    def stranger(cls, transport: asyncio.BaseTransport) -> Owner:
        """Return the owner of a connection without a login."""
        return cls(is_user=False, name=network_of(transport))


class Places:
    """`most` places. Each is held by the transport of a connection.

    When all are taken, a new holder gets the place of another: of a client without a login if such clients
    have `reserved` places, else of a user; and of the owner who has the most; of these the oldest.
    """

    def __init__(self, most: int, reserved: int = 0) -> None:
        self._most = most
        self._reserved = max(1, min(reserved, most // 2))
        # The oldest first.
        self._owners: dict[asyncio.Transport, Owner] = {}

    def take(self, holder: asyncio.Transport, owner: Owner) -> asyncio.Transport | None:
        """Give a place to the holder, which may have one already. Return who has lost its place for it."""
        self.leave(holder)
        loser = None
        if len(self._owners) >= self._most:
            greediest, _ = self._greediest()
            loser = next(one for one, its_owner in self._owners.items() if its_owner == greediest)
            self.leave(loser)
        self._owners[holder] = owner
        return loser

    def is_due(self, owner: Owner) -> bool:
        """Return whether there is a place, or another owner has at least two more than this one."""
        if len(self._owners) < self._most:
            return True
        own = sum(one == owner for one in self._owners.values())
        return self._greediest()[1] > own + 1

    def leave(self, holder: asyncio.Transport) -> None:
        """Free the place of the holder, if it has one."""
        self._owners.pop(holder, None)

    def _greediest(self) -> tuple[Owner, int]:
        """Return the owner who loses a place if all are taken, and how many places it has."""
        held = Counter(self._owners.values())
        strangers = sum(count for owner, count in held.items() if not owner.is_user)
        of_users = strangers < self._reserved
        return max((one for one in held.items() if one[0].is_user == of_users), key=itemgetter(1))
