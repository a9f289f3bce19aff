"""Limits for warnings of which there may be many: a summary of similar ones, or only one about each queue."""

import asyncio
import logging
from collections.abc import Mapping

from pressure_server.errors import PressureError
from pressure_server.text import counted, printable

_SUMMARY_SECONDS = 60.0
_MAX_QUEUES = 1000


class LogThrottle:
    """A throttle for warnings of one `kind`, such as "failed login"; `kinds` is the plural (see `counted`).

    After a warning was logged, the warnings of the next `every` seconds are only counted. Then one
    summary gives their number and the text of the last.
    """

    def __init__(
        self, logger: logging.Logger, kind: str, kinds: str = "", every: float = _SUMMARY_SECONDS
    ) -> None:
        self._logger = logger
        self._kind = kind
        self._kinds = kinds
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
            more = counted(self._more, f"more {self._kind}", self._kinds and f"more {self._kinds}")
            self._logger.warning("%s; the last: %s", more, self._last)
            self._more = 0
            self._begin_pause()


class WarnOnce:
    """Warnings about up to 1000 queues, one about each; `consequence` says what is not done for the queue."""

    def __init__(self, logger: logging.Logger, consequence: str) -> None:
        self._logger = logger
        self._consequence = consequence
        self._warned: set[tuple[int, bytes]] = set()

    def warn(self, database_number: int, name: bytes, error: PressureError) -> None:
        """Log the error of a queue, unless an error of the queue was logged before."""
        key = (database_number, name)
        if key not in self._warned and len(self._warned) < _MAX_QUEUES:
            self._warned.add(key)
            shown = printable(name)
            fields = {"queue": shown, "error": error.code}
            self._logger.warning("queue '%s' %s: %s", shown, self._consequence, error, extra=fields)
