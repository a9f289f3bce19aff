"""Random sessions of several clients on beanstalkd and the server, step by step, with the replies expected.

Each side has a World, which says what replies to expect. A session has its own tubes, so that many sessions
run at the same time on the same servers.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from tests.support.beanstalk_world import (
    BEANSTALKD,
    CLOSED,
    LEAVING,
    SERVER,
    SHORT,
    Rules,
    Step,
    World,
)

LONG = 100_000
_TUBES = ("a", "b", "c")
_LENGTHS = (20, 40, 80)
# A short time ends after a second. A session is too slow if it has come so far without `elapse`.
_TIME_ENDS, _TOO_SLOW = 1.1, 0.9
# Seconds to wait for an expected reply; the second is for the time in which a program is made shorter.
_PATIENCE, _SHORT_PATIENCE = 5.0, 1.0
# The numbers of all sessions, for their tubes.
_numbers = count()


class DifferenceError(AssertionError):
    """A side did not reply as expected, at this time or from this time on."""

    def __init__(self, text: str, since: float | None = None) -> None:
        super().__init__(text)
        self.since = time.monotonic() if since is None else since


class TooSlowError(Exception):
    """The machine was too slow for the times of the session."""


class _Wire(asyncio.Protocol):
    """A client's connection. Replies are shown with names for ids."""

    def __init__(self, side: _Side) -> None:
        self._side = side
        self._unread = bytearray()
        self._ended = False
        self._arrived = asyncio.Event()
        self.is_closed = False
        # The message or YAML of the last reply that had any.
        self.body = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._arrived.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self._ended = True
        self._arrived.set()

    def send(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self, *, reset: bool = False) -> None:
        self.is_closed = True
        if reset:
            option = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
        self._transport.abort()

    def next(self, put: str = "") -> str | None:
        """Return the next reply if it is complete. `put` is the name of the job of a put."""
        head, found, _ = self._unread.partition(b"\r\n")
        if not found:
            return CLOSED if self._ended and not self.is_closed else None
        words, size = head.decode().split(), len(head) + 2
        if words[0] in ("RESERVED", "FOUND", "OK"):
            body_size = int(words[-1])
            if len(self._unread) < size + body_size + 2:
                return None
            self.body = body = self._unread[size : size + body_size].decode()
            size += body_size + 2
            if words[0] == "OK":
                shown = self._side.shown_statistics(body)
            else:
                name = self._side.name(words[1])
                shown = f"{words[0]} {name}" + f" with the message {body}" * (name != body)
        elif words[0] == "INSERTED" and put:
            self._side.jobs[put] = words[1]
            self._side.names[words[1]] = put
            shown = f"INSERTED {put}"
        else:
            shown = head.decode().replace(self._side.prefix, "")
        del self._unread[:size]
        return shown

    async def reply(self, put: str = "") -> str | None:
        """Return the next reply. It is None after the patience of the side."""
        end = time.monotonic() + self._side.patience
        while (found := self.next(put)) is None:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), end - time.monotonic())
            except TimeoutError:
                return self.next(put)
        return found


