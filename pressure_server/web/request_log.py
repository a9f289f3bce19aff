"""The log of malformed requests: aiohttp logs a traceback for each, so anybody could fill the log."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError

from pressure_server.log_limits import LogThrottle
from pressure_server.text import printable

_logger = logging.getLogger(__name__)


class _MalformedRequests(logging.Filter):
    """Passes on everything but errors about malformed requests, which are throttled."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = LogThrottle(_logger, "malformed HTTP requests")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged as it is."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        reason = printable(" ".join(str(error.message).split()).encode())
        self._throttle.warn(f"refused a malformed HTTP request: {reason}")
        return False


def request_logger() -> logging.Logger:
    """Return the logger for aiohttp's server."""
    logger = logging.getLogger(f"{__name__}.aiohttp")
    for old in list(logger.filters):
        logger.removeFilter(old)
    logger.addFilter(_MalformedRequests())
    return logger
