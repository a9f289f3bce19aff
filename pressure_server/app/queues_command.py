"""`pressure-server queues`, `top` and `where`: a table of the queues, once or live; where one is stored."""

import asyncio
import curses
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import click
import uvloop

from pressure_server.app.apply_command import apply_command
from pressure_server.app.option_types import Seconds
from pressure_server.app.options import STORE_OPTIONS, shared_options
from pressure_server.app.store import Store, open_store
from pressure_server.errors import BackendError
from pressure_server.queues.survey import Survey, Surveyed
from pressure_server.text import Glob, counted, printable

# Keys of `top`, with the column by which they sort.
SORT_KEYS = {"m": "messages", "o": "oldest", "p": "put/s", "t": "taken/s", "n": "queue", "b": "bytes"}
# Seconds between two looks at the keyboard.
_TICK = 0.1


class Column(NamedTuple):
    """A column: its title, a value for sorting and for JSON, and what makes a value the text of a cell."""

    title: str
    value: Callable[[Surveyed], Any]
    text: Callable[[Any], str] = str


def _number(field: str) -> Column:
    return Column(field, lambda queue: getattr(queue.figures, field), lambda value: str(value or "-"))


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02}h"
    if hours:
        return f"{hours}h{minute:02}m"
    return f"{minutes}m{second:02}s" if minutes else f"{second}s"


_BASICS = (
    Column("queue", lambda queue: printable(queue.name)),
    Column("type", lambda queue: queue.figures.type.decode()),
    Column("messages", lambda queue: queue.figures.length),
    _number("bound"),
    _number("bytes"),
)
_JOBS = (_number("delayed"), _number("reserved"), _number("buried"))
_STATE = Column("state", lambda queue: ",".join(queue.figures.states))
# One look at the queues shows totals, several looks show rates.
TOTALS = (*_BASICS, _number("put"), _number("taken"), *_JOBS, _number("dead_letters"), _STATE)
RATES = (
    *_BASICS,
    Column("oldest", lambda queue: queue.age, lambda age: duration(age) if age else "-"),
    Column("put/s", lambda queue: queue.put_rate, "{:.1f}".format),
    Column("taken/s", lambda queue: queue.taken_rate, "{:.1f}".format),
    *_JOBS,
    _STATE,
)
# Left-aligned; the others are numbers.
_TEXTS = {"queue", "type", "state"}


def sorted_by_column(queues: Iterable[Surveyed], columns: Sequence[Column], title: str) -> list[Surveyed]:
    """Return the queues sorted by a column: names from A to Z, numbers from the highest."""
    column = next(column for column in columns if column.title == title)
    by_name = sorted(queues, key=lambda queue: queue.name)
    return sorted(by_name, key=column.value, reverse=title not in _TEXTS)


def lines_of(queues: Sequence[Surveyed], columns: Sequence[Column]) -> list[str]:
    """Return the lines of the table, with its head."""
    rows = [[column.title for column in columns]]
    rows += [[column.text(column.value(queue)) for column in columns] for queue in queues]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    return [
        "  ".join(
            cell.ljust(width) if column.title in _TEXTS else cell.rjust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in rows
    ]


class _QueuesCommand(click.Command):
    """The command `queues`, of which the first argument `apply` makes another one."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of `queues apply` if that is meant."""
        if args[:1] == [apply_command.name]:
            return apply_command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    "queues", cls=_QueuesCommand, short_help="List the queues.", params=shared_options(*STORE_OPTIONS)
)
@click.argument("pattern", default="*")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each queue, one on each line.")
@click.option(
    "--sort",
    type=click.Choice([column.title for column in TOTALS]),
    default="queue",
    show_default=True,
    help="The column to sort by: names from A to Z, numbers from the highest.",
)
def queues_command(pattern: str, as_json: bool, sort: str, **values: Any) -> None:
    """List the queues whose names match PATTERN, with their figures.

    PATTERN is a pattern as for KEYS; without it all queues of the backend's database are listed. The command
    does not need a running server, and changes nothing.

    `queues apply` gives existing queues the settings of the --config file: see `queues apply --help`.

    Exit status: 0, or 1 if the backend, or a shard of it, cannot be reached.
    """
    found, missing = uvloop.run(_look(Store(**values), pattern))
    queues = sorted_by_column(found, TOTALS, sort)
    if as_json:
        for queue in queues:
            row = {column.title: column.value(queue) for column in TOTALS}
            click.echo(json.dumps(row, ensure_ascii=False))
    else:
        for line in lines_of(queues, TOTALS):
            click.echo(line)
    if missing:
        raise BackendError(f"queues are missing: {missing}")


