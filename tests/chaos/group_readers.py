"""Clients that read logs: consumers of groups by `PRESSURE.READ`, and a client that reads by offset."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.caller import Caller
from tests.chaos.log_ledger import LogLedger
from tests.chaos.redis_workers import RedisWorker
from tests.chaos.workers import ANSWERED, WAIT, Held
from tests.support.waiters import Words

_TTRS = (0.5, 1, 2, 5)
# The only consumer of a group must keep up with the producers: it reads more at once, and for shorter times.
_TTRS_ALONE = (0.5, 1)
_TIMES_MORE = 5
# Seconds after which a consumer without a reply reads through another proxy.
_PATIENCE = 2.0
# The longest time between two reads by offset, in seconds, and the most messages of one.
_AT_INTERVAL = 0.2
_MOST_AT = 50
# For how many seconds a server may ask a master that has been replaced, and lacks the newest messages.
_STALE = 5.0


@dataclass
class GroupReader(RedisWorker):
    """A consumer of a group. It reads and acknowledges through any of its callers.

    It takes another consumer name after each command without a reply. A server that was stopped may do an
    event later, and a server that cannot deliver a reservation gives it up: that would end the next
    reservation of the same name.
    """

    log: LogLedger
    group: str
    callers: Sequence[Caller]
    is_alone: bool

    async def round(self) -> bool:
        self.caller = self.chance.choice(self.callers)
        return await super().round()

    async def _reserve(self, most: int) -> list[Held]:
        if self.is_alone:
            most *= _TIMES_MORE
        since, ttr = time.monotonic(), self.chance.choice(_TTRS_ALONE if self.is_alone else _TTRS)
        consumer = f"{self.caller.name}-{self._made}"
        words: Words = ("PRESSURE.READ", self.log.name, "GROUP", self.group, consumer)
        words += ("TIMEOUT", WAIT, "TTR", ttr)
        if most > 1:
            words += ("COUNT", most)
        try:
            async with asyncio.timeout(_PATIENCE):
                replies = await self.caller.ask(words, waits=WAIT)
        except TimeoutError:
            self.caller.close()
            replies = []
        if not replies or isinstance(replies[0], Exception):
            self._made += 1
            return []
        found: list[Any] = replies[0] or []
        return [job for one in found for job in self._read(one, since, ttr, consumer)]

    def _read(self, one: list[Any], since: float, ttr: float, consumer: str) -> list[Held]:
        job, data, number, offset = one
        held = self._hold(job, data, since, ttr, token=consumer)
        for its in held:
            read = f"{consumer} at {time.monotonic():.2f} s"
            self.log.deliver(self.group, its.name, offset, number, read, is_alone=self.is_alone)
        return held

    async def _work_on(self, jobs: Sequence[Held]) -> None:
        if self.chance.random() < 0.3:
            self.caller = self.chance.choice(self.callers)
        await super()._work_on(jobs)

    def _die(self, jobs: Sequence[Held]) -> None:
        super()._die(jobs)
        self._made += 1

    def _note(self, caller: Caller, event: str, job: Held, reply: Any) -> None:
        super()._note(caller, event, job, reply)
        if reply not in ANSWERED:
            self._made += 1


@dataclass
class OffsetReader:
    """Reads messages near the end of a log by their offsets. They stay there."""

    caller: Caller
    log: LogLedger
    chance: random.Random

    async def work(self) -> None:
        """Read until cancelled."""
        while True:
            await asyncio.sleep(self.chance.uniform(0, _AT_INTERVAL))
            offset = self.log.some_offset(self.chance)
            if offset is not None:
                await self._read(offset, self.chance.randint(1, _MOST_AT))

    async def _read(self, offset: int, count: int) -> None:
        until = time.monotonic() + _STALE
        while str(reply := await self._ask(offset, count)).startswith("AHEAD"):
            if time.monotonic() > until:
                self.log.miss(offset, self.caller.name)
                return
            await asyncio.sleep(_AT_INTERVAL)
        for place, data in enumerate(reply if isinstance(reply, list) else (), offset):
            if data is not None:
                self.log.find(data, place, self.caller.name)

    async def _ask(self, offset: int, count: int) -> Any:
        replies = await self.caller.ask(("PRESSURE.AT", self.log.name, offset, "COUNT", count))
        return replies[0] if replies else None
