"""Native clients and a server's clients on one queue, while native clients are stopped and killed.

Each native worker is a sequence of processes: when one is killed, the next one continues with the first
message that Redis has not received.
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
import socket
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import hiredis
import redis.asyncio

from tests.support.ledger import Event, Ledger
from tests.support.native import VERSIONS
from tests.support.native_process import NativeProcess
from tests.support.programs import Server, Valkey, run_command
from tests.support.relay import Link, Relay, connected
from tests.support.waiters import AsyncWaiter, is_refused, packed

QUEUE = "q"
_BASE = f"__pressure__:{QUEUE}".encode()
# All times are in seconds. The doctor must not take a stopped client for dead, so a stop is much shorter.
_DOCTOR_WAIT = 1.0
_LONGEST_STOP = 0.3
_STUCK_AFTER = 60.0
# A native put or get takes about ten commands. Each passes the relay twice, as a command and as a reply.
_RELAYED_PER_OPERATION = 20
_FAULTS = ("kill", "stop", "stop", "stop and kill", "stop", "kill")
_PUTS: list[tuple[str, ...]] = [("SADD", QUEUE), ("LPUSH", QUEUE), ("PRESSURE.PUT", QUEUE)]
_GETS: list[tuple[str, ...]] = [
    ("SPOP", QUEUE),
    ("BLPOP", QUEUE, "1"),
    ("BRPOP", "another", QUEUE, "1"),
    ("PRESSURE.GET", QUEUE, "TIMEOUT", "1"),
]


@dataclass
class Plan:
    """The number of clients of each kind, of messages, and of faults; and the queue's bound, 0 for none.

    A fault stops a native client, kills it, or both. With `auto_repair` the server repairs the queue after
    that; without it the doctor runs all the time.
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
    def relayed(self) -> int:
        """The approximate number of commands and replies that pass a relay."""
        consumers = self.native_consumers + self.server_consumers
        native = self.native_producers / self.producers + self.native_consumers / consumers
        return int(self.messages * native * _RELAYED_PER_OPERATION)


@dataclass
class Outcome:
    """The outcome of a plan. The ledger has the name of each message's producer and consumer."""

    ledger: Ledger = field(default_factory=Ledger)
    stopped: int = 0
    # By the last command before the client was killed.
    deaths: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        deaths = ", ".join(f"{command} {count}" for command, count in self.deaths.most_common())
        return f"stopped {self.stopped} times, killed {self.deaths.total()} times, after: {deaths}"


Command = list[bytes]


class _NativeLink(Link):
    _relay: NativeRelay

    def __init__(self, relay: Relay, near: socket.socket, far: socket.socket) -> None:
        super().__init__(relay, near, far)
        self._commands, self._replies = hiredis.Reader(), hiredis.Reader()
        self._unanswered: deque[Command] = deque()
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    async def run(self) -> None:
        await super().run()
        self._relay.ended.set()

    async def requests(self) -> None:
        with suppress(ConnectionError):
            while data := await self._loop.sock_recv(self.near, 1 << 14):
                await self.request(data)
        await self._wait_for_replies()
        self.far.shutdown(socket.SHUT_WR)

    async def request(self, data: bytes) -> None:
        self._commands.feed(data)
        while (command := self._commands.gets()) is not False:
            self._unanswered.append(command)
            self._all_answered.clear()
            self._relay.on_command(command)
        await self.send(self.far, data)

    async def reply(self, data: bytes) -> None:
        self._replies.feed(data)
        while (reply := self._replies.gets()) is not False:
            self._relay.on_reply(self._unanswered.popleft(), reply)
        if not self._unanswered:
            self._all_answered.set()
        with suppress(OSError):  # the client may have gone
            await self.send(self.near, data)

    async def _wait_for_replies(self) -> None:
        """Return when every command has its reply.

        The connection to Redis stays open until then: at its end Redis discards unsent replies, and with them
        the message that a BRPOP has taken.
        """
        if self._relay.unblocks_at_end:
            async with redis.asyncio.Redis(unix_socket_path=str(self._relay.backend)) as control:
                # CLIENT UNBLOCK has no effect before the blocking command has reached Redis.
                while self._unanswered:
                    await control.client_unblock(self._relay.client_id)
        await self._all_answered.wait()


