"""Trouble with the backend: outages, refusals and deaths. The log has each once, and what ends it."""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Sequence

from pressure_server.backend.requests import BackendRequest
from pressure_server.errors import BackendError
from pressure_server.text import counted

logger = logging.getLogger(__name__)

# A refusal is over after this many seconds without the error. Successes prove nothing: gets may work while
# puts are refused.
_QUIET = 5.0
# Errors that concern the whole backend. Others concern one queue, and only the client gets them.
_CODES = ("OOM", "MISCONF", "NOREPLICAS", "NOPERM")
# Redis appends the script's digest and the line in it.
_PLACE = re.compile(r"\s+script: .*", re.DOTALL)

# A request that was in flight at this many deaths of the backend is not sent again.
MAX_DEATHS = 3
# Seconds for which housekeeping pauses after calls have killed the backend: doubled at each further death,
# and 0 again after the backend has lived for _WELL_AFTER longer.
_FIRST_REST = 1.0
_MAX_REST = 60.0
_WELL_AFTER = 30.0


class Outage:
    """The present outage of one link, which the log calls `name`."""

    def __init__(self, name: str, links: Counter[str]) -> None:
        """`links` counts the links of the server that are down, by reason: all links share it."""
        self._name = name
        self._links = links
        self._reasons: set[str] = set()
        self._is_logged = False

    def report(self, why: BackendError, then: str = "") -> None:
        """Log a reason, and what happens then, unless this or another link has done so."""
        reason = str(why)
        if reason in self._reasons:
            return
        self._reasons.add(reason)
        self._links[reason] += 1
        is_first = self._links[reason] == 1
        self._is_logged = self._is_logged or is_first
        logger.log(logging.WARNING if is_first else logging.DEBUG, "%s: %s%s", self._name, reason, then)

    def end(self, seconds: float | None = None) -> None:
        """Note that the link is well; if the outage was in the log, log that it is over after `seconds`."""
        self._links -= Counter(self._reasons)
        self._reasons.clear()
        if seconds is not None:
            level = logging.INFO if self._is_logged else logging.DEBUG
            logger.log(level, "%s is back after %.1f seconds", self._name, seconds)
        self._is_logged = False


class Refusals:
    """The refusals of a database that can be reached: out of memory, disk full, no permission."""

    def __init__(self, name: str) -> None:
        self._name = name
        # By error code: when the error last came.
        self._last: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        self._looking: asyncio.TimerHandle | None = None

    def hear(self, error: Exception) -> None:
        """Log an error reply of the backend, if it is the first with its code."""
        text = _PLACE.sub("", str(error))
        code = text.partition(" ")[0]
        if code not in _CODES:
            return
        if code not in self._last:
            logger.warning("%s refuses: %s", self._name, text, extra={"error": code})
        self._last[code] = self._loop.time()
        if self._looking is None:
            self._looking = self._loop.call_later(_QUIET, self._look)

    def _look(self) -> None:
        self._looking = None
        quiet_since = self._loop.time() - _QUIET
        for code in [code for code, when in self._last.items() if when <= quiet_since]:
            del self._last[code]
            logger.info("%s: no %s errors for 5 seconds", self._name, code)
        if self._last:
            self._looking = self._loop.call_at(min(self._last.values()) + _QUIET, self._look)


class Deaths:
    """The deaths of one backend. Requests that may cause them fail, and housekeeping pauses."""

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