class _Side:
    """One of the two servers in a session."""

    def __init__(self, name: str, port: int, rules: Rules, prefix: str, patience: float) -> None:
        self.name_of_side = name
        self.patience = patience
        self.prefix = prefix
        self._port = port
        self.world = World(rules, _TUBES)
        self.jobs: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.wires: list[_Wire] = []

    def name(self, job: str) -> str:
        return self.names.get(job, f"unknown job {job}")

    def shown_statistics(self, body: str) -> str:
        figures = dict(line.split(": ", 1) for line in body.splitlines()[1:] if line)
        keys = ("tube", "state", "pri", "delay", "reserves", "timeouts", "releases", "buries", "kicks")
        return " ".join(f"{key}={figures.get(key, '')}" for key in keys).replace(self.prefix, "")

    async def connect(self, tubes: Iterable[str]) -> None:
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: _Wire(self), "127.0.0.1", self._port)
        self.wires.append(wire)
        names = [self.prefix + tube for tube in tubes]
        lines = [f"use {names[0]}", *(f"watch {name}" for name in names), "ignore default"]
        wire.send("".join(line + "\r\n" for line in lines).encode())
        for line in lines:
            if await wire.reply() is None:
                raise DifferenceError(f"{self.name_of_side}: no reply to {line}")

    def _line(self, step: Step) -> bytes:
        words = [str(word) for word in step.arguments]
        if step.command == "put":
            name, *numbers = words
            return f"put {' '.join(numbers)} {len(name)}\r\n{name}\r\n".encode()
        if step.job is not None:
            words[0] = self.jobs[step.job]
        elif words and words[0] in _TUBES:
            words[0] = self.prefix + words[0]
        return " ".join((step.command, *words)).encode() + b"\r\n"

    async def play(self, step: Step) -> dict[int, list[str]]:
        """Do a step. Return the expected replies, after all have come. Raise DifferenceError otherwise."""
        held = self.world.held(step.client) if step.client >= 0 else []
        short = self.world.jobs_with_short_times() if step.command == "elapse" else []
        asked = [client for client in self.world.holders_of_short_jobs() if self.world.can_act(client)]
        expected = self.world.do(step)
        if step.command == "connect":
            await self.connect(map(str, step.arguments))
        elif step.command == "elapse":
            # beanstalkd now and then notices the end of a reservation only at the next command of its client.
            for client in asked:
                self.wires[client].send(b"list-tube-used\r\n")
                await self._expect(client, f"USING {self.world.clients[client].used}")
        elif step.command in ("close", "reset"):
            self.wires[step.client].close(reset=step.command == "reset")
            # Wait until the server has noticed that the client has left without a word.
            tube = self.world.clients[step.client].watched[0]
            question = f"stats-tube {self.prefix}{tube}"
            await self._until(question, f"current-watching: {self.world.watchers(tube)}\n")
            await self._await_states(held)
        else:
            self.wires[step.client].send(self._line(step))
        put = str(step.arguments[0]) if step.command == "put" else ""
        # First the reply to the command itself: the reply to a put has the id of the job.
        for client, replies in sorted(expected.items(), key=lambda each: each[0] != step.client):
            for reply in replies:
                await self._expect(client, reply, put)
        await self._await_states(short)
        await self.ask_all()
        return expected

    async def _expect(self, client: int, reply: str, put: str = "") -> None:
        began = time.monotonic()
        found = await self.wires[client].reply(put)
        if found != reply:
            self._differ(client, reply, found or "(nothing)", since=None if found else began)
        if reply == CLOSED:
            self.wires[client].close()

    async def ask_all(self) -> None:
        """Let the server answer a cheap question. Raise DifferenceError if a client has a reply more."""
        self.wires[0].send(b"list-tube-used\r\n")
        await self._expect(0, f"USING {self.world.clients[0].used}")
        for client, wire in enumerate(self.wires):
            if not wire.is_closed and (found := wire.next()) is not None:
                self._differ(client, "(nothing)", found)

    def _differ(self, client: int, expected: str, found: str, since: float | None = None) -> None:
        others = [
            f"; client {number} has {reply}"
            for number, wire in enumerate(self.wires)
            if number != client and not wire.is_closed and (reply := wire.next()) is not None
        ]
        text = f"{self.name_of_side}: client {client}: {found} instead of {expected}{''.join(others)}"
        raise DifferenceError(text, since)

    async def _await_states(self, names: Iterable[str]) -> None:
        """Wait until these jobs are no longer reserved or delayed, if no client has received them."""
        for name in names:
            if self.world.jobs[name].state == "ready":
                await self._until(f"stats-job {self.jobs[name]}", "state: ready\n")

    async def _until(self, question: str, part: str) -> None:
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            answer = await self.ask(question)
            if part in answer:
                return
        raise DifferenceError(f"{self.name_of_side}: {question}: not {part.strip()} but\n{answer}")

    async def ask(self, question: str) -> str:
        """Return the YAML of a reply to client 0."""
        wire = self.wires[0]
        wire.body = ""
        wire.send(question.encode() + b"\r\n")
        await wire.reply()
        return wire.body

    def close(self) -> None:
        for wire in self.wires:
            if not wire.is_closed:
                wire.close()


@dataclass
class Played:
    """A session that has been played: its steps, and what they showed."""

    steps: list[Step] = field(default_factory=list)
    difference: str = ""


