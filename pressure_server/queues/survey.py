"""The survey: the figures of all queues, gathered in the background for metrics and the console.

It reads a few queues at a time and pauses in between, so that it takes about a hundredth of the backend's and
of the server's time, however many queues there are. With 100 000 queues a round takes two minutes.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence
from itertools import islice
from operator import add, attrgetter, sub
from time import monotonic
from typing import NamedTuple

from pressure_server.errors import BackendError
from pressure_server.lua.scripts import script_named
from pressure_server.queues.broker import Broker
from pressure_server.queues.names import base_key, is_queue_name, portions
from pressure_server.queues.shard import Shard

logger = logging.getLogger(__name__)

# Queues in one call, and the seconds of pause for each queue: one takes 5 microseconds of the backend's time,
# and as many of the server's. The first round must not take long: metrics are incomplete until it has ended.
_AT_ONCE = 200
_PAUSE_PER_QUEUE = 1e-3
_FIRST_PAUSE_PER_QUEUE = 25e-6
# Seconds between the beginnings of two rounds, if these are shorter.
_ROUND = 1.0
# Lengths of the latest rounds that are kept for each queue whose length changes.
HISTORY = 60
# Marks of one queue (see Ages): more make ages more exact.
_MAX_MARKS = 8


class Figures(NamedTuple):
    """The figures of a queue, as survey.lua returns them; sizes in bytes, times in milliseconds.

    `type` is fifo, jobs, lifo, random, log or group. `made` is when a server created the queue, empty if a
    native client did. `length` counts the messages that are queued: the ready and delayed ones of a queue of
    jobs. `put` and `taken` are totals since the queue was created; `taken` decreases if messages go back.
    `next_age` is the age of the next ready job, 0 for queues that have none.
    """

    type: bytes
    made: bytes
    length: int
    bound: int
    max_bytes: int
    held_bytes: int  # of reserved and buried jobs, which do not count for max_bytes
    is_closed: int
    keeps: int  # ACK NEXT: what is popped stays reserved until the client's next pop
    put: int
    put_bytes: int
    taken: int
    taken_bytes: int
    ready: int
    delayed: int
    reserved: int
    buried: int
    paused: int
    next_age: int
    dropped: int
    timeouts: int
    deliveries: int
    dead_letters: int

    @property
    def bytes(self) -> int:
        """The bytes of the messages that have been put and not taken."""
        return max(0, self.put_bytes - self.taken_bytes)

    @property
    def is_full(self) -> bool:
        """Whether the queue has reached its bound or its limit of bytes."""
        return bool(
            (self.bound and self.length >= self.bound)
            or (self.max_bytes and self.bytes - self.held_bytes >= self.max_bytes)
        )

    @property
    def states(self) -> list[str]:
        """The states that the queue is in, other than the usual one."""
        states = {
            "closed": self.is_closed,
            "full": self.is_full,
            "paused": self.paused,
            "ack-next": self.keeps,
        }
        return [name for name, is_so in states.items() if is_so]


# The counts of Figures that only grow, except that messages go back.
COUNTS = ("put", "put_bytes", "taken", "taken_bytes", "dropped", "timeouts", "deliveries", "dead_letters")
_counts_of = attrgetter(*COUNTS)
_NOTHING = (0,) * len(COUNTS)


class Ages:
    """Tells since when the oldest message of a queue has been there at least: messages have no time.

    One that was put before a look, and has not been taken since, is as old as that look. So a few looks are
    kept as marks: the time, and how many messages had been put.
    """

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def look(self, now: float, put: int, taken: int) -> float:
        """Note a look. Return the age of the oldest message, too small by the time between marks at most."""
        marks = self._marks
        # The oldest message is the one after `taken`. All marks before it was put are obsolete, but for one.
        while marks and marks[0][1] <= taken:
            del marks[0]
        if put > taken and (not marks or marks[-1][1] < put):
            marks.append((now, put))
            if len(marks) > _MAX_MARKS:
                # Drop the mark whose neighbours are closest, relative to its age.
                gaps = [
                    (marks[i + 1][0] - marks[i - 1][0]) / (now - marks[i][0] + 1)
                    for i in range(1, len(marks) - 1)
                ]
                del marks[1 + gaps.index(min(gaps))]
        return now - marks[0][0] if marks else 0.0


class Surveyed:
    """A queue that the survey has seen: its figures, and what follows from earlier ones.

    `at` is when it was looked at last, by time.monotonic(). `put_rate` and `taken_rate` are messages a second
    between the latest two looks. `age` is how many seconds old its oldest message is; see Ages. `lengths`
    is what the latest looks have found, or None if it has not changed. `counts` has the highest of COUNTS.
    """

    __slots__ = (
        "_ages", "age", "at", "counts", "database", "figures", "lengths", "name", "put_rate", "taken_rate",
    )  # fmt: skip

    def __init__(self, database: int, name: bytes, figures: Figures, now: float) -> None:
        self.database = database
        self.name = name
        self.figures = figures
        self.at = now
        self.put_rate = self.taken_rate = 0.0
        self.lengths: deque[int] | None = None
        self.counts: tuple[int, ...] = _counts_of(figures)
        self._ages = Ages()
        self.age = self._age(now)

    def update(self, figures: Figures, now: float) -> bool:
        """Note new figures. Return False if the queue was deleted, and created again."""
        before, seconds = self.figures, max(now - self.at, 1e-3)
        is_same = figures.put >= before.put and figures.made == before.made
        counts = _counts_of(figures)
        self.counts = tuple(map(max, self.counts, counts)) if is_same else counts
        if not is_same:
            self._ages = Ages()
        self.put_rate = (figures.put - before.put) / seconds if is_same else 0.0
        self.taken_rate = max(0, figures.taken - before.taken) / seconds if is_same else 0.0
        if self.lengths is None and figures.length != before.length:
            self.lengths = deque([before.length], HISTORY)
        if self.lengths is not None:
            self.lengths.append(figures.length)
            if len(self.lengths) == HISTORY and len(set(self.lengths)) == 1:
                self.lengths = None
        self.figures = figures
        self.at = now
        self.age = self._age(now)
        return is_same

    def _age(self, now: float) -> float:
        figures = self.figures
        age = self._ages.look(now, figures.put, figures.put - figures.length)
        return max(age, figures.next_age / 1000) if figures.length else 0.0


class Totals(NamedTuple):
    """Sums over all queues, and the number of queues by type; `oldest` is the highest age in seconds."""

    types: Counter[str]
    closed: int
    full: int
    length: int
    bytes: int
    ready: int
    delayed: int
    reserved: int
    buried: int
    oldest: float


class Survey:
    """The survey of all databases in use. `queues` has the queues by database number and name.

    `counts` are the sums of COUNTS over all queues, also deleted ones, since the first round. `rounds` is
    the number of complete rounds, and `seconds` the duration of the last one. `looked` is when a shard was
    looked at last, by time.monotonic().
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.queues: dict[tuple[int, bytes], Surveyed] = {}
        self.totals = Totals._make((Counter(), *([0] * 8), 0.0))
        self.counts = Counter[str]()
        self.rounds = 0
        self.seconds = 0.0
        self.looked = monotonic()

    async def look_at(self, queues: Iterable[tuple[int, bytes]]) -> None:
        """Look at these queues, unless that was done in the last second. Raise BackendError at the end."""
        now = monotonic()
        wanted: dict[int, list[bytes]] = {}
        failed: BackendError | None = None
        for key in queues:
            known = self.queues.get(key)
            if (known is None or now - known.at > _ROUND / 2) and is_queue_name(key[1]):
                wanted.setdefault(key[0], []).append(key[1])
        for database in self._broker.databases:
            for shard, names in database.by_shard(wanted.get(database.database_number, [])):
                try:
                    for some in portions(names if shard.is_up else [], _AT_ONCE):
                        await self._look(shard, some)
                except BackendError as error:
                    failed = error
        if failed is not None:
            raise failed

    async def run_once(self) -> None:
        """Look at all queues now, without pauses. Raise BackendError."""
        await self._round(monotonic(), 0)

    async def run(self) -> None:
        """Survey all queues again and again, until cancelled."""
        while True:
            began = monotonic()
            try:
                await self._round(began, _PAUSE_PER_QUEUE if self.rounds else _FIRST_PAUSE_PER_QUEUE)
            except BackendError as error:
                logger.debug("the survey of queues is not complete: %s", error)
            self.seconds = monotonic() - began
            await asyncio.sleep(max(_ROUND - self.seconds, _ROUND / 10))

    async def _round(self, began: float, pause: float) -> None:
        """Look at all queues, and pause for these seconds after each. Raise BackendError at the end."""
        away: dict[Shard, BackendError] = {}
        for shard in self._broker.shards:
            if shard.is_away:  # the figures of others must not wait until it is back
                away[shard] = shard.link.away_error()
                continue
            try:
                await self._look_at_all(shard, pause)
            except BackendError as error:
                away[shard] = error
        if len(away) < len(self._broker.shards):
            await self._finish(began, away)
        if away:
            raise BackendError("; ".join(map(str, away.values())))

    async def _look_at_all(self, shard: Shard, pause: float) -> None:
        cursor, waiting = b"0", dict[bytes, None]()
        while True:
            cursor, names = await shard.keys.scan(cursor)
            self.looked = monotonic()
            waiting.update(dict.fromkeys(names))
            while waiting and (len(waiting) >= _AT_ONCE or cursor == b"0"):
                some = list(islice(waiting, _AT_ONCE))
                for name in some:
                    del waiting[name]
                await self._look(shard, some)
                await asyncio.sleep(pause * len(some))
            if cursor == b"0":
                return
            await asyncio.sleep(pause)

    async def _look(self, shard: Shard, names: Sequence[bytes]) -> None:
        keys = [base_key(shard.prefix, name) for name in names]
        found = await shard.keys.call_script(script_named("upkeep/survey"), keys, [], once=False)
        now, number = monotonic(), shard.database_number
        for name, values in zip(names, found, strict=True):
            known = self.queues.get((number, name))
            if values is None:
                self.queues.pop((number, name), None)
                continue
            figures = Figures._make(values)
            if known is None:
                known = self.queues[number, name] = Surveyed(number, name, figures, now)
                if self.rounds:
                    self._count(_NOTHING, known.counts)
            elif now > known.at:
                before = known.counts
                is_same = known.update(figures, now)
                self._count(before if is_same else _NOTHING, known.counts)

    def _count(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Count what has happened to a queue between two looks."""
        if before != after:
            for count, more in zip(COUNTS, map(sub, after, before), strict=True):
                self.counts[count] += more

    async def _finish(self, began: float, away: Container[Shard]) -> None:
        """Forget queues that the round has not found, and add up the others, a few at a time.

        Queues of shards that are away stay: they would be counted as new when their shard is back.
        """
        databases = {database.database_number: database for database in self._broker.databases}
        sums, types, oldest = [0] * 8, Counter[str](), 0.0
        # Not the items: the garbage collector would look at 100 000 new tuples, which takes 60 ms.
        keys = list(self.queues)
        for first in range(0, len(keys), 1000):
            for key in keys[first : first + 1000]:
                queue = self.queues.get(key)
                if queue is None:
                    continue
                if queue.at < began and databases[key[0]].shard_of(key[1]) not in away:
                    self.queues.pop(key, None)
                    continue
                types[queue.figures.type.decode()] += 1
                oldest = max(oldest, queue.age)
                sums = list(map(add, sums, _addends(queue.figures)))
            await asyncio.sleep(0)
        self.totals = Totals._make((types, *sums, oldest))
        self.rounds += 1


def _addends(one: Figures) -> tuple[int, ...]:
    return (
        one.is_closed, int(one.is_full), one.length, one.bytes,
        one.ready, one.delayed, one.reserved, one.buried,
    )  # fmt: skip
