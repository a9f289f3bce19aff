"""Strangers: clients that have not logged in, although they must.

Their time and their memory are limited, so that they cannot keep out or throttle clients that log in.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pressure_server.errors import StrangerLimitError
from pressure_server.log_limits import LogThrottle

if TYPE_CHECKING:
    from pressure_server.net.connection import Connection

logger = logging.getLogger(__name__)

# Seconds in which a client must log in, as in PostgreSQL.
LOGIN_TIMEOUT = 60.0
# Seconds for which a stranger stays even if all connections are in use, at least one less by `Clients.now`.
_LEAST_TIME = 2.0
# The budget is this part of --max-buffered-bytes.
_PART = 16


class Strangers:
    """The connections of clients that have not logged in. Together they may buffer a sixteenth of `limit`.

    Above that budget, the one that first had something in it is evicted, but never the only one.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit // _PART
        self.held = 0
        self.evicted = 0
        # Both have the oldest first.
        self._connected: dict[Connection, None] = {}
        self._holders: dict[Connection, int] = {}
        self._log = LogThrottle(
            logger, "client disconnected before its login", "clients disconnected before their logins"
        )

    def __contains__(self, connection: object) -> bool:
        return connection in self._connected

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._connected)

    def add(self, connection: Connection) -> None:
        """Add the connection of a new client."""
        self._connected[connection] = None

    def remove(self, connection: Connection) -> bool:
        """Remove a connection whose client has logged in or disconnected. Return whether it was here."""
        if connection not in self._connected:
            return False
        del self._connected[connection]
        self.held -= self._holders.pop(connection, 0)
        return True

    def update(self, holder: Connection, size: int) -> None:
        """Set the bytes that the connection holds; 0 removes it. Evict connections if needed."""
        self.held += size - self._holders.get(holder, 0)
        if size:
            self._holders[holder] = size
        else:
            self._holders.pop(holder, None)
        while self.held > self.limit and len(self._holders) > 1:
            oldest = next(iter(self._holders))
            self.held -= self._holders.pop(oldest)
            self.evicted += 1
            oldest.evict(StrangerLimitError(self.limit))

    def disconnect_late(self, now: float) -> None:
        """Disconnect the clients that have not logged in within LOGIN_TIMEOUT seconds."""
        reason = f"it had not logged in after {LOGIN_TIMEOUT:.0f} seconds"
        while self._disconnect_oldest(now - LOGIN_TIMEOUT, reason):
            pass

    def make_room(self, now: float) -> bool:
        """Disconnect the oldest client for a new one. Return False if there is none, or only new ones."""
        reason = "all connections are in use (--max-clients), and it had not logged in"
        return self._disconnect_oldest(now - _LEAST_TIME, reason)

    def _disconnect_oldest(self, latest: float, reason: str) -> bool:
        """Disconnect the oldest client if it had connected at this time. Return whether it had."""
        oldest = next(iter(self._connected), None)
        if oldest is None or oldest.since > latest:
            return False
        self.remove(oldest)
        address = oldest.addresses.shown
        self._log.warn(f"disconnected {address}: {reason}", {"client": address})
        oldest.break_off(reason)
        return True