class Session:
    """A session on both servers. `gate` bounds how many sessions play at the same time, without sleeping."""

    def __init__(self, ports: tuple[int, int], gate: asyncio.Semaphore, patience: float = _PATIENCE) -> None:
        prefix = f"s{next(_numbers)}-"
        self._sides = (
            _Side("beanstalkd", ports[0], BEANSTALKD, prefix, patience),
            _Side("server", ports[1], SERVER, prefix, patience),
        )
        self._worlds = tuple(side.world for side in self._sides)
        self._gate = gate
        self._holds_gate = False
        self._first_time = self._last_time = 0.0
        self.played = Played()

    async def play(self, steps: Iterable[Step] | random.Random) -> Played:
        """Play these steps, but for impossible ones, or random steps; then compare the states of all jobs."""
        try:
            await self._gate.acquire()
            self._holds_gate = True
            try:
                await asyncio.gather(*(side.connect(_TUBES) for side in self._sides))
                if isinstance(steps, random.Random):
                    await self._play_random(steps)
                else:
                    for step in steps:
                        await self._step(step)
                for name in dict.fromkeys(name for side in self._sides for name in side.jobs):
                    await self._step(Step(0, "stats-job", (name,)), is_last=True)
            finally:
                self._let_others_play()
        except DifferenceError as difference:
            if self._is_late(difference.since):
                raise TooSlowError from None
            self.played.difference = str(difference)
        finally:
            for side in self._sides:
                side.close()
        return self.played

    def _let_others_play(self) -> None:
        """Let another session begin. After a time has ended, the session must not wait for others again."""
        if self._holds_gate:
            self._holds_gate = False
            self._gate.release()

    async def _play_random(self, rng: random.Random) -> None:
        program = _Random(rng, self._worlds)
        for _ in range(rng.choice([2, 3, 4])):
            await self._step(Step(-1, "connect", (rng.choice(_TUBES[: program.tubes]),)))
        for _ in range(rng.choice(_LENGTHS)):
            step = program.step()
            while not self._is_possible(step):
                step = program.step()
            await self._step(step)

    def _is_late(self, now: float) -> bool:
        return bool(self._first_time) and now - self._first_time > _TOO_SLOW

    async def _step(self, step: Step, *, is_last: bool = False) -> None:
        if not self._is_possible(step):
            return
        if not is_last:
            self.played.steps.append(step)
        if step.command == "elapse":
            if self._is_late(time.monotonic()):
                raise TooSlowError
            self._first_time = 0.0
            self._let_others_play()
            await asyncio.sleep(self._last_time + _TIME_ENDS - time.monotonic())
        # A time that begins when another one ends has begun before the step.
        began = self._last_time + 1 if step.command == "elapse" else time.monotonic()
        results = await asyncio.gather(*(side.play(step) for side in self._sides), return_exceptions=True)
        for result in reversed(results):
            if isinstance(result, BaseException):
                raise result
        if not any(world.times() for world in self._worlds):
            self._first_time = 0.0
        else:
            self._first_time = self._first_time or began
            if step.starts_time or step.job or "reserve" in step.command or results[0]:
                self._last_time = time.monotonic()

    def _is_possible(self, step: Step) -> bool:
        times = [each for world in self._worlds for each in world.times()]
        if step.command == "elapse":
            return bool(times)
        if step.command == "connect":
            return True
        if step.job is not None and not all(step.job in side.jobs for side in self._sides):
            return False
        can = World.is_there if step.command in LEAVING else World.can_act
        if not all(can(world, step.client) for world in self._worlds):
            return False
        if self._worlds[1].would_be_open(step):
            return False
        if step.starts_time:
            has_short_job = any(world.has_short_job() for world in self._worlds)
            return not has_short_job and (
                not times or (step.command == "reserve-with-timeout" and set(times) == {"wait"})
            )
        return True


