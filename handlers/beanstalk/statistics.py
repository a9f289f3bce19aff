"""Counts since the start, as beanstalkd has them: of commands, and for each tube."""

from __future__ import annotations

import logging
from collections import Counter

from pressure_server.log_limits import LogThrottle

logger = logging.getLogger(__name__)

# Tubes that are counted; others have zeros.
_MAX_TUBES = 10_000


class Statistics:
    """The counts of one listener."""

    def __init__(self) -> None:
        self.commands: Counter[str] = Counter()
        self._of_tubes: dict[bytes, Counter[str]] = {}
        # Pauses, in seconds, as they were asked for.
        self.pauses: dict[bytes, int] = {}
        # The replies of INTERNAL_ERROR have no text, so the log has their reasons.
        self.errors = LogThrottle(logger, "replies of INTERNAL_ERROR")

    def of_tube(self, tube: bytes) -> Counter[str]:
        """Return the counts of a tube."""
        counts = self._of_tubes.get(tube)
        if counts is None:
            counts = Counter()
            if len(self._of_tubes) < _MAX_TUBES:
                self._of_tubes[tube] = counts
        return counts
