"""Outages in the log: each reason once, however many links of the server have it."""

from __future__ import annotations

import logging
from collections import Counter

from pressure_server.errors import BackendError

logger = logging.getLogger(__name__)


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