class _Random:
    """Random steps. They may be impossible."""

    def __init__(self, rng: random.Random, worlds: tuple[World, ...]) -> None:
        self._rng = rng
        self._worlds = worlds
        self.tubes = rng.choice([1, 2, 2, 3])
        self._is_timed = rng.randrange(4) == 0
        self._most = rng.choice([3, 4, 5])
        self._put = count()

    def step(self) -> Step:
        rng = self._rng
        clients = [
            number
            for number in range(len(self._worlds[0].clients))
            if any(not world.clients[number].is_gone for world in self._worlds)
        ]
        client = rng.choice(clients)
        if self._is_timed and any(world.times() for world in self._worlds) and rng.randrange(8) == 0:
            return Step(-1, "elapse")
        short = [SHORT] if self._is_timed else []
        tube = rng.choice(_TUBES[: self.tubes])
        ready = sum(job.state == "ready" for job in self._worlds[0].jobs.values())
        priority, job = rng.choice([0, 1, 2, 2, 2000]), self._job(client)
        delay = rng.choice([0, 0, 0, 0, LONG, *short])
        ttr = rng.choice([LONG, LONG, LONG, *short])
        choices: list[tuple[int, str, tuple[str | int, ...]]] = [
            (16 if ready < 2 else 4, "put", (f"j{next(self._put)}", priority, delay, ttr)),
            (4, "use", (tube,)), (5, "watch", (tube,)),
            (8, "release", (job, priority, delay)), (6, "bury", (job, priority)), (5, "delete", (job,)),
            (2, "touch", (job,)), (3, "reserve-job", (job,)), (3, "kick-job", (job,)),
            (6, "kick", (rng.choice([0, 1, 2, 100]),)), (3, "stats-job", (job,)), (1, "peek", (job,)),
            (1, "peek-ready", ()), (1, "peek-delayed", ()), (1, "peek-buried", ()),
            (3, "pause-tube", (tube, rng.choice([0, 0, 0, LONG, *short]))),
        ]  # fmt: skip
        if client:
            choices += [
                (2, "ignore", (tube,)), (20 if ready else 36, "reserve", ()),
                (8, "reserve-with-timeout", (rng.choice([0, 0, *short, *short]),)),
                (3, "quit", ()), (2, "close", ()), (2, "reset", ()),
            ]  # fmt: skip
        if len(clients) <= self._most:
            choices.append((6, "connect", (tube,)))
        _, command, arguments = rng.choices(choices, [weight for weight, *_ in choices])[0]
        return Step(-1 if command == "connect" else client, command, arguments)

    def _job(self, client: int) -> str:
        """Return the name of a job: mostly of one that the client has reserved, or of a recent one."""
        held = [name for world in self._worlds for name in world.held(client)]
        names = list(self._worlds[0].jobs)[-8:]
        if held and self._rng.randrange(5):
            return self._rng.choice(held)
        return self._rng.choice(names) if names else "j0"


async def play(ports: tuple[int, int], seeds: Iterable[int], at_once: int = 24) -> dict[int, Played]:
    """Play the sessions of the seeds, many at the same time. Return them by seed."""
    gate, found = asyncio.Semaphore(4), {}
    left = iter(seeds)

    async def play_some() -> None:
        for seed in left:
            for _ in range(5):
                try:
                    found[seed] = await Session(ports, gate).play(random.Random(seed))
                    break
                except TooSlowError:
                    pass

    await asyncio.gather(*(play_some() for _ in range(at_once)))
    return found


async def differs_again(ports: tuple[int, int], played: Played) -> bool:
    """Return whether a session that differed does so each time it is played alone.

    A client that waits for several tubes may be passed over while it is tried for another one: on a busy
    machine, now and then the next client gets the job.
    """
    for _ in range(2):
        try:
            tried = await Session(ports, asyncio.Semaphore(1)).play(played.steps)
        except TooSlowError:
            continue
        if not tried.difference:
            return False
    return True


async def minimized(ports: tuple[int, int], played: Played) -> Played:
    """Return the session with the fewest steps that still differ, found within a minute."""
    gate, end = asyncio.Semaphore(1), time.monotonic() + 60
    best, size = played, max(1, len(played.steps) // 2)
    while time.monotonic() < end:
        at, is_smaller = 0, False
        while at < len(best.steps) and time.monotonic() < end:
            steps = best.steps[:at] + best.steps[at + size :]
            try:
                tried = await Session(ports, gate, _SHORT_PATIENCE).play(steps)
            except TooSlowError:
                continue
            if tried.difference:
                best, is_smaller = tried, True
            else:
                at += size
        if size == 1 and not is_smaller:
            break
        size = max(1, size // 2)
    return best
