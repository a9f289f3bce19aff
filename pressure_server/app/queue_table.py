"""The table of queues that `pressure-server queues` and `pressure-server top` show. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pressure_server.queues.survey import Surveyed
from pressure_server.text import printable

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class Column(NamedTuple):
    """A column: its title, a value for sorting and for JSON, and the text of a cell."""

    title: str
    value: Callable[[Surveyed], str | int | float]
    text: Callable[[Surveyed], str]


def _number(title: str, field: str) -> Column:
    return Column(
        title,
        lambda queue: int(getattr(queue.figures, field)),
        lambda queue: str(getattr(queue.figures, field) or "-"),
    )


def state_of(queue: Surveyed) -> str:
    """Return the states that a queue is in, other than the usual one."""
    figures = queue.figures
    states = (("closed", figures.is_closed), ("full", figures.is_full), ("paused", figures.paused))
    return ",".join(name for name, is_so in states if is_so)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


_NAME = Column("queue", lambda queue: printable(queue.name), lambda queue: printable(queue.name))
_TYPE = Column("type", lambda queue: queue.figures.type.decode(), lambda queue: queue.figures.type.decode())
_STATE = Column("state", state_of, state_of)
_MESSAGES = Column("messages", lambda queue: queue.figures.length, lambda queue: str(queue.figures.length))
_SIZE = (_number("bound", "bound"), _number("bytes", "bytes"))
_JOBS = (_number("delayed", "delayed"), _number("reserved", "reserved"), _number("buried", "buried"))
# One look at the queues shows totals, several looks show rates.
TOTALS = (
    _NAME, _TYPE, _MESSAGES, *_SIZE, _number("put", "put"), _number("taken", "taken"), *_JOBS,
    _number("dead_letters", "dead_letters"), _STATE,
)  # fmt: skip
RATES = (
    _NAME,
    _TYPE,
    _MESSAGES,
    *_SIZE,
    Column("oldest", lambda queue: queue.age, lambda queue: duration(queue.age) if queue.age else "-"),
    Column("put/s", lambda queue: queue.put_rate, lambda queue: f"{queue.put_rate:.1f}"),
    Column("taken/s", lambda queue: queue.taken_rate, lambda queue: f"{queue.taken_rate:.1f}"),
    *_JOBS,
    _STATE,
)
# Left-aligned; the others are numbers.
_TEXTS = {"queue", "type", "state"}


def sorted_queues(queues: Iterable[Surveyed], columns: Sequence[Column], title: str) -> list[Surveyed]:
    """Return the queues sorted by a column: names from A to Z, numbers from the highest."""
    column = next(column for column in columns if column.title == title)
    by_name = sorted(queues, key=lambda queue: queue.name)
    return (
        sorted(by_name, key=column.value, reverse=True)
        if title not in _TEXTS
        else sorted(by_name, key=column.value)
    )


def lines_of(queues: Sequence[Surveyed], columns: Sequence[Column]) -> list[str]:
    """Return the lines of the table, with its head."""
    rows = [[column.title for column in columns]]
    rows += [[column.text(queue) for column in columns] for queue in queues]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    return [
        "  ".join(
            cell.ljust(width) if column.title in _TEXTS else cell.rjust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in rows
    ]


def json_of(queue: Surveyed, columns: Sequence[Column]) -> dict[str, str | int | float]:
    """Return a queue's values by title, for JSON."""
    return {column.title: column.value(queue) for column in columns}
