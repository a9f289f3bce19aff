"""A workload of native clients and of a server's clients on one queue, while native ones are killed.

If a native client is killed, its successor continues with the first message that has not reached Redis.
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
# Seconds of inactivity after which the doctor considers a client dead, and of the longest suspension.
DEAD_AFTER = 1.0
_LONGEST_SUSPENSION = 0.3
_STUCK_AFTER = 60.0
# A native client needs about ten commands for a put or a get; each command and each reply passes the relay.
_PASSAGES_PER_MESSAGE = 20
_FAULTS = ("kill", "suspend", "suspend", "suspend and kill", "suspend", "kill")
_PUTS: list[tuple[str, ...]] = [("SADD", QUEUE), ("LPUSH", QUEUE), ("PRESSURE.PUT", QUEUE)]
_GETS: list[tuple[str, ...]] = [
    ("SPOP", QUEUE),
    ("BLPOP", QUEUE, "1"),
    ("BRPOP", "another", QUEUE, "1"),
    ("PRESSURE.GET", QUEUE, "TIMEOUT", "1"),
]


@dataclass
class Plan:
    """The number of clients of each kind, of messages, and roughly of faults: suspensions and kills.

    `bound` is the queue's; 0 for none. With `auto_repair` the server repairs the queue, else the doctor runs
    again and again.
    """

    native_producers: int
    server_producers: int
    native_consumers: int
    server_consumers: int
    messages: int
    faults: int
    bound: int
    auto_repair: bool = False

    @property
    def producers(self) -> int:
        return self.native_producers + self.server_producers

    @property
    def consumers(self) -> int:
        return self.native_consumers + self.server_consumers

    @property
    def native_passages(self) -> int:
        """The approximate number of commands and replies that pass a relay."""
        share = self.native_producers / self.producers + self.native_consumers / self.consumers
        return int(self.messages * share * _PASSAGES_PER_MESSAGE)


@dataclass
class Outcome:
    """The outcome of a workload. The ledger names each producer and each consumer."""

    seconds: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    by_native: int = 0
    suspended: int = 0
    # The last command of each killed client.
    kills: Counter[str] = field(default_factory=Counter)
    # Messages of clients that were killed before they gave the consumer role back.
    lost_with_clients: int = 0
    in_use: int = 0
    repairs: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        total = self.ledger.received
        places = ", ".join(f"{place} {count}" for place, count in self.kills.most_common())
        repairs = ", ".join(f"{repair} {count}" for repair, count in self.repairs.most_common())
        return (
            f"{total} messages in {self.seconds:.1f} s ({total / self.seconds:.0f} a second), "
            f"{self.by_native} of them taken by native clients\n"
            f"  suspended {self.suspended} times, killed {self.kills.total()} times, at: {places}\n"
            f"  {self.lost_with_clients} messages lost with the clients that had taken them; "
            f"{self.in_use} replies -INUSE\n"
            f"  repairs: {repairs or 'none'}"
        )


class NativeWorker:
    """A native client and its successors; `work` returns the arguments of the next one."""

    def __init__(
        self, workload: Workload, name: str, version: str, work: Callable[[NativeWorker], list[str]]
    ) -> None:
        self.put = 0
        self._workload = workload
        self._name = name
        self._event = Event(name)
        self._version = version
        self._work = work
        self._has_fault = False
        self._holds_a_message = False
        self._last = ""
        self._process: NativeProcess | None = None

    async def run(self) -> None:
        """Start one client after another until one finishes its work."""
        workload, status, number = self._workload, -signal.SIGKILL, 0
        while status == -signal.SIGKILL:
            number += 1
            identity = f"{self._name}.{number}"
            self._event = Event(identity)
            relay = NativeRelay(
                workload.folder / identity, workload.backend.socket, self._asked, self._answered
            )
            self._relay, self._holds_a_message, self._has_fault = relay, False, False
            process = NativeProcess(relay.path, QUEUE, identity, *self._work(self), version=self._version)
            self._process = process
            await relay.ended.wait()
            await relay.close()
            await asyncio.to_thread(process.outcome)
            status = process.status or 0
            if status == -signal.SIGKILL:
                workload.outcome.kills[self._last] += 1
                workload.outcome.lost_with_clients += self._holds_a_message
        assert status == 0, f"{identity} ended with {status}"

    def end(self) -> None:
        """Kill the present client."""
        if self._process is not None:
            self._process.kill()
            self._process.outcome()

    def _asked(self, command: Command) -> None:
        if not self._last:
            self._workload.native_started()
        self._last = _in_words(command)
        self._pass()

    def _answered(self, command: Command, reply: Any) -> None:
        self._pass()
        if command[:2] == [b"LPUSH", _BASE] and isinstance(reply, int):
            self.put += 1
        elif command[0] == b"BRPOP" and reply is not None and reply[0] == _BASE:
            self._workload.outcome.ledger.receive([reply[1]], self._event)
            self._workload.outcome.by_native += 1
            self._holds_a_message = True
        elif command[:2] == [b"LPUSH", _BASE + b":consumer_free"]:
            self._holds_a_message = False

    def _pass(self) -> None:
        fault = None if self._has_fault else self._workload.next_fault()
        self._workload.progress()
        if fault is not None:
            self._has_fault = True
            # At once, or during one of the next commands.
            if random.random() < 0.5:
                self._inject(fault)
            else:
                self._workload.loop.call_later(random.uniform(0, 0.002), self._inject, fault)

    def _inject(self, fault: str) -> None:
        process = self._process
        if process is None:
            return
        self._relay.unblocks_at_end = random.random() < 0.7
        if fault == "kill":
            process.kill()
            return
        self._workload.outcome.suspended += 1
        process.suspend()
        end = process.kill if fault == "suspend and kill" else self._resume
        self._workload.loop.call_later(random.uniform(0.01, _LONGEST_SUSPENSION), end)

    def _resume(self) -> None:
        if self._process is not None:
            self._process.resume()
        self._has_fault = False


class Workload:
    """All clients of a plan, from the creation of the queue until it is closed and empty."""

    def __init__(self, plan: Plan, backend: Valkey, server: Server, folder: Path) -> None:
        self.plan = plan
        self.backend = backend
        self.server = server
        self.folder = folder
        self.outcome = Outcome()
        self._between_faults = plan.native_passages / plan.faults if plan.faults else math.inf
        self._passages_to_fault = self._between_faults * random.random()
        self._faults = cycle(_FAULTS)
        self._last_progress = 0.0
        self._natives: list[NativeWorker] = []
        self._started = 0
        self._all_started = asyncio.Event()

    def native_started(self) -> None:
        """Note that another native client has started. Clients of the server wait until all have."""
        self._started += 1
        if self._started == self.plan.native_producers + self.plan.native_consumers:
            self._all_started.set()

    def next_fault(self) -> str | None:
        """Return the fault for the client whose command or reply passes the relay, mostly None."""
        self._passages_to_fault -= 1
        if self._passages_to_fault > 0:
            return None
        self._passages_to_fault += self._between_faults * random.uniform(0.5, 1.5)
        return next(self._faults)

    def progress(self) -> None:
        """Note that the clients are not stuck."""
        self._last_progress = self.loop.time()

    async def run(self) -> Outcome:
        """Run all clients to their end. Raise an ExceptionGroup if one fails, or if all are stuck."""
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
            for native in self._natives:
                native.end()
        outcome = self.outcome
        outcome.seconds = self.loop.time() - start
        for done in re.findall(r"Auto-repair (.*)", self.server.log):
            outcome.repairs.update(_repairs_in(done))
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
            reply = await self._ask(admin, "PRESSURE.CLOSE", QUEUE)
            assert reply == b"OK", reply
        admin.close()

    def _producers(self) -> list[Coroutine[Any, Any, None]]:
        plan = self.plan

        def rest(name: str, count: int) -> Callable[[NativeWorker], list[str]]:
            return lambda worker: ["produce", name, str(worker.put), str(count)]

        working: list[Coroutine[Any, Any, None]] = []
        for number in range(plan.producers):
            name = f"p{number}"
            count = len(range(number, plan.messages, plan.producers))
            self.outcome.ledger.put([f"{name}-{each}".encode() for each in range(count)], Event(name))
            if number < plan.native_producers:
                working.append(self._run_native(name, number, rest(name, count)))
            else:
                working.append(self._produce(name, count))
        return working

    def _consumers(self) -> list[Coroutine[Any, Any, None]]:
        natives = self.plan.native_consumers
        return [
            self._run_native(f"c{number}", number + 1, lambda _: ["consume"])
            if number < natives
            else self._consume(Event(f"c{number}"))
            for number in range(self.plan.consumers)
        ]

    def _run_native(
        self, name: str, number: int, work: Callable[[NativeWorker], list[str]]
    ) -> Coroutine[Any, Any, None]:
        self._natives.append(NativeWorker(self, name, VERSIONS[number % len(VERSIONS)], work))
        return self._natives[-1].run()

    async def _produce(self, name: str, count: int) -> None:
        waiter = await AsyncWaiter.connect(self.server.port)
        await self._all_started.wait()
        for number in range(count):
            reply = await self._ask(waiter, *random.choice(_PUTS), f"{name}-{number}")
            assert isinstance(reply, int), reply
            assert reply > 0
        waiter.close()

    async def _consume(self, event: Event) -> None:
        waiter = await AsyncWaiter.connect(self.server.port)
        await self._all_started.wait()
        while not is_refused(reply := await self._ask(waiter, *random.choice(_GETS)), "CLOSED"):
            if reply is not None:
                assert not isinstance(reply, Exception), reply
                self.outcome.ledger.receive([reply if isinstance(reply, bytes) else reply[1]], event)
                self.progress()
        waiter.close()

    async def _ask(self, waiter: AsyncWaiter, *words: str) -> Any:
        """Return the reply. Retry while a role is in use; `_watch` notices if all clients are stuck."""
        while True:
            await waiter.send(packed(*words))
            reply = await waiter.reply(timeout=None)
            if not is_refused(reply, "INUSE"):
                return reply
            self.outcome.in_use += 1

    async def _watch(self) -> None:
        """Raise AssertionError when all clients are stuck."""
        left = _STUCK_AFTER
        while left > 0:
            await asyncio.sleep(left)
            left = self._last_progress + _STUCK_AFTER - self.loop.time()
        raise AssertionError(f"no client has made progress for {_STUCK_AFTER} seconds")

    async def _repair(self) -> None:
        """Run the doctor again and again."""
        while not self.plan.auto_repair:
            _, output = await doctor(self.backend)
            for done in re.findall(r"  done: (.*)", output):
                self.outcome.repairs.update(_repairs_in(done))


async def doctor(backend: Valkey) -> tuple[int, str]:
    """Run `pressure-server doctor --repair`. Return its exit status and its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pressure_server", "doctor", "--repair",
        "--backend", backend.url, "--wait", str(DEAD_AFTER),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_STUCK_AFTER):
            output, _ = await process.communicate()
    except (asyncio.CancelledError, TimeoutError):
        with suppress(ProcessLookupError):  # it has just ended
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output.decode()


def _in_words(command: Command) -> str:
    key = command[1].removeprefix(_BASE).decode() if len(command) > 1 else ""
    return f"{command[0].decode()} {key or 'the list'}"


def _repairs_in(done: str) -> list[str]:
    """Return the repairs, without numbers."""
    return [re.sub(r"\d+ ", "", repair) for repair in done.split(", ")]
