"""Places for connections and streams: their number is limited, and nobody can take those of all others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
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
        self._owners: dict[asyncio.Transport, Owner] = {}
        # The oldest first.
        self._held: defaultdict[Owner, dict[asyncio.Transport, None]] = defaultdict(dict)

    def take(self, holder: asyncio.Transport, owner: Owner) -> asyncio.Transport | None:
        """Give a place to the holder, which may have one already. Return who has lost its place for it."""
        self.leave(holder)
        loser = self._loser() if len(self._owners) >= self._most else None
        if loser is not None:
            self.leave(loser)
        self._owners[holder] = owner
        self._held[owner][holder] = None
        return loser

    def is_due(self, owner: Owner) -> bool:
        """Return whether there is a place, or another owner has at least two more than this one."""
        if len(self._owners) < self._most:
            return True
        own = len(self._held[owner]) if owner in self._held else 0
        return len(self._held[self._owners[self._loser()]]) > own + 1

    def leave(self, holder: asyncio.Transport) -> None:
        """Free the place of the holder, if it has one."""
        owner = self._owners.pop(holder, None)
        if owner is not None:
            del self._held[owner][holder]
            if not self._held[owner]:
                del self._held[owner]

    def _loser(self) -> asyncio.Transport:
        strangers = sum(len(held) for owner, held in self._held.items() if not owner.is_user)
        of_users = strangers < self._reserved
        held = max((held for owner, held in self._held.items() if owner.is_user == of_users), key=len)
        return next(iter(held))
