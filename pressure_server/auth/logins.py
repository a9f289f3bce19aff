"""Logins: who has failed how often, how long the answer to a wrong password takes, and what the log says.

Only failures are slowed, and each holds up its own connection alone: who knows a password comes in at once,
even from an address from which others guess.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass

from pressure_server.auth.log_throttle import LogThrottle
from pressure_server.auth.peer_address import address_of, house_of
from pressure_server.queues.names import printable

logger = logging.getLogger(__name__)

# A connection is closed after so many failures.
MOST_FAILURES = 5
# The first failure is answered after so many seconds, each further one after twice as many, up to the most.
_FIRST_DELAY = 0.05
LONGEST_DELAY = 2.0
# Failures of an address count until none has come for so many seconds; so many addresses are remembered.
_FORGET_AFTER = 300.0
_MOST_HOUSES = 10_000


@dataclass(slots=True)
class _Failures:
    count: int
    last: float


def delay_after(failures: int) -> float:
    """For how many seconds the answer to a failure waits that is the nth."""
    return min(LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(failures - 1, 16))


class Logins:
    """What is remembered of logins that failed. `denied` is how many there were."""

    def __init__(self) -> None:
        self.denied = 0
        self._houses: OrderedDict[str, _Failures] = OrderedDict()
        self._log = LogThrottle(logger, "failed logins")

    async def fail(self, transport: asyncio.BaseTransport, name: bytes, before: int) -> None:
        """A login under that name has failed, after `before` others on its connection.

        Returns when it is time to say so.
        """
        self.denied += 1
        self._log.warn(f"failed login as '{printable(name)}' from {address_of(transport)}")
        failures = max(before + 1, self._count(house_of(transport)))
        await asyncio.sleep(delay_after(failures))

    def _count(self, house: str) -> int:
        """Count a failure; how many there have been."""
        now = asyncio.get_running_loop().time()
        failures = self._houses.pop(house, None)
        if failures is None or now - failures.last > _FORGET_AFTER:
            failures = _Failures(0, now)
        failures.count += 1
        failures.last = now
        self._houses[house] = failures
        if len(self._houses) > _MOST_HOUSES:
            self._houses.popitem(last=False)
        return failures.count
