"""Auto-repair: the running server fixes problems of queues that have lasted for some time."""

from __future__ import annotations

import asyncio
import logging
import random

from pressure_server.errors import BackendError, PressureError
from pressure_server.log_limits import WarnOnce
from pressure_server.queues.broker import Broker
from pressure_server.queues.database import Database
from pressure_server.queues.repair.doctor import Doctor
from pressure_server.text import printable

logger = logging.getLogger(__name__)

_SHORTEST_PAUSE = 0.5
# Queues with problems that are watched at the same time; further ones after some of these have been fixed.
_MAX_CASES = 10_000


class AutoRepair:
    """A background task that fixes problems of queues after `seconds`; 0 disables it.

    It examines all queues every `seconds` / 2, and those with problems every `seconds` / 10.
    """

    def __init__(self, broker: Broker, seconds: float) -> None:
        self._broker = broker
        self._seconds = seconds
        self._warnings = WarnOnce(logger, "could not be repaired")
        self._doctors: dict[Database, Doctor] = {}
        self._next_round = 0.0

    async def run(self) -> None:
        """Examine queues at regular intervals, until cancelled."""
        loop = asyncio.get_running_loop()
        pause = max(_SHORTEST_PAUSE, self._seconds / 10)
        while self._seconds:
            is_round = loop.time() >= self._next_round
            if is_round:
                self._next_round = loop.time() + max(_SHORTEST_PAUSE, self._seconds / 2)
            for database in self._broker.databases:
                doctor = self._doctors.setdefault(database, Doctor(database, self._seconds))
                try:
                    await self._visit(database, doctor, is_round)
                except PressureError as error:
                    # Queues may change while they cannot be examined.
                    doctor.cases.clear()
                    logger.debug(
                        "auto-repair cannot examine database %d: %s", database.database_number, error
                    )
                except Exception:
                    doctor.cases.clear()
                    logger.exception("auto-repair of database %d failed", database.database_number)
            # Random, so as not to be in step with a client that acts at regular intervals.
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))

    async def _visit(self, database: Database, doctor: Doctor, is_round: bool) -> None:
        await doctor.look_again()
        for name, case in list(doctor.cases.items()):
            findings = doctor.fixable(case)
            if not findings:
                continue
            del doctor.cases[name]
            try:
                done = await doctor.fix(case)
            except BackendError as error:
                # Raises BackendError if the backend is unavailable, instead of only this queue.
                await database.shard_of(name).keys.command(b"PING")
                self._warnings.warn(database.database_number, name, error)
                continue
            if done:
                logger.warning(
                    "queue '%s' had a problem for %.1f seconds: %s. Auto-repair %s",
                    printable(name),
                    case.examined_at - min(case.since[finding.name] for finding in findings),
                    "; ".join(finding.evidence for finding in findings),
                    ", ".join(done),
                    extra={"queue": printable(name)},
                )
        if is_round:
            async for names in doctor.queues():
                if len(doctor.cases) < _MAX_CASES:
                    await doctor.look_for(names)
