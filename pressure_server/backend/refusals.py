"""What a reachable backend refuses (out of memory, disk full, no permission), logged once.

Each that is asked gets the error; the log says when that begins, and when it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import re

logger = logging.getLogger(__name__)

# Seconds without one, after which it has ended: gets may go on where puts are refused, and prove nothing.
_QUIET = 5.0
# Those that are about the backend; others are about one queue, and for who asked for that.
_CODES = ("OOM", "MISCONF", "NOREPLICAS", "NOPERM")
# Redis names the script, and the place in it.
_PLACE = re.compile(r"\s+script: .*", re.DOTALL)


class BackendRefusals:
    """Of one database."""

    def __init__(self, number: int) -> None:
        self._number = number
        # By the code of the error: when it came last.
        self._last: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        self._looking: asyncio.TimerHandle | None = None

    def hear(self, error: Exception) -> None:
        """The backend has answered with an error to what is asked of it every day."""
        text = _PLACE.sub("", str(error))
        code = text.partition(" ")[0]
        if code not in _CODES:
            return
        if code not in self._last:
            logger.warning("backend database %d refuses: %s", self._number, text)
        self._last[code] = self._loop.time()
        if self._looking is None:
            self._looking = self._loop.call_later(_QUIET, self._look)

    def _look(self) -> None:
        self._looking = None
        quiet_since = self._loop.time() - _QUIET
        for code in [code for code, when in self._last.items() if when <= quiet_since]:
            del self._last[code]
            logger.info("backend database %d has not refused anything with %s of late", self._number, code)
        if self._last:
            self._looking = self._loop.call_at(min(self._last.values()) + _QUIET, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