async def _look(store: Store, pattern: str) -> tuple[list[Surveyed], str]:
    """Return the queues that match, and why others are missing, if they are."""
    why = ""
    async with open_store(store) as broker:
        survey = Survey(broker)
        try:
            await survey.run_once()
        except BackendError as error:
            why = str(error)
        return _matching(survey, pattern), why


@click.command("where", short_help="Say where a queue is stored.", params=shared_options(*STORE_OPTIONS))
@click.argument("queue")
def where_command(queue: str, **values: Any) -> None:
    """Say which prefix the keys of QUEUE have, and which node has them.

    On a cluster, both depend on the queue's shard. A native client uses the queue with this prefix. The queue
    need not exist, and no server need run.

    Exit status: 0, or 1 if the backend cannot be reached.
    """
    click.echo(uvloop.run(_find(Store(**values), os.fsencode(queue))))


async def _find(store: Store, queue: bytes) -> str:
    async with open_store(store) as broker:
        shard = broker.default_database.shard_of(queue)
        await shard.keys.command(b"PING")
        return f"prefix {printable(shard.prefix)}: on {shard.route}"


@click.command("top", short_help="Show the queues as a live table.", params=shared_options(*STORE_OPTIONS))
@click.argument("pattern", default="*")
@click.option(
    "--interval",
    help="How long each table is shown.",
    default="1s",
    show_default=True,
    type=Seconds(0.1),
)
def top_command(pattern: str, interval: float, **values: Any) -> None:
    """Show the queues whose names match PATTERN as a live table, until you type q.

    Type m, o, p, t, b or n to sort by messages, age of the oldest message since top
    started, messages put or taken per second, bytes or name. The command does not need a running server, and
    changes nothing.
    """
    if not sys.stdout.isatty():
        raise click.UsageError("top needs a terminal: use pressure-server queues")
    uvloop.run(_show_live(Store(**values), pattern, interval))


def _matching(survey: Survey, pattern: str) -> list[Surveyed]:
    glob = Glob(os.fsencode(pattern))
    return [queue for queue in survey.queues.values() if glob.matches(queue.name)]


async def _show_live(store: Store, pattern: str, interval: float) -> None:
    async with open_store(store) as broker:
        survey = Survey(broker)
        with suppress(BackendError):  # the table says what is missing; ages and rates need two looks
            await survey.run_once()
        screen = curses.initscr()
        try:
            curses.noecho()
            curses.cbreak()
            screen.keypad(True)
            screen.nodelay(True)
            await _show(screen, survey, pattern, interval)
        finally:
            curses.endwin()


async def _show(screen: curses.window, survey: Survey, pattern: str, interval: float) -> None:
    sort, note, due = "messages", "", time.monotonic()
    while True:
        key = screen.getch()
        typed = chr(key) if 0 <= key < 256 else ""
        if typed == "q":
            return
        sort = SORT_KEYS.get(typed, sort)
        is_due = time.monotonic() >= due
        if is_due:
            due = time.monotonic() + interval
            try:
                await survey.run_once()
                note = ""
            except BackendError as error:
                note = f" -- {error}"
        if is_due or key >= 0:
            _draw(screen, survey, _matching(survey, pattern), sort, note)
        await asyncio.sleep(_TICK)


def _draw(screen: curses.window, survey: Survey, queues: Sequence[Surveyed], sort: str, note: str) -> None:
    height, _ = screen.getmaxyx()
    totals = survey.totals
    keys = " ".join(f"{key}:{title}" for key, title in SORT_KEYS.items())
    lines = [
        f"{counted(len(survey.queues), 'queue')}, {counted(totals.length, 'message')}, "
        f"{totals.reserved} reserved, {totals.buried} buried, {totals.full} full, "
        f"{totals.closed} closed{note}",
        f"sorted by {sort}   {keys} q:quit",
        "",
        *lines_of(sorted_by_column(queues, RATES, sort)[:height], RATES),
    ]
    screen.erase()
    for row, line in enumerate(lines[:height]):
        # insstr drops what does not fit; addnstr would count characters, of which some are two cells wide.
        screen.insstr(row, 0, line, curses.A_REVERSE if row == 3 else curses.A_NORMAL)
    screen.refresh()
