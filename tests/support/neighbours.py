"""Native clients and clients of a server on one queue, while native ones are stopped and killed.

A `Neighbourhood` has them all. Native ones have a seat each: when one dies, the next takes its seat and goes
on with the message of which Redis never got to know.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.support.ledger import Event, Ledger
from tests.support.native_process import VERSIONS, NativeProcess
from tests.support.native_relay import Command, NativeRelay
from tests.support.programs import Server, Valkey
from tests.support.waiters import AsyncWaiter, is_refused, packed

QUEUE = "q"
_BASE = f"__pressure__:{QUEUE}".encode()
# Seconds: how long a client does nothing that the doctor calls dead, and how long one is stopped at most.
DEAD_AFTER = 1.0
_LONGEST_STOP = 0.3
_STUCK_AFTER = 60.0
# A put by a native client and a get are about so many commands; each passes the relay twice.
_PASSAGES_PER_MESSAGE = 20
_FATES = ("kill", "stop", "stop", "stop and kill", "stop", "kill")
_PUTS: list[tuple[str, ...]] = [("SADD", QUEUE), ("LPUSH", QUEUE), ("PRESSURE.PUT", QUEUE)]
_GETS: list[tuple[str, ...]] = [
    ("SPOP", QUEUE),
    ("BLPOP", QUEUE, "1"),
    ("BRPOP", "another", QUEUE, "1"),
    ("PRESSURE.GET", QUEUE, "TIMEOUT", "1"),
]


@dataclass
class Plan:
    """The numbers of clients of each kind; `messages` go through a queue of that `bound`, 0 for none.

    `fates` is about how often a native client is stopped, or killed, or both. With
    `auto_repair` the server mends what they leave, else the doctor is called again and again.
    """

    native_producers: int
    our_producers: int
    native_consumers: int
    our_consumers: int
    messages: int
    fates: int
    bound: int
    auto_repair: bool = False

    @property
    def producers(self) -> int:
        return self.native_producers + self.our_producers

    @property
    def native_passages(self) -> int:
        """The approximate number of commands and replies that pass a relay."""
        consumers = self.native_consumers + self.our_consumers
        share = self.native_producers / self.producers + self.native_consumers / consumers
        return int(self.messages * share * _PASSAGES_PER_MESSAGE)


@dataclass
class Outcome:
    """What came of a plan. The ledger knows each producer and each consumer by its name."""

    seconds: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    by_native: int = 0
    stopped: int = 0
    # The command during which, or after which, each died.
    deaths: Counter[str] = field(default_factory=Counter)
    # Taken by clients that died before they gave the role back: gone with them, as the protocol has it.
    gone_with_the_dead: int = 0
    in_use: int = 0
    mended: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        total = self.ledger.received
        places = ", ".join(f"{place} {count}" for place, count in self.deaths.most_common())
        mends = ", ".join(f"{mend} {count}" for mend, count in self.mended.most_common())
        return (
            f"{total} messages in {self.seconds:.1f} s ({total / self.seconds:.0f} a second), "
            f"{self.by_native} of them taken by native clients\n"
            f"  stopped {self.stopped} times, killed {self.deaths.total()} times, at: {places}\n"
            f"  {self.gone_with_the_dead} messages gone with clients that had taken them; "
            f"{self.in_use} replies -INUSE\n"
            f"  mended: {mends or 'nothing'}"
        )


class Seat:
    """A place for one native client after the other; `work` returns the arguments of the next one."""

    def __init__(
        self, here: Neighbourhood, name: str, version: str, work: Callable[[Seat], list[str]]
    ) -> None:
        self.put = 0
        self._here = here
        self._name = name
        self._event = Event(name)
        self._version = version
        self._work = work
        self._fated = False
        self._holds_a_message = False
        self._last = ""
        self._process: NativeProcess | None = None

    async def keep(self) -> None:
        """Start one client after the other, until one comes to the end of its work."""
        here, status, number = self._here, -signal.SIGKILL, 0
        while status == -signal.SIGKILL:
            number += 1
            identity = f"{self._name}.{number}"
            self._event = Event(identity)
            relay = NativeRelay(here.folder / identity, here.backend.socket, self._asked, self._answered)
            self._relay, self._holds_a_message, self._fated = relay, False, False
            process = NativeProcess(relay.path, QUEUE, identity, *self._work(self), version=self._version)
            self._process = process
            await relay.ended.wait()
            await relay.close()
            await asyncio.to_thread(process.outcome)
            status = process.status or 0
            if status == -signal.SIGKILL:
                here.outcome.deaths[self._last] += 1
                here.outcome.gone_with_the_dead += self._holds_a_message
        assert status == 0, f"{identity} ended with {status}"

    def leave(self) -> None:
        """Kill the client of this seat."""
        if self._process is not None:
            self._process.kill()
            self._process.outcome()

    def _asked(self, command: Command) -> None:
        if not self._last:
            self._here.is_seated()
        self._last = _in_words(command)
        self._pass()

    def _answered(self, command: Command, reply: Any) -> None:
        self._pass()
        if command[:2] == [b"LPUSH", _BASE] and isinstance(reply, int):
            self.put += 1
        elif command[0] == b"BRPOP" and reply is not None and reply[0] == _BASE:
            self._here.outcome.ledger.receive([reply[1]], self._event)
            self._here.outcome.by_native += 1
            self._holds_a_message = True
        elif command[:2] == [b"LPUSH", _BASE + b":consumer_free"]:
            self._holds_a_message = False

    def _pass(self) -> None:
        fate = None if self._fated else self._here.next_fate()
        self._here.progress()
        if fate is not None:
            self._fated = True
            # At this very moment, or while it is at what comes next.
            if random.random() < 0.5:
                self._meet(fate)
            else:
                self._here.loop.call_later(random.uniform(0, 0.002), self._meet, fate)

    def _meet(self, fate: str) -> None:
        process = self._process
        if process is None:
            return
        self._relay.tells_of_the_end = random.random() < 0.7
        if fate == "kill":
            process.kill()
            return
        self._here.outcome.stopped += 1
        process.stop()
        end = process.kill if fate == "stop and kill" else self._resume
        self._here.loop.call_later(random.uniform(0.01, _LONGEST_STOP), end)

    def _resume(self) -> None:
        if self._process is not None:
            self._process.resume()
        self._fated = False


class Neighbourhood:
    """All clients of a plan, from the creation of the queue until it is closed and empty."""

    def __init__(self, plan: Plan, backend: Valkey, server: Server, folder: Path) -> None:
        self.plan = plan
        self.backend = backend
        self.server = server
        self.folder = folder
        self.outcome = Outcome()
        self._between_fates = plan.native_passages / plan.fates if plan.fates else math.inf
        self._passages_to_fate = self._between_fates * random.random()
        self._fates = cycle(_FATES)
        self._last_progress = 0.0
        self._seats: list[Seat] = []
        self._taken_seats = 0
        self._all_are_seated = asyncio.Event()

    def is_seated(self) -> None:
        """Note that another native client has begun; clients of the server wait until all have."""
        self._taken_seats += 1
        if self._taken_seats == self.plan.native_producers + self.plan.native_consumers:
            self._all_are_seated.set()

    def next_fate(self) -> str | None:
        """Return what is done to the client whose command or reply passes, None most of the time."""
        self._passages_to_fate -= 1
        if self._passages_to_fate > 0:
            return None
        self._passages_to_fate += self._between_fates * random.uniform(0.5, 1.5)
        return next(self._fates)

    def progress(self) -> None:
        """Note that the clients are not stuck."""
        self._last_progress = self.loop.time()

    async def live(self) -> Outcome:
        """Let all clients work to their end. Raises an ExceptionGroup if one fails, or all are stuck."""
        self.loop = asyncio.get_running_loop()
        start = self.loop.time()
        self.progress()
        try:
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(self._watch()), group.create_task(self._repair())]
                await self._work()
                for other in others:
                    other.cancel()
        finally:
            for seat in self._seats:
                seat.leave()
        outcome = self.outcome
        outcome.seconds = self.loop.time() - start
        for done in re.findall(r"Auto-repair (.*)", self.server.log):
            outcome.mended.update(_mends(done))
        return outcome

    async def _work(self) -> None:
        admin = await AsyncWaiter.connect(self.server.port)
        assert await admin("PRESSURE.CREATE", QUEUE, "BOUND", self.plan.bound) == b"OK"
        async with asyncio.TaskGroup() as consumers:
            for consumer in self._consumers():
                consumers.create_task(consumer)
            async with asyncio.TaskGroup() as producers:
                for producer in self._producers():
                    producers.create_task(producer)
            # Where a dead client has the producer role it is in use for a while.
            while is_in_use(reply := await self._ask(admin, "PRESSURE.CLOSE", QUEUE)):
                self.outcome.in_use += 1
            assert reply == b"OK", reply
        admin.close()

    def _producers(self) -> list[Coroutine[Any, Any, None]]:
        plan = self.plan

        def rest(name: str, count: int) -> Callable[[Seat], list[str]]:
            return lambda seat: ["produce", name, str(seat.put), str(count)]

        working: list[Coroutine[Any, Any, None]] = []
        for number in range(plan.producers):
            name = f"p{number}"
            count = len(range(number, plan.messages, plan.producers))
            self.outcome.ledger.put([f"{name}-{each}".encode() for each in range(count)], Event(name))
            if number < plan.native_producers:
                working.append(self._seat(name, number, rest(name, count)))
            else:
                working.append(self._produce(name, count))
        return working

    def _consumers(self) -> list[Coroutine[Any, Any, None]]:
        natives = [
            self._seat(f"c{number}", number + 1, lambda _: ["consume"])
            for number in range(self.plan.native_consumers)
        ]
        ours = range(self.plan.native_consumers, self.plan.native_consumers + self.plan.our_consumers)
        return natives + [self._consume(Event(f"c{number}")) for number in ours]

    def _seat(self, name: str, number: int, work: Callable[[Seat], list[str]]) -> Coroutine[Any, Any, None]:
        self._seats.append(Seat(self, name, VERSIONS[number % len(VERSIONS)], work))
        return self._seats[-1].keep()

    async def _produce(self, name: str, count: int) -> None:
        waiter = await AsyncWaiter.connect(self.server.port)
        await self._all_are_seated.wait()
        for number in range(count):
            while is_in_use(reply := await self._ask(waiter, *random.choice(_PUTS), f"{name}-{number}")):
                self.outcome.in_use += 1
            assert isinstance(reply, int), reply
            assert reply > 0
        waiter.close()

    async def _consume(self, event: Event) -> None:
        waiter = await AsyncWaiter.connect(self.server.port)
        await self._all_are_seated.wait()
        while not is_refused(reply := await self._ask(waiter, *random.choice(_GETS)), "CLOSED"):
            if is_in_use(reply):
                self.outcome.in_use += 1
            elif reply is not None:
                assert not isinstance(reply, Exception), reply
                self.outcome.ledger.receive([reply if isinstance(reply, bytes) else reply[1]], event)
                self.progress()
        waiter.close()

    async def _ask(self, waiter: AsyncWaiter, *words: str) -> Any:
        """Return a reply, however long it takes: `_watch` notices if all clients are stuck."""
        await waiter.send(packed(*words))
        return await waiter.reply(timeout=None)

    async def _watch(self) -> None:
        """Raise AssertionError when all clients are stuck."""
        left = _STUCK_AFTER
        while left > 0:
            await asyncio.sleep(left)
            left = self._last_progress + _STUCK_AFTER - self.loop.time()
        raise AssertionError(f"nothing has happened for {_STUCK_AFTER} seconds")

    async def _repair(self) -> None:
        """Run the doctor again and again."""
        while not self.plan.auto_repair:
            _, said = await doctor(self.backend)
            for done in re.findall(r"  done: (.*)", said):
                self.outcome.mended.update(_mends(done))


async def doctor(backend: Valkey) -> tuple[int, str]:
    """Run `pressure-server doctor --repair`. Return its exit status and its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pressure_server", "doctor", "--repair",
        "--backend", backend.url, "--wait", str(DEAD_AFTER),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_STUCK_AFTER):
            said, _ = await process.communicate()
    except (asyncio.CancelledError, TimeoutError):
        with suppress(ProcessLookupError):  # it has just ended
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, said.decode()


def is_in_use(reply: Any) -> bool:
    return is_refused(reply, "INUSE")


def _in_words(command: Command) -> str:
    key = command[1].removeprefix(_BASE).decode() if len(command) > 1 else ""
    return f"{command[0].decode()} {key or 'the list'}"


def _mends(done: str) -> list[str]:
    """Return the repairs, without numbers."""
    return [re.sub(r"\d+ ", "", mend) for mend in done.split(", ")]
