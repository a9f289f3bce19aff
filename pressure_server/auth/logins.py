"""Failed logins: count them, delay their replies, and log them.

A delay affects only the connection whose login failed. A correct password is accepted at once, even from
an address with many failures.
"""

import asyncio
import logging
from collections import OrderedDict

from pressure_server.auth.peer_address import address_of, network_of
from pressure_server.auth.users import User
from pressure_server.log_limits import LogThrottle
from pressure_server.text import printable

logger = logging.getLogger(__name__)

# Failed logins after which a connection is closed.
MAX_FAILURES = 5
# Seconds until a failure is answered: the first delay, doubled with each further failure, up to the longest.
_FIRST_DELAY = 0.05
MAX_DELAY = 2.0
# Seconds without a failure after which an address is forgotten, and the most addresses remembered.
_FORGET_AFTER = 300.0
_MAX_NETWORKS = 10_000


def delay_after(failures: int) -> float:
    """Return the seconds by which the reply to the nth failure is delayed (n from 1)."""
    return min(MAX_DELAY, _FIRST_DELAY * 2.0 ** min(failures - 1, 16))


class Logins:
    """The failed logins by network address. `denied` is their total number."""

    def __init__(self) -> None:
        self.denied = 0
        # How many failures each network has had recently, and when the last one was.
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._log = LogThrottle(logger, "failed login")

    async def fail(self, transport: asyncio.BaseTransport, name: bytes, earlier_failures: int) -> None:
        """Note a failed login as `name`, after `earlier_failures` failures on the same connection.

        Return after the delay, when the failure may be answered.
        """
        self.denied += 1
        shown, address = printable(name), address_of(transport)
        fields = {"client": address, "user": shown, "error": "WRONGPASS"}
        self._log.warn(f"failed login as '{shown}' from {address}", fields)
        failures = max(earlier_failures + 1, self._count(network_of(transport)))
        await asyncio.sleep(delay_after(failures))

    def succeed(self, transport: asyncio.BaseTransport, user: User) -> None:
        """Note a login, for `--log-level debug`."""
        address = address_of(transport)
        fields = {"client": address, "user": user.name}
        logger.debug("login as '%s' from %s", user.name, address, extra=fields)

    def _count(self, network: str) -> int:
        """Count a failure. Return how many the address has had recently."""
        now = asyncio.get_running_loop().time()
        count, last = self._failures.pop(network, (0, now))
        count = 1 if now - last > _FORGET_AFTER else count + 1
        self._failures[network] = count, now
        if len(self._failures) > _MAX_NETWORKS:
            self._failures.popitem(last=False)
        return count
