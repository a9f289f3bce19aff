"""Log refusals of a backend that is reachable: out of memory, disk full, no permission.

Each client gets its error. The log has one line when an error first comes, and one when it no longer does.
"""

from __future__ import annotations

import asyncio
import logging
import re

logger = logging.getLogger(__name__)

# A refusal is over after this many seconds without the error. Successes prove nothing: gets may work while
# puts are refused.
_QUIET = 5.0
# Errors that concern the whole backend. Others concern one queue, and only the client gets them.
_CODES = ("OOM", "MISCONF", "NOREPLICAS", "NOPERM")
# Redis appends the script's digest and the line in it.
_PLACE = re.compile(r"\s+script: .*", re.DOTALL)


class BackendRefusals:
    """The refusals of one database."""

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
