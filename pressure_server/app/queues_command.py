"""`pressure-server queues` and `pressure-server top`: the queues of a store, once or as a live table."""

from __future__ import annotations

import asyncio
import curses
import json
import time
from collections.abc import Callable, Sequence

from pressure_server.app.queue_table import RATES, TOTALS, json_of, lines_of, sorted_queues
from pressure_server.app.settings import Store
from pressure_server.app.store_access import open_store
from pressure_server.errors import BackendError
from pressure_server.queues.survey import Survey, Surveyed
from pressure_server.text import glob_regex

# Keys of `top`, with the column by which they sort.
SORT_KEYS = {"m": "messages", "o": "oldest", "p": "put/s", "t": "taken/s", "n": "queue", "b": "bytes"}
# Seconds between two looks at the keyboard.
_TICK = 0.1


async def list_queues(
    store: Store, pattern: str, sort: str, *, as_json: bool, say: Callable[[str], None]
) -> None:
    """Print the queues whose names match, as a table or as one JSON object a line.

    Raise SettingsError or BackendError.
    """
    async with open_store(store) as broker:
        survey = Survey(broker)
        await survey.run_once()
        queues = sorted_queues(_matching(survey, pattern), TOTALS, sort)
    if as_json:
        for queue in queues:
            say(json.dumps(json_of(queue, TOTALS), ensure_ascii=False))
    else:
        for line in lines_of(queues, TOTALS):
            say(line)


def _matching(survey: Survey, pattern: str) -> list[Surveyed]:
    regex = glob_regex(pattern.encode())
    return [queue for queue in survey.queues.values() if regex.fullmatch(queue.name)]


async def show_live(store: Store, pattern: str, interval: float) -> None:
    """Show a live table on the terminal until q is typed. Raise SettingsError or BackendError.

    `interval` is in seconds.
    """
    async with open_store(store) as broker:
        survey = Survey(broker)
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
    height, width = screen.getmaxyx()
    totals = survey.totals
    keys = " ".join(f"{key}:{title}" for key, title in SORT_KEYS.items())
    lines = [
        f"{len(survey.queues)} queues, {totals.length} messages, {totals.reserved} reserved, "
        f"{totals.buried} buried, {totals.full} full, {totals.closed} closed{note}",
        f"sorted by {sort}   {keys} q:quit",
        "",
        *lines_of(sorted_queues(queues, RATES, sort)[:height], RATES),
    ]
    screen.erase()
    for row, line in enumerate(lines[:height]):
        screen.addnstr(row, 0, line, width - 1, curses.A_REVERSE if row == 3 else curses.A_NORMAL)
    screen.refresh()
