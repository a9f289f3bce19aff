"""The doctor: looks at queues over some time, tells those that stay in trouble, and mends them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pressure_server.errors import BackendError
from pressure_server.queues.database import Database
from pressure_server.queues.names import BOUND, PROTOCOL_SUFFIXES, existence_pattern, is_queue_name
from pressure_server.queues.operations import verbs
from pressure_server.queues.repair.diagnosis import Finding, diagnose, suspicions
from pressure_server.queues.repair.problem import LONE_LIST, Fix, Problem
from pressure_server.queues.repair.snapshot import Snapshot

# A client that takes a role and gives it back in a tight loop must not be met with it at every look.
LOOKS = 10
# A token and then the role, or half a deletion, take two; what happens meanwhile may take more.
_ROUNDS = 8
_AT_ONCE = 100
_SCAN_COUNT = b"1000"
_MOST_UNREADABLE = 100
# A loop's clock may wake us that much early.
_CLOCK = 0.001


@dataclass
class Case:
    """A queue in trouble, for as long as it is.

    `findings` are what the last two looks agree on, `since` when each was seen first, `seen` when the queue
    was looked at last; all by one clock, in seconds.
    """

    name: bytes
    snapshot: Snapshot
    seen: float
    findings: dict[Problem, Finding] = field(init=False)
    since: dict[Problem, float] = field(init=False)
    unchanged_since: float = field(init=False)

    def __post_init__(self) -> None:
        self.findings = {finding.trouble: finding for finding in suspicions(self.snapshot)}
        self.since = dict.fromkeys(self.findings, self.seen)
        self.unchanged_since = self.seen

    def look(self, snapshot: Snapshot, now: float) -> None:
        """The queue has been looked at again."""
        self.findings = {finding.trouble: finding for finding in diagnose(self.snapshot, snapshot)}
        self.since = {trouble: self.since.get(trouble, self.seen) for trouble in self.findings}
        if snapshot.view != self.snapshot.view:
            self.unchanged_since = now
        self.snapshot, self.seen = snapshot, now

    def lasting(self, seconds: float) -> list[Finding]:
        """What has been so for that long."""
        return [
            finding
            for trouble, finding in self.findings.items()
            if self.seen - self.since[trouble] >= seconds - _CLOCK
        ]

    def evidence(self, seconds: float) -> list[bytes]:
        """What `repair` in doctor.lua compares the queue with before it changes anything."""
        unchanged = self.seen - self.unchanged_since >= seconds - _CLOCK
        snapshot = self.snapshot
        return [snapshot.producer.view, snapshot.consumer.view, snapshot.view, b"1" if unchanged else b""]


class Doctor:
    """Examines the queues of one database.

    `wait` is for how many seconds a client does nothing that is dead. `named` is a queue that is known to be
    one. `unreadable` says of keys that begin like a queue's why they are none. Methods raise BackendError.
    """

    def __init__(self, database: Database, wait: float, named: bytes | None = None) -> None:
        self.wait = wait
        self.named = named
        self.unreadable: dict[bytes, str] = {}
        self._database = database
        self._loop = asyncio.get_running_loop()

    async def queues(self) -> AsyncIterator[list[bytes]]:
        """The names of all queues, and of what has keys without being one, some at a time.

        A queue comes once, but for what SCAN returns twice; what is none maybe once for each of its keys.
        """
        prefix, cursor = self._database.prefix + b":", b""
        pattern = existence_pattern(self._database.prefix).removesuffix(BOUND)
        while cursor != b"0":
            cursor, keys = await self._database.command(
                b"SCAN", cursor or b"0", b"MATCH", pattern, b"COUNT", _SCAN_COUNT
            )
            names = {name for key in keys if is_queue_name(name := _owner(key[len(prefix) :]))}
            queues = {key[len(prefix) : -len(BOUND)] for key in keys if key.endswith(BOUND)} & names
            yield [*queues, *await self._without_bound(names - queues)]

    async def _without_bound(self, names: Iterable[bytes]) -> list[bytes]:
        """Those that are no queues. The others come with their :bound."""
        names = list(names)
        if not names:
            return []
        keys = [self._database.prefix + b":" + name + BOUND for name in names]
        bounds = await self._database.command(b"MGET", *keys)
        return [name for name, bound in zip(names, bounds, strict=True) if bound is None]

    async def look_for(self, names: Iterable[bytes], cases: dict[bytes, Case]) -> int:
        """Look at queues for the first time, and add a case for each that may be in trouble.

        Returns how many of them are queues.
        """
        now, queues = self._loop.time(), 0
        for name, snapshot in await self._examine(list(names)):
            queues += snapshot.bound is not None
            if name not in cases and suspicions(snapshot):
                cases[name] = Case(name, snapshot, now)
        return queues

    async def look_again(self, cases: dict[bytes, Case]) -> None:
        """Look at them once more, and remove those that are in trouble no longer."""
        now = self._loop.time()
        examined = dict(await self._examine(list(cases)))
        for name, case in list(cases.items()):
            if name in examined:
                case.look(examined[name], now)
            if name not in examined or not case.findings:
                del cases[name]

    async def confirm(self, cases: dict[bytes, Case]) -> None:
        """Look again until `wait` seconds have passed; leave those that were in trouble all the while."""
        begin = self._loop.time()
        # Not in step with a client that does something at regular intervals.
        for moment in (*sorted(random.random() for _ in range(LOOKS - 1)), 1.0):
            if not cases:
                return
            await asyncio.sleep(begin + moment * self.wait - self._loop.time())
            await self.look_again(cases)
        for name, case in list(cases.items()):
            if not case.lasting(self.wait):
                del cases[name]

    async def mend(self, case: Case) -> list[str]:
        """Fix the problems that have lasted. Return what was done, in words; nothing if it has changed."""
        words = [mend.value for finding in self.mendable(case) for mend in finding.trouble.mends]
        if not words:
            return []
        arguments = [*case.evidence(self.wait), *dict.fromkeys(words)]
        done: list[bytes] = (await self._database.run(verbs.REPAIR, case.name, arguments))[0]
        return [_in_words(word.decode()) for word in done]

    def mendable(self, case: Case) -> list[Finding]:
        """What has lasted, without what might be somebody else's."""
        return [
            finding
            for finding in case.lasting(self.wait)
            if finding.trouble is not LONE_LIST or case.name == self.named
        ]

    async def treat(
        self, cases: dict[bytes, Case], told: Callable[[Case, list[Finding], list[str]], None]
    ) -> None:
        """Fix, and look again, until nothing is wrong; what is not mended is left in `cases`.

        `told` hears of each queue, each time: what was wrong, and what was done.
        """
        hopeless: set[bytes] = set()
        for _ in range(_ROUNDS):
            patients = {
                name: case for name, case in cases.items() if name not in hopeless and self.mendable(case)
            }
            if not patients:
                return
            for name, case in patients.items():
                try:
                    done = await self.mend(case)
                except BackendError as error:
                    await self._ping()
                    hopeless.add(name)
                    done = [f"nothing, because {error}"]
                told(case, self.mendable(case), done)
            treated = patients.keys() - hopeless
            for name in treated:
                del cases[name]
            # Who has been woken goes on first.
            await asyncio.sleep(self.wait / LOOKS)
            again: dict[bytes, Case] = {}
            await self.look_for(treated, again)
            await self.confirm(again)
            cases.update(again)

    async def _ping(self) -> None:
        """See that an error was about one queue alone. Raises BackendError where the backend is away."""
        await self._database.command(b"PING")

    async def _examine(self, names: Sequence[bytes]) -> list[tuple[bytes, Snapshot]]:
        examined: list[tuple[bytes, Snapshot]] = []
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            for name, reply in zip(some, await self._database.run_each(verbs.EXAMINE, some), strict=True):
                if not isinstance(reply, BaseException):
                    examined.append((name, Snapshot.of(reply)))
                    continue
                await self._ping()
                if len(self.unreadable) < _MOST_UNREADABLE:
                    self.unreadable[name] = str(reply)
        return examined


def _owner(key: bytes) -> bytes:
    """The queue whose key it is, of what follows the prefix."""
    name, extension, _ = key.partition(b":ext:")
    if extension:
        return name
    suffix = next((suffix for suffix in PROTOCOL_SUFFIXES if key.endswith(suffix)), b"")
    return key.removesuffix(suffix)


def _in_words(done: str) -> str:
    """What doctor.lua says it has done: the name of a mend, or what with which statistic."""
    if done.startswith("zeroed "):
        return f"set {done.removeprefix('zeroed ')} to 0"
    statistic, _, difference = done.partition(" ")
    return f"added {difference} to {statistic}" if difference else Fix(done.encode()).past
