"""A run: the stand, its clients and its faults from the beginning until all queues have been drained."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import plan
from tests.chaos.caller import Caller
from tests.chaos.causes import Incident
from tests.chaos.consumers import BesideClosed, Exchanger, Reliable, Taker
from tests.chaos.faults import Faults
from tests.chaos.hang_ups import PATHS, HangUps, Leaver
from tests.chaos.journal import Journal
from tests.chaos.kestrel import Kestrel
from tests.chaos.ledger import NamedLedger
from tests.chaos.memcached import MemcachedCaller
from tests.chaos.memcached_clients import Getter, Setter
from tests.chaos.plan import Fault, Timeouts
from tests.chaos.producers import Pace, Producer, Sender
from tests.chaos.stand import Proxy, Stand

# Each with its bound; 0 is none.
QUEUES = {"wide": 0, "wider": 0, "narrow": 20, "tight": 300}
# The queues of clients that hang up in a stall, and one that is closed and empty.
_ABANDONED = [path.queue for path in PATHS]
_CLOSED = "closed"
_PRODUCERS = 6
_TAKERS = 8
_EXCHANGERS = 2
_RELIABLE = 4
_SETTERS = 3
_GETTERS = 2
_KESTRELS = 4
_BESIDE_CLOSED = 2
_LEAVERS = 4
# Seconds between looks at how far we are, and until a queue that is not drained is given up.
_LOOK = 0.2
_DRAIN_TIMEOUT = 60.0
_REPORT = 10.0

Say = Callable[[str], None]
_Task = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Settings:
    """What is asked for: so many messages, and these faults."""

    messages: int
    faults: Sequence[Fault]
    proxies: int
    timeouts: Timeouts
    folder: Path
    seed: int


@dataclass
class Outcome:
    """What came of it. Times are of `time.monotonic`; `seconds` is without the drain."""

    settings: Settings
    ledger: NamedLedger = field(default_factory=NamedLedger)
    journal: Journal = field(default_factory=Journal)
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    incidents: list[Incident] = field(default_factory=list)
    # Files with all that the backend has written.
    written: list[Path] = field(default_factory=list)
    # What is still in queues, and never came out.
    left: dict[str, int] = field(default_factory=dict)


async def run(settings: Settings, say: Say) -> Outcome:
    """Do it all; `say` is told now and then how far it is."""
    outcome = Outcome(settings)
    stand = Stand(settings.folder, settings.proxies, settings.timeouts, outcome.journal)
    try:
        await stand.start()
        outcome.began = time.monotonic()
        await _Work(stand, outcome, say).through()
        await stand.end()
    finally:
        await stand.close()
    outcome.written = stand.written
    for complaint in stand.complaints_in_logs():
        outcome.journal.complain(complaint)
    return outcome


class _Work:
    """Clients and faults of one run."""

    def __init__(self, stand: Stand, outcome: Outcome, say: Say) -> None:
        self._stand = stand
        self._outcome = outcome
        self._settings = outcome.settings
        self._ledger, self._journal = outcome.ledger, outcome.journal
        self._say = say
        self._made = 0
        self._hang_ups = self._new_hang_ups()
        self._faults = Faults(stand, self._hang_ups)
        self._outcome.incidents = self._faults.done
        self._pace: Pace

    async def through(self) -> None:
        """From the first queue to the last message."""
        await self._create()
        self._pace = Pace(self._ledger, self._settings.messages, plan.seconds(self._settings.faults))
        consumers = [asyncio.create_task(work()) for work in self._consumers()]
        producers = [asyncio.create_task(work()) for work in self._producers()]
        reporting = asyncio.create_task(self._report())
        breaking = asyncio.create_task(self._faults.all(self._settings.faults))
        tasks = [*consumers, *producers, reporting, breaking]
        try:
            while not breaking.done() or self._ledger.acknowledged < self._settings.messages:
                await self._look(tasks)
            self._pace.is_over = True
            while not all(task.done() for task in producers):
                await self._look(tasks)
            self._outcome.seconds = time.monotonic() - self._outcome.began
            await self._drain(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait a little. Raises whatever one of us has raised."""
        await asyncio.sleep(_LOOK)
        for task in tasks:
            if task.done():
                task.result()

    async def _create(self) -> None:
        caller = self._caller("creator", relayed=False)
        for queue, bound in QUEUES.items():
            await caller.ask(("PRESSURE.CREATE", queue, "BOUND", bound, "OVERFLOW", "BLOCK"))
        for queue in _ABANDONED:
            await caller.ask(("PRESSURE.CREATE", queue))
        await caller.ask(("PRESSURE.CREATE", _CLOSED), ("PRESSURE.CLOSE", _CLOSED))
        caller.close()

    def _new_hang_ups(self) -> HangUps:
        producer = self._caller("stall-producer", relayed=False)
        sender = self._sender(producer)
        collector = self._caller("stall-collector", relayed=False)
        return HangUps(self._stand.proxies, self._ledger, self._journal, producer, sender, collector)

    def _caller(self, name: str, *, relayed: bool) -> Caller:
        """The next client."""
        return Caller(*self._next(name), self._journal, relayed=relayed)

    def _memcached(self, name: str, *, relayed: bool) -> MemcachedCaller:
        """The next client, for memcached."""
        return MemcachedCaller(*self._next(name), self._journal, relayed=relayed)

    def _next(self, name: str) -> tuple[str, Proxy]:
        """The next client's name, and its proxy; they go over the proxies in turn."""
        self._made += 1
        return f"{name}-{self._made}", self._stand.proxies[self._made % len(self._stand.proxies)]

    def _sender(self, caller: Caller) -> Sender:
        return Sender(self._made, caller, self._ledger, self._journal)

    def _chance(self) -> random.Random:
        return random.Random(self._settings.seed * 1000 + self._made)

    def _producers(self) -> list[_Task]:
        found: list[_Task] = []
        for n in range(_PRODUCERS):
            caller = self._caller("producer", relayed=n >= _PRODUCERS // 3)
            producer = Producer(caller, self._sender(caller), list(QUEUES), self._pace, self._chance())
            found.append(producer.work)
        for n in range(_SETTERS):
            setter_caller = self._memcached("setter", relayed=n >= _SETTERS // 3)
            sender = self._sender(setter_caller)
            found.append(Setter(setter_caller, sender, list(QUEUES), self._pace, self._chance()).work)
        return found

    def _consumers(self) -> list[_Task]:
        found: list[_Task] = []
        queues = list(QUEUES)
        for _ in range(_TAKERS):
            taker = Taker(self._caller("taker", relayed=False), self._ledger, queues, self._chance())
            found.append(taker.work)
        for _ in range(_EXCHANGERS):
            caller = self._caller("exchanger", relayed=False)
            sender = self._sender(caller)
            exchanger = Exchanger(caller, self._ledger, sender, queues, self._pace, self._chance())
            found.append(exchanger.work)
        for _ in range(_RELIABLE):
            reliable = Reliable(self._caller("reliable", relayed=True), self._ledger, queues, self._chance())
            found.append(reliable.work)
        for _ in range(_GETTERS):
            getter = Getter(self._memcached("getter", relayed=False), self._ledger, queues, self._chance())
            found.append(getter.work)
        for _ in range(_KESTRELS):
            kestrel = Kestrel(self._memcached("kestrel", relayed=False), self._ledger, queues, self._chance())
            found.append(kestrel.work)
        for _ in range(_BESIDE_CLOSED):
            caller = self._caller("beside-closed", relayed=False)
            found.append(BesideClosed(caller, self._ledger, _CLOSED, queues, self._chance()).work)
        for _ in range(_LEAVERS):
            leaver = Leaver(*self._next("leaver"), self._ledger, self._journal, queues, self._chance())
            found.append(leaver.work)
        found.append(self._hang_ups.collect)
        return found

    async def _drain(self, tasks: list[asyncio.Task[None]]) -> None:
        """Until nothing has come for longer than a proxy may take to find out that another has died."""
        self._say("all is mended, nobody puts; draining")
        quiet = 2 * self._settings.timeouts.proxy + 1
        end = time.monotonic() + _DRAIN_TIMEOUT + quiet
        began = time.monotonic()
        while time.monotonic() - max(began, self._ledger.last_receipt) < quiet or self._outcome.left:
            await self._look(tasks)
            self._outcome.left = await asyncio.to_thread(self._lengths)
            if time.monotonic() > end:
                return
        await self._audit()

    def _lengths(self) -> dict[str, int]:
        """Those of queues that are not empty, as the backend has them."""
        prefix = "__pressure__:"
        with self._stand.backend.client(decode_responses=True) as control:
            bases = [key.removesuffix(":bound") for key in control.keys(f"{prefix}*:bound")]
            lengths = {base.removeprefix(prefix): control.llen(base) for base in bases}
        return {queue: length for queue, length in lengths.items() if length}

    async def _audit(self) -> None:
        """Of an empty queue, as many messages have been consumed as produced."""
        caller = self._caller("auditor", relayed=False)
        for queue in (*QUEUES, *_ABANDONED):
            (reply,) = await caller.ask(("PRESSURE.INFO", queue))
            about: dict[bytes, Any] = dict(zip(reply[::2], reply[1::2], strict=True))
            produced, consumed = about[b"produced_messages"], about[b"consumed_messages"]
            if produced != consumed:
                self._journal.complain(
                    f"{queue} is empty; its statistics say produced {produced}, consumed {consumed}"
                )
        caller.close()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT)
            self._say(
                f"{self._ledger.acknowledged} acknowledged, {self._ledger.received} received, "
                f"{len(self._faults.done)} of {len(self._settings.faults)} faults"
            )
