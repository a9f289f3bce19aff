"""The cells of the matrix: all combinations of the tables that make sense."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product

from tests.waiting.matrix.endings import CLOSINGS, DELETIONS
from tests.waiting.matrix.events import CLOSED, DONE, MESSAGE, NO_QUEUE, Event
from tests.waiting.matrix.jobs import DEAD_LETTERS, KICKS, PAUSES, RELEASES, TIMES_TO_RUN
from tests.waiting.matrix.puts import DELAYS, GROUPS, PUTS
from tests.waiting.matrix.questions import NONE, QUESTIONS, Question
from tests.waiting.matrix.room import ROOM_EVENTS
from tests.waiting.matrix.stand import FIRST, LONE, SECOND
from tests.waiting.matrix.waiters import CONSUMERS, PRODUCERS, Waiter
from tests.waiting.matrix.wires import BACKEND, BEANSTALK, MEMCACHED, NATIVE

CONSUMER_EVENTS = (
    *(PUTS + DELAYS + GROUPS),
    *(RELEASES + TIMES_TO_RUN + KICKS + PAUSES + DEAD_LETTERS),
    *(CLOSINGS + DELETIONS),
)
_STEP = 0.00005
_STEPS = 20
# How the moment of an event is given; the offset is in seconds.
START = "start"  # the event's action comes so long after the wait
DUE = "due"  # the action's effect is due so long after the wait
END = "end"  # the effect is due at the end of the wait's time, and this much earlier at least
AFTER = "after"  # the wait has begun long before
BEFORE = "before"  # the action has been answered, and its effect is yet to come


@dataclass(frozen=True)
class Moment:
    """When the event comes, relative to the wait."""

    kind: str
    offset: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind in (AFTER, BEFORE) else f"{self.kind}{self.offset * 1000:+.2f}"

    @property
    def is_calm(self) -> bool:
        """Whether a question comes while nothing else happens, and no message is there."""
        return self.kind in (AFTER, BEFORE, END)


@dataclass(frozen=True)
class Place:
    """The servers of the waiter and of the event."""

    name: str
    waiter: str
    event: str


PLACES = (Place("lone", LONE, LONE), Place("same", FIRST, FIRST), Place("other", FIRST, SECOND))


@dataclass(frozen=True)
class Cell:
    """A wait, and the event that ends it."""

    event: Event
    waiter: Waiter
    question: Question
    place: Place
    moment: Moment

    def __str__(self) -> str:
        names = (self.event.name, self.waiter.name, self.question.name, self.place.name, str(self.moment))
        return " | ".join(names)


def _sweep(first: int, last: int) -> list[float]:
    return [step * _STEP for step in range(first, last + 1)]


def moments(event: Event, waiter: Waiter) -> Iterator[Moment]:
    """Yield the moments of a pair."""
    if event.wanted != NO_QUEUE or not event.of_group:
        yield from (Moment(START, offset) for offset in _sweep(-_STEPS, -1 if event.races else _STEPS))
    if not event.races:
        yield Moment(AFTER)
    if event.due:
        yield Moment(BEFORE)
        yield from (Moment(DUE, offset) for offset in _sweep(-_STEPS, _STEPS))
        # A dead letter comes a call later than its job's last delivery ends.
        is_exact = event not in DEAD_LETTERS
        if waiter.has_timeout and event.wanted == MESSAGE and waiter.unit <= event.due and is_exact:
            yield from (Moment(END, offset) for offset in _sweep(0, 2 * _STEPS))


_RESERVES = ("RESERVE", "reserve", "get/open", "READ")


def misfit(event: Event, waiter: Waiter) -> str:
    """Return why the two cannot be combined, or "" if they can."""
    is_log = "TYPE LOG" in event.create
    if waiter.puts and "PRIORITY" in waiter.wait and event.by == BACKEND:
        return "the put makes jobs of the messages, which such a client does not see"
    if "OVERFLOW OVERWRITE" in event.act and (waiter.has_timeout or waiter.by == NATIVE):
        return "the put says itself that it waits"
    if waiter.puts:
        return "a log has no priorities" if is_log and "PRIORITY" in waiter.wait else ""
    if waiter.name == "READ" and not event.of_group:
        return "only groups are read"
    if is_log and not event.of_group and waiter.name.startswith(_RESERVES):
        return "messages of a log cannot be reserved"
    if event.by == BACKEND and event.wanted == CLOSED and event.of_group and waiter.by == NATIVE:
        return "to native clients the queue of a group is a list of its own, which nobody has closed"
    if event.creates and waiter.existing:
        return "the command does not wait for a queue to exist"
    if waiter.by == BEANSTALK and event.wanted not in (MESSAGE, DONE):
        return "beanstalk has no such error"
    if event.name == "DEL, then put" and waiter.by != BEANSTALK:
        return "the wait ends when the queue is deleted"
    if "peek" in waiter.wait and event.wanted != MESSAGE:
        return "a peek waits until its time is up"
    if "peek" in waiter.wait and "pause" in event.name.lower():
        return "a peek also shows the jobs of a paused queue"
    if waiter.by == MEMCACHED and event.wanted == NO_QUEUE:
        return "memcached waits for queues that do not exist"
    return ""


def questions(event: Event, waiter: Waiter, moment: Moment) -> list[Question]:
    """Return the questions that may be asked meanwhile and change nothing."""
    is_unaffected = event.wanted == MESSAGE and not waiter.puts
    may_take = is_unaffected and (moment.is_calm or (event.due > 0 and moment.kind == START))
    is_log = "TYPE LOG" in event.create and not event.of_group
    has_others = is_unaffected and not (event.creates or event.alone or is_log)
    return [q for q in QUESTIONS if (may_take or not q.takes) and (has_others or not q.of_other)]


def pairs(wanted: Sequence[str] = ()) -> list[tuple[Event, Waiter]]:
    """Return the events and waiters that can be combined, and whose names are `wanted`."""
    both = chain(product(CONSUMER_EVENTS, CONSUMERS), product(ROOM_EVENTS, PRODUCERS))
    return [pair for pair in both if _fit(wanted, pair[0].name, pair[1].name) and not misfit(*pair)]


def cells_of(event: Event, waiter: Waiter, wanted: Sequence[str] = ()) -> Iterator[Cell]:
    """Yield the cells of a pair, each moment with and without a question; names may be `wanted`.

    The questions take turns, but at moments long before the event all of them are asked.
    """
    is_native = {event.by, waiter.by} & {NATIVE, BACKEND}
    for turn, (place, moment) in enumerate(product(PLACES, moments(event, waiter)), len(event.name)):
        if is_native and place.waiter != place.event:
            continue
        if not _fit(wanted[1:], place.name, str(moment)):
            continue
        some = questions(event, waiter, moment)
        if moment.kind not in (AFTER, BEFORE) and not wanted:
            some = [some[turn % len(some)]]
        for question in (NONE, *some):
            if _fit(wanted, question.name):
                yield Cell(event, waiter, question, place, moment)


def all_cells(name: str = "") -> list[Cell]:
    """Return all cells, or those whose name begins with the parts of `name`; `*` or no part means any."""
    wanted = [part.strip() for part in name.split("|")] if name else []
    return [cell for pair in pairs(wanted) for cell in cells_of(*pair, wanted[2:])]


def sample(count: int, chance: random.Random) -> list[Cell]:
    """Return `count` cells. Each pair has an equal chance."""
    some = pairs()
    return [chance.choice(list(cells_of(*chance.choice(some)))) for _ in range(count)]


def _fit(parts: Sequence[str], *names: str) -> bool:
    return all(part in ("", "*", name) for part, name in zip(parts, names, strict=False))


def one_of_each(cells: Iterable[Cell], chance: random.Random) -> list[Cell]:
    """Return a cell for each event, waiter, place and kind of moment."""
    found: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        names = (cell.event.name, cell.waiter.name, cell.place.name, cell.moment.kind)
        found.setdefault(names, []).append(cell)
    return [chance.choice(some) for some in found.values()]


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells with questions about all queues last: these disturb the waits of other cells."""
    return sorted(cells, key=lambda cell: cell.question.of_all)
