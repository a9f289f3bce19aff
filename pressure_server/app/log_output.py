"""Logging to standard output, as lines of text or JSON."""

import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
# The fields that log calls pass as `extra`. JSON logs have those that are known.
_FIELDS = ("client", "user", "queue", "command", "error", "duration")


class _JsonFormatter(logging.Formatter):
    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._worker:
            entry["worker"] = self._worker
        entry |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(level: str, log_format: str, worker: int = 0) -> None:
    """Log messages of at least `level` to standard output, in one of FORMATS.

    The lines of a worker have its number.
    """
    handler = logging.StreamHandler(sys.stdout)
    if log_format == "json":
        handler.setFormatter(_JsonFormatter(worker))
    else:
        where = f"worker {worker}: " if worker else ""
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s {where}%(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
