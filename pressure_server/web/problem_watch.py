"""The problem watch: looks for problems of queues, as the doctor sees them, while consoles are open."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from time import monotonic

from pressure_server.errors import BackendError
from pressure_server.queues.broker import Broker
from pressure_server.queues.repair import Doctor
from pressure_server.queues.survey import Survey, Surveyed

# Seconds for which a native client must be inactive to count as dead.
PATIENCE = 5.0
# Seconds between two looks, and queues that are examined in each besides those in view: an examination costs
# twenty times as much as the survey. A queue in view is examined every _AGAIN seconds.
_PAUSE = 1.0
_AT_ONCE = 20
_AGAIN = 10.0
# Queues in view that are examined at once.
_MOST_IN_VIEW = 100
# Seconds after which a console no longer counts as looking at a queue, or at the overview.
_IN_VIEW = 5.0
# Queues with problems that are kept.
_MAX_CASES = 1000


class ProblemWatch:
    """The problems of the queues of all databases in use."""

    def __init__(self, broker: Broker, survey: Survey) -> None:
        self._broker = broker
        self._survey = survey
        self._doctors: dict[int, Doctor] = {}  # by the number of the database
        self._in_view: dict[tuple[int, bytes], float] = {}
        self._examined: dict[tuple[int, bytes], float] = {}
        self._unseen: list[tuple[int, bytes]] = []
        self._task: asyncio.Task[None] | None = None
        self._looked_at = 0.0

    def look_at(self, keys: Iterable[tuple[int, bytes]]) -> None:
        """Note that a console shows these queues: they are examined first."""
        self._looked_at = monotonic()
        self._in_view |= dict.fromkeys(keys, self._looked_at)
        if self._task is None or self._task.done():
            # Nobody has looked for some time: a queue may have been well meanwhile.
            self._doctors.clear()
            self._task = asyncio.create_task(self._work())

    async def stopped(self, _application: object) -> None:
        """Stop looking, as the listener closes."""
        if self._task is not None:
            self._task.cancel()

    def of(self, database: int, name: bytes) -> list[str]:
        """Return the problems of a queue that have lasted for some seconds, in words."""
        doctor = self._doctors.get(database)
        case = doctor.cases.get(name) if doctor is not None else None
        findings = case.lasting(PATIENCE) if case is not None else []
        return [f"{finding.means} ({finding.evidence})" for finding in findings]

    @property
    def count(self) -> int:
        """How many queues with problems are known."""
        cases = (case for doctor in self._doctors.values() for case in doctor.cases.values())
        return sum(bool(case.lasting(PATIENCE)) for case in cases)

    async def _work(self) -> None:
        while monotonic() - self._looked_at < _IN_VIEW:
            with suppress(BackendError):
                await self._look()
            await asyncio.sleep(_PAUSE)

    async def _look(self) -> None:
        now = monotonic()
        self._in_view = {key: seen for key, seen in self._in_view.items() if seen >= now - _IN_VIEW}
        self._examined = {key: at for key, at in self._examined.items() if at >= now - _AGAIN}
        if not self._unseen:
            self._unseen = list(self._survey.queues)
        due = (key for key in self._in_view if key not in self._examined)
        in_view = list(islice(due, _MOST_IN_VIEW))
        self._examined |= dict.fromkeys(in_view, now)
        others, self._unseen = self._unseen[:_AT_ONCE], self._unseen[_AT_ONCE:]
        for database in self._broker.databases:
            number = database.database_number
            doctor = self._doctors.setdefault(number, Doctor(database, PATIENCE))
            await doctor.look_again()
            if len(doctor.cases) < _MAX_CASES:
                await doctor.look_for({name for of, name in (*in_view, *others) if of == number})


def warnings_of(queue: Surveyed, waiting_producers: int) -> list[str]:
    """Return what the figures of a queue tell an operator to look at."""
    figures = queue.figures
    warnings = (
        (figures.is_full and waiting_producers > 0, f"operations that wait for room: {waiting_producers}"),
        (figures.is_closed and figures.length > 0, "it is closed, and still has messages"),
        (figures.buried > 0, f"buried jobs: {figures.buried}"),
        (figures.dead_letters > 0, f"jobs that have gone to the dead letters: {figures.dead_letters}"),
        (figures.dropped > 0, f"messages dropped: {figures.dropped}"),
    )
    return [text for is_so, text in warnings if is_so]
