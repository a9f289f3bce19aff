"""Deaths of the backend: requests that may cause them are not sent again, and housekeeping pauses."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from pressure_server.backend.requests import BackendRequest
from pressure_server.text import counted

logger = logging.getLogger(__name__)

# A request that was in flight at this many deaths of the backend is not sent again.
MAX_DEATHS = 3
# Seconds for which housekeeping pauses after calls have killed the backend: doubled at each further death,
# and 0 again after the backend has lived for _WELL_AFTER longer.
_FIRST_REST = 1.0
_MAX_REST = 60.0
_WELL_AFTER = 30.0


class Deaths:
    """The deaths of one backend, which the log calls `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        # When this run of the backend was first reached, by time.monotonic.
        self._alive_since = 0.0
        self._rest = 0.0

    @property
    def pause(self) -> float:
        """For how many seconds put-backs and housekeeping must leave the backend alone, as it dies of calls.

        Put-backs are repeated until they succeed: one that kills the backend is repeated less and less often.
        """
        is_well = time.monotonic() - self._alive_since > self._rest + _WELL_AFTER
        return 0.0 if is_well else self._rest

    def count(self, held: Sequence[BackendRequest]) -> int:
        """Count a death, for the requests that were in flight. Return after how many a request fails."""
        self._rest = self.pause
        self._alive_since = time.monotonic()
        most = 1 if self._rest else MAX_DEATHS
        for request in held:
            request.deaths += request.may_be_done
        fatal = sum(request.deaths >= most for request in held)
        if fatal and not self._rest:
            logger.warning(
                "%s died %d times with the same calls in flight: %s answered with an error, and not sent "
                "again; see the backend's log",
                self._name, most, counted(fatal, "call"),
            )  # fmt: skip
        if fatal:
            self._rest = min(max(2 * self._rest, _FIRST_REST), _MAX_REST)
        return most