class NativeRelay(Relay):
    """A relay from the unix socket `path` to the unix socket `backend`, for one connection.

    `on_command` is called with each command before Redis gets it, `on_reply` with a command and its reply
    before the client gets the reply. `ended` is set after the client has gone and all replies have come.
    """

    new_link = _NativeLink

    def __init__(
        self,
        path: Path,
        backend: Path,
        on_command: Callable[[Command], None],
        on_reply: Callable[[Command, Any], None],
    ) -> None:
        super().__init__()
        self.path = path
        self.backend = backend
        self.on_command = on_command
        self.on_reply = on_reply
        self.ended = asyncio.Event()
        # Whether a command that blocks is ended after the client has gone. If not, it blocks on.
        self.unblocks_at_end = True
        self.client_id = 0
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen()
        self.listen(self._connect, listening)

    async def _connect(self) -> socket.socket:
        connection = await connected(str(self.backend))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, packed("CLIENT", "ID"))
        self.client_id = int((await loop.sock_recv(connection, 100))[1:])
        return connection


class _NativeWorker:
    """A native client that is started again when it is killed.

    `work` returns the arguments of the next process. `put` counts the messages that Redis has received.
    """

    def __init__(
        self, clients: MixedClients, name: str, version: str, work: Callable[[_NativeWorker], list[str]]
    ) -> None:
        self.put = 0
        self._clients = clients
        self._name = name
        self._version = version
        self._work = work
        self._fault_pending = False
        self._last_command = ""
        self._process: NativeProcess | None = None

    async def run(self) -> None:
        """Start one process after the other, until one finishes its work."""
        clients, status, number = self._clients, -signal.SIGKILL, 0
        while status == -signal.SIGKILL:
            number += 1
            identity = f"{self._name}.{number}"
            self._event = Event(identity)
            relay = NativeRelay(
                clients.folder / identity, clients.backend.socket, self._on_command, self._on_reply
            )
            self._relay, self._fault_pending = relay, False
            process = NativeProcess(relay.path, QUEUE, identity, *self._work(self), version=self._version)
            self._process = process
            await relay.ended.wait()
            await relay.close()
            await asyncio.to_thread(process.outcome)
            status = process.status or 0
            if status == -signal.SIGKILL:
                clients.outcome.deaths[self._last_command] += 1
        assert status == 0, f"{identity} ended with {status}"

    def kill(self) -> None:
        """Kill the present process."""
        if self._process is not None:
            self._process.kill()
            self._process.outcome()

    def _on_command(self, command: Command) -> None:
        if not self._last_command:
            self._clients.note_native_start()
        self._last_command = _describe(command)
        self._note_relayed()

    def _on_reply(self, command: Command, reply: Any) -> None:
        self._note_relayed()
        if command[:2] == [b"LPUSH", _BASE] and isinstance(reply, int):
            self.put += 1
        elif command[0] == b"BRPOP" and reply is not None and reply[0] == _BASE:
            self._clients.outcome.ledger.receive([reply[1]], self._event)

    def _note_relayed(self) -> None:
        fault = None if self._fault_pending else self._clients.next_fault()
        self._clients.note_progress()
        if fault is not None:
            self._fault_pending = True
            # Half of the faults come before this command or reply passes, the others a little later.
            if random.random() < 0.5:
                self._inject(fault)
            else:
                self._clients.loop.call_later(random.uniform(0, 0.002), self._inject, fault)

    def _inject(self, fault: str) -> None:
        process = self._process
        if process is None:
            return
        self._relay.unblocks_at_end = random.random() < 0.7
        if fault == "kill":
            process.kill()
            return
        self._clients.outcome.stopped += 1
        process.stop()
        end = process.kill if fault == "stop and kill" else self._resume
        self._clients.loop.call_later(random.uniform(0.01, _LONGEST_STOP), end)

    def _resume(self) -> None:
        if self._process is not None:
            self._process.resume()
        self._fault_pending = False


