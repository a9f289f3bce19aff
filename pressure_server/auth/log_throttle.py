"""The log throttle: log the first of many similar warnings at once, and the others as a summary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

_EVERY = 60.0


class LogThrottle:
    """A throttle for warnings of one `kind`, a plural such as "failed logins".

    After a warning was logged, those of the next `every` seconds are counted. Then one summary gives their
    number and the text of the last.
    """

    def __init__(self, logger: logging.Logger, kind: str, every: float = _EVERY) -> None:
        self._logger = logger
        self._kind = kind
        self._every = every
        self._pause: asyncio.TimerHandle | None = None
        self._more = 0
        self._last = ""

    def warn(self, text: str, fields: Mapping[str, object] | None = None) -> None:
        """Log the warning now, with the fields of JSON logs, or count it for the next summary."""
        if self._pause is None:
            self._logger.warning("%s", text, extra=fields)
            self._begin_pause()
        else:
            self._more += 1
            self._last = text

    def _begin_pause(self) -> None:
        self._pause = asyncio.get_running_loop().call_later(self._every, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        if self._more:
            self._logger.warning("%d more %s; the last: %s", self._more, self._kind, self._last)
            self._more = 0
            self._begin_pause()
