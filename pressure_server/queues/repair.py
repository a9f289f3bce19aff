"""Repair: finds the problems that dead native clients have left in queues, and fixes those that last."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pressure_server.errors import BackendError, PressureError
from pressure_server.log_limits import WarnOnce
from pressure_server.queues.broker import Broker
from pressure_server.queues.database import Database
from pressure_server.queues.names import BOUND, PROTOCOL_SUFFIXES, is_queue_name, keys_pattern, portions
from pressure_server.queues.operations import verbs
from pressure_server.queues.shard import Shard
from pressure_server.text import printable

logger = logging.getLogger(__name__)

# Examinations in `wait` seconds: enough that a client in a tight loop is not seen with a role in all of them.
LOOKS = 10
# Rounds of fixes. A missing token and then its role, or a half-deleted queue, take two; changes by clients in
# between may take more.
_ROUNDS = 8
_AT_ONCE = 100
_SCAN_COUNT = 1000
_MAX_UNREADABLE = 100
# The problem that is repaired only if the operator names the queue: the list may belong to another program.
_LONE_LIST = "a list alone"
# Of auto-repair: the shortest pause in seconds, and queues with problems that are watched at the same time;
# further ones after some of these have been fixed.
_SHORTEST_PAUSE = 0.5
_MAX_CASES = 10_000


# Seconds by which the event loop may wake up a task too early.
_CLOCK = 0.001


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in the table of lua/upkeep/doctor.lua. `sign` changes if a live client acts."""

    name: str
    sign: bytes
    evidence: str
    means: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A queue at one moment. `bound` is None if the queue does not exist."""

    bound: int | None
    length: int
    findings: dict[str, Finding]

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Snapshot:
        """Make a snapshot from a reply of `examine` in doctor.lua."""
        bound, length, *problems = reply
        findings = (
            Finding(name.decode(), sign, printable(evidence, len(evidence)), means.decode(), remedy.decode())
            for name, sign, evidence, means, remedy in problems
        )
        return cls(bound, length, {finding.name: finding for finding in findings})


@dataclass
class Case:
    """A queue with problems, for as long as it has any.

    `since` has the problems on which the last two examinations agree, and when each was seen first.
    `examined_at` is the time of the last examination. Times are in seconds, by the event loop's clock.
    """

    name: bytes
    snapshot: Snapshot
    examined_at: float
    since: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.since = dict.fromkeys(self.snapshot.findings, self.examined_at)

    def update(self, snapshot: Snapshot, now: float) -> None:
        """Note a new examination of the queue."""
        before = self.snapshot.findings
        self.since = {
            name: self.since.get(name, self.examined_at)
            for name, finding in snapshot.findings.items()
            if name in before and before[name].sign == finding.sign
        }
        self.snapshot, self.examined_at = snapshot, now

    def lasting(self, seconds: float) -> list[Finding]:
        """Return the problems that have lasted for that time."""
        return [
            self.snapshot.findings[name]
            for name, since in self.since.items()
            if self.examined_at - since >= seconds - _CLOCK
        ]


class Doctor:
    """An examiner of the queues of one database.

    A client that has been inactive for `wait` seconds counts as dead. `named` is the queue that the operator
    has named. `cases` has the queues with problems, `unreadable` the errors of queues that it cannot read.
    Methods raise BackendError.
    """

    def __init__(self, database: Database, wait: float, named: bytes | None = None) -> None:
        self.wait = wait
        self.named = named
        self.cases: dict[bytes, Case] = {}
        self.unreadable: dict[bytes, str] = {}
        self.missing: list[BackendError] = []
        self._database = database
        self._loop = asyncio.get_running_loop()

    async def queues(self) -> AsyncIterator[list[bytes]]:
        """Yield the names of all queues, and of incomplete ones without :bound, some at a time, maybe twice.

        `missing` then has the reason for each shard that is away.
        """
        self.missing = []
        for shard in self._database.shards:
            try:
                async for names in self._queues_of(shard):
                    yield names
            except BackendError as error:
                if not shard.is_away:
                    raise
                self.missing.append(error)

    async def _queues_of(self, shard: Shard) -> AsyncIterator[list[bytes]]:
        prefix, cursor = shard.prefix + b":", b""
        pattern = keys_pattern(shard.prefix, b"")
        while cursor != b"0":
            cursor, keys = await shard.keys.scan_keys(cursor or b"0", pattern, _SCAN_COUNT)
            names = {name for key in keys if is_queue_name(name := _owner(key[len(prefix) :]))}
            queues = {key[len(prefix) : -len(BOUND)] for key in keys if key.endswith(BOUND)} & names
            yield [*queues, *await self._without_bound(shard, names - queues)]

    async def _without_bound(self, shard: Shard, names: Iterable[bytes]) -> list[bytes]:
        """Return those that have no :bound. SCAN returns the others by their :bound."""
        names = list(names)
        if not names:
            return []
        keys = [shard.prefix + b":" + name + BOUND for name in names]
        bounds = await shard.keys.command(b"MGET", *keys)
        return [name for name, bound in zip(names, bounds, strict=True) if bound is None]

    async def look_for(self, names: Iterable[bytes]) -> int:
        """Examine new queues, and add cases of those that may have a problem. Return how many exist."""
        now, queues = self._loop.time(), 0
        for name, snapshot in await self._examine(list(names)):
            queues += snapshot.bound is not None
            if name not in self.cases and snapshot.findings:
                self.cases[name] = Case(name, snapshot, now)
        return queues

    async def look_again(self) -> None:
        """Examine the cases once more, and remove those that have no problem any longer."""
        now = self._loop.time()
        examined = dict(await self._examine(list(self.cases)))
        for name, case in list(self.cases.items()):
            if name in examined:
                case.update(examined[name], now)
            if name not in examined or not case.since:
                del self.cases[name]

    async def confirm(self) -> None:
        """Examine the cases for `wait` seconds, and keep those that had a problem all that time."""
        begin = self._loop.time()
        # Random moments, so as not to be in step with a client that acts at regular intervals.
        for moment in (*sorted(random.random() for _ in range(LOOKS - 1)), 1.0):
            if not self.cases:
                return
            await asyncio.sleep(begin + moment * self.wait - self._loop.time())
            await self.look_again()
        self.cases = {name: case for name, case in self.cases.items() if case.lasting(self.wait)}

    async def fix(self, case: Case) -> list[str]:
        """Fix the problems that have lasted. Return what was done, in words; [] if the queue has changed."""
        arguments = [word for finding in self.fixable(case) for word in (finding.name.encode(), finding.sign)]
        if not arguments:
            return []
        done: list[bytes] = (await self._database.run(verbs.REPAIR, case.name, arguments))[0]
        return [words.decode() for words in done]

    def fixable(self, case: Case) -> list[Finding]:
        """Return the findings that have lasted, except for a list that may belong to another program."""
        is_named = case.name == self.named
        return [found for found in case.lasting(self.wait) if found.name != _LONE_LIST or is_named]

    async def repair(self, report: Callable[[Case, list[Finding], list[str]], None]) -> None:
        """Fix what can be fixed, and examine again. `report` gets a case, its findings, and what was done."""
        failed: set[bytes] = set()
        for _ in range(_ROUNDS):
            fixable = [case for case in self.cases.values() if self.fixable(case) and case.name not in failed]
            if not fixable:
                return
            for case in fixable:
                del self.cases[case.name]
                try:
                    done = await self.fix(case)
                except BackendError as error:
                    await self._ping(case.name)
                    failed.add(case.name)
                    done = [f"nothing, because {error}"]
                report(case, self.fixable(case), done)
            # Let the clients that have been woken up continue first.
            await asyncio.sleep(self.wait / LOOKS)
            await self.look_for([case.name for case in fixable])
            await self.confirm()

    async def _ping(self, name: bytes) -> None:
        """Check that an error concerned only this queue. Raises BackendError if its shard is unavailable."""
        await self._database.shard_of(name).keys.command(b"PING")

    async def _examine(self, names: Sequence[bytes]) -> list[tuple[bytes, Snapshot]]:
        examined: list[tuple[bytes, Snapshot]] = []
        for some in portions(names, _AT_ONCE):
            for name, reply in zip(some, await self._database.run_each(verbs.EXAMINE, some), strict=True):
                if not isinstance(reply, BaseException):
                    examined.append((name, Snapshot.of(reply)))
                    continue
                await self._ping(name)
                if len(self.unreadable) < _MAX_UNREADABLE:
                    self.unreadable[name] = str(reply)
        return examined


def _owner(key: bytes) -> bytes:
    """Return the name of the queue to which a key belongs; `key` is without the prefix."""
    name, extension, _ = key.partition(b":ext:")
    if extension:
        return name
    suffix = next((suffix for suffix in PROTOCOL_SUFFIXES if key.endswith(suffix)), b"")
    return key.removesuffix(suffix)


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