class MixedClients:
    """All clients of a plan, from the creation of the queue until it is closed and empty."""

    def __init__(self, plan: Plan, backend: Valkey, server: Server, folder: Path) -> None:
        self.plan = plan
        self.backend = backend
        self.server = server
        self.folder = folder
        self.outcome = Outcome()
        self._between_faults = plan.relayed / plan.faults if plan.faults else math.inf
        self._until_fault = self._between_faults * random.random()
        self._faults = cycle(_FAULTS)
        self._last_progress = 0.0
        self._workers: list[_NativeWorker] = []
        self._started_natives = 0
        self._all_natives_started = asyncio.Event()

    def note_native_start(self) -> None:
        """Note that a native worker has begun. The server's clients wait until all have."""
        self._started_natives += 1
        if self._started_natives == self.plan.native_producers + self.plan.native_consumers:
            self._all_natives_started.set()

    def next_fault(self) -> str | None:
        """Return the fault for the client whose command or reply passes a relay, usually None."""
        self._until_fault -= 1
        if self._until_fault > 0:
            return None
        self._until_fault += self._between_faults * random.uniform(0.5, 1.5)
        return next(self._faults)

    def note_progress(self) -> None:
        """Note that the clients are not stuck."""
        self._last_progress = self.loop.time()

    async def run(self) -> Outcome:
        """Let all clients finish their work. Raises an ExceptionGroup if one fails, or all are stuck."""
        self.loop = asyncio.get_running_loop()
        self.note_progress()
        try:
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(self._watch()), group.create_task(self._repair())]
                await self._work()
                for other in others:
                    other.cancel()
        finally:
            for worker in self._workers:
                worker.kill()
        return self.outcome

    async def _work(self) -> None:
        admin = await AsyncWaiter.connect(self.server.port)
        assert await admin("PRESSURE.CREATE", QUEUE, "BOUND", self.plan.bound) == b"OK"
        async with asyncio.TaskGroup() as consumers:
            for consumer in self._consumers():
                consumers.create_task(consumer)
            async with asyncio.TaskGroup() as producers:
                for producer in self._producers():
                    producers.create_task(producer)
            # A killed client may hold the producer role until the queue is repaired.
            assert await self._until_not_in_use(admin, "PRESSURE.CLOSE", QUEUE) == b"OK"
        admin.close()

    def _producers(self) -> list[Coroutine[Any, Any, None]]:
        plan = self.plan

        def remaining(name: str, count: int) -> Callable[[_NativeWorker], list[str]]:
            return lambda worker: ["produce", name, str(worker.put), str(count)]

        producers: list[Coroutine[Any, Any, None]] = []
        for number in range(plan.producers):
            name = f"p{number}"
            count = len(range(number, plan.messages, plan.producers))
            self.outcome.ledger.put([f"{name}-{each}".encode() for each in range(count)], Event(name))
            if number < plan.native_producers:
                producers.append(self._native(name, number, remaining(name, count)))
            else:
                producers.append(self._produce(name, count))
        return producers

    def _consumers(self) -> list[Coroutine[Any, Any, None]]:
        plan = self.plan
        natives = [
            self._native(f"c{number}", number + 1, lambda _: ["consume"])
            for number in range(plan.native_consumers)
        ]
        others = range(plan.native_consumers, plan.native_consumers + plan.server_consumers)
        return natives + [self._consume(Event(f"c{number}")) for number in others]

    def _native(
        self, name: str, number: int, work: Callable[[_NativeWorker], list[str]]
    ) -> Coroutine[Any, Any, None]:
        self._workers.append(_NativeWorker(self, name, VERSIONS[number % len(VERSIONS)], work))
        return self._workers[-1].run()

    async def _produce(self, name: str, count: int) -> None:
        waiter = await AsyncWaiter.connect(self.server.port)
        await self._all_natives_started.wait()
        for number in range(count):
            reply = await self._until_not_in_use(waiter, *random.choice(_PUTS), f"{name}-{number}")
            assert isinstance(reply, int), reply
            assert reply > 0
        waiter.close()

    async def _consume(self, event: Event) -> None:
        waiter = await AsyncWaiter.connect(self.server.port)
        await self._all_natives_started.wait()
        while not is_refused(reply := await self._until_not_in_use(waiter, *random.choice(_GETS)), "CLOSED"):
            if reply is not None:
                assert not isinstance(reply, Exception), reply
                self.outcome.ledger.receive([reply if isinstance(reply, bytes) else reply[1]], event)
                self.note_progress()
        waiter.close()

    async def _until_not_in_use(self, waiter: AsyncWaiter, *words: str) -> Any:
        """Repeat a command while its reply is -INUSE. Return the other reply, without a timeout."""
        while True:
            await waiter.send(packed(*words))
            reply = await waiter.reply(timeout=None)
            if not is_refused(reply, "INUSE"):
                return reply

    async def _watch(self) -> None:
        """Raise AssertionError when all clients are stuck."""
        left = _STUCK_AFTER
        while left > 0:
            await asyncio.sleep(left)
            left = self._last_progress + _STUCK_AFTER - self.loop.time()
        raise AssertionError(f"no progress for {_STUCK_AFTER} seconds")

    async def _repair(self) -> None:
        """Run the doctor again and again, unless the server repairs the queue itself."""
        while not self.plan.auto_repair:
            await asyncio.to_thread(doctor, self.backend)


def doctor(backend: Valkey) -> tuple[int, str]:
    """Run `pressure-server doctor --repair`. Return its exit status and its output."""
    ended = run_command("doctor", "--repair", "--backend", backend.url, "--wait", str(_DOCTOR_WAIT))
    return ended.returncode, ended.stdout


def _describe(command: Command) -> str:
    key = command[1].removeprefix(_BASE).decode() if len(command) > 1 else ""
    return f"{command[0].decode()} {key or 'the list'}"
