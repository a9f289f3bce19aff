"""Plays programs: servers and model do each step, and the replies are compared.

The model may allow several worlds. A reply rules out the worlds in which it is not expected. A step ends when
one world is left in which all replies have come, and as many clients wait at each server as in that world.
Worlds that expect further replies stay possible.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from tests.differential.model import COMMANDS, TooManyStatesError, World, matches
from tests.differential.program import Program, Step, Words
from tests.differential.wires import RespWire, Wire, wire
from tests.support.programs import TIMEOUT, Server, Valkey

SERVERS = 3
# Seconds within which an expected reply must come on a loaded machine, and between checks of waiting clients.
REPLY_TIMEOUT = 5.0
_POLL_INTERVAL = 0.002
# The most worlds that are followed from step to step.
_MAX_WORLDS = 24


class Difference(Exception):  # noqa: N818 -- a result of the search, not an error
    """A difference between servers and model in step `number`. `steps` are the steps that were done."""

    def __init__(self, text: str, number: int, steps: list[Step]) -> None:
        super().__init__(text)
        self.number = number
        self.steps = steps


@dataclass
class Tally:
    """The numbers of programs, steps and commands played."""

    programs: int = 0
    steps: int = 0
    commands: int = 0
    waits: int = 0
    given_up: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)


class Stand:
    """A backend and its servers, used by all programs."""

    def __init__(self, folder: Path) -> None:
        data = folder / "backend"
        data.mkdir(parents=True)
        self.backend = Valkey(data)
        self.servers = [
            Server(
                folder / f"server-{number}.log", "--backend", self.backend.url,
                "--listen", "memcached://127.0.0.1:0",
            )
            for number in range(SERVERS)
        ]  # fmt: skip

    def close(self) -> None:
        for server in self.servers:
            server.stop()
        self.backend.stop()

    def is_clean(self) -> bool:
        """Return whether the servers logged no error."""
        return not any(word in server.log for server in self.servers for word in ("ERROR", "Traceback"))


class Player:
    """Plays programs on a stand, one after the other."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.reply_timeout = REPLY_TIMEOUT
        self.tally = Tally()
        self.controls: list[RespWire] = []

    async def play(self, program: Program) -> None:
        """Play a program. Raise Difference."""
        if not self.controls:
            self.controls = [RespWire(server.port) for server in self.stand.servers]
            await asyncio.gather(*(control.connect() for control in self.controls))
        playing = _Playing(program, self)
        try:
            await playing.run()
        finally:
            await playing.end()
            self.tally.programs += 1

    async def close(self) -> None:
        await asyncio.gather(*(control.close() for control in self.controls))


def _names_several_queues(commands: tuple[Words, ...]) -> bool:
    """Return whether this is a pipeline for several queues, which servers may do in another order.

    Only clients that act at the same time on several queues can see the order.
    """
    known = [words for words in commands if words[0] in COMMANDS]
    names = {name for words in known for name in COMMANDS[words[0]].names(words)}
    return len(known) == len(commands) > 1 and len(names) > 1


def _needs_a_role_at_once(worlds: list[World]) -> bool:
    """Return whether a client, when its wait ends, goes on with a command that fails if a role is held."""
    return any(
        client.waiting and any(str(words[0]).endswith("NOWAIT") for words in client.pending)
        for world in worlds
        for client in world.clients
    )


async def _ask(control: RespWire, *words: Any) -> Any:
    await control.send((words,))
    async with asyncio.timeout(TIMEOUT):
        while not control.replies:
            event = asyncio.Event()
            control.on_reply = event.set
            await event.wait()
    return control.replies.popleft()


class _Playing:
    """One program in progress."""

    def __init__(self, program: Program, player: Player) -> None:
        self._program = program
        self._stand = player.stand
        self._controls = player.controls
        self._tally = player.tally
        self._reply_timeout = player.reply_timeout
        self._worlds = [World([server for _, server in program.clients])]
        self._wires: list[Wire] = []
        self._has_replies = asyncio.Event()
        self._number = 0
        self._done: list[Step] = []
        self._servers = sorted({server for _, server in program.clients})

    async def run(self) -> None:
        for number in range(len(self._program.clients)):
            self._wires.append(await self._connect(number))
        for number, step in enumerate(self._program.steps):
            self._number = number
            if self._is_possible(step) and not await self._step(step):
                self._tally.given_up += 1
                return
        await self._compare_contents()

    async def end(self) -> None:
        """Disconnect all clients and delete all queues."""
        await asyncio.gather(*(wire.close() for wire in self._wires))
        end = monotonic() + TIMEOUT
        for server in range(SERVERS):
            while await self._blocked(server) and monotonic() < end:  # noqa: ASYNC110 -- there is no event
                await asyncio.sleep(_POLL_INTERVAL)
        await _ask(self._controls[0], "FLUSHALL")

    async def _connect(self, number: int) -> Wire:
        kind, server = self._program.clients[number]
        made = wire(kind, self._stand.servers[server], self._stand.backend)
        await made.connect()
        made.on_reply = self._has_replies.set
        return made

    def _is_possible(self, step: Step) -> bool:
        """Return whether the client is idle, and the model knows all results of the step."""
        clients = [world.clients[step.client] for world in self._worlds]
        if not step.commands:
            return not any(client.outbox and not client.held_back for client in clients)
        if not all(client.is_idle for client in clients):
            return False
        # A client that would send more when its wait ends.
        others_go_on = any(
            client.waiting and client.pending for world in self._worlds for client in world.clients
        )
        if _names_several_queues(step.commands) and (
            others_go_on or any(world.moves_wait for world in self._worlds)
        ):
            return False
        name, *arguments = step.commands[0]
        # A native client gives its role back after others have seen what it did.
        if name.startswith("native ") and others_go_on and _needs_a_role_at_once(self._worlds):
            return False
        # A native Delete deletes the list last, with messages that were put just before.
        if name == "native delete" and others_go_on:
            return False
        return name != "native put" or not any(world.moves_within(arguments[0]) for world in self._worlds)

    async def _step(self, step: Step) -> bool:
        """Do a step. Return False if there are too many worlds to go on."""
        self._done.append(step)
        if step.commands:
            for world in self._worlds:
                world.clients[step.client].pending = list(step.commands)
                world.clients[step.client].last_put = ()
        else:
            await self._wires[step.client].close()
            for world in self._worlds:
                world.hang_up(step.client)
            self._wires[step.client] = await self._connect(step.client)
        try:
            worlds = {world.key(): world for before in self._worlds for world in before.outcomes()}
        except TooManyStatesError:
            return False
        self._worlds = list(worlds.values())
        self._count(step)
        if step.commands:
            await self._wires[step.client].send(step.commands)
        await self._settle()
        return len(self._worlds) <= _MAX_WORLDS

    def _count(self, step: Step) -> None:
        kind = self._program.clients[step.client][0]
        self._tally.steps += 1
        self._tally.commands += len(step.commands)
        self._tally.waits += any(world.clients[step.client].waiting for world in self._worlds)
        self._tally.by_kind[kind] = self._tally.by_kind.get(kind, 0) + len(step.commands)

    async def _settle(self) -> None:
        """Return when the servers are in the state of one of the worlds. Raise Difference."""
        end = monotonic() + self._reply_timeout
        blocked: list[int] = []
        while True:
            self._has_replies.clear()
            self._read()
            settled = [world for world in self._worlds if world.is_settled]
            if settled:
                blocked = [await self._blocked(server) for server in self._servers]
                possible = [[world.blocked(server) for server in self._servers] for world in settled]
                if blocked in possible and not self._has_replies.is_set():
                    return
            if monotonic() > end:
                raise self._difference(f"no further reply; waiting clients of the servers: {blocked}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_INTERVAL if settled else 0.1):
                    await self._has_replies.wait()

    def _read(self) -> None:
        """Compare the replies that have come, and drop the worlds in which they are not expected."""
        for number, wire_ in enumerate(self._wires):
            while wire_.replies:
                reply = wire_.replies.popleft()
                possible = []
                for world in self._worlds:
                    outbox = world.clients[number].outbox
                    if outbox and matches(outbox[0], reply):
                        del outbox[0]
                        possible.append(world)
                if not possible:
                    raise self._difference(f"client {number} got the reply {reply!r}")
                self._worlds = list({world.key(): world for world in possible}.values())

    async def _blocked(self, server: int) -> int:
        about = await _ask(self._controls[server], "INFO", "clients")
        for line in about.decode().splitlines():
            if line.startswith("blocked_clients:"):
                return int(line.partition(":")[2])
        raise AssertionError(about)

    async def _compare_contents(self) -> None:
        """Raise Difference unless all queues are as in one of the worlds."""
        worlds = [world for world in self._worlds if world.is_settled]
        names = sorted({name for world in worlds for name in world.births})
        found: dict[str, Any] = {}
        for name in names:
            control = self._controls[self._servers[0]]
            about = await _ask(control, "PRESSURE.INFO", name)
            if isinstance(about, list):
                info = dict(zip(about[::2], about[1::2], strict=True))
                found[name] = (
                    info[b"bound"], info[b"closed"], info[b"produced_messages"], info[b"consumed_messages"],
                    await _ask(control, "LRANGE", name, 0, -1),
                )  # fmt: skip
        expected = [
            {
                name: (queue.bound, int(queue.is_closed), *queue.version[2:], queue.messages)
                for name, queue in world.queues.items()
            }
            for world in worlds
        ]
        if found not in expected:
            raise self._difference(
                f"at the end the queues (bound, closed, produced, consumed, messages) are {found}, "
                f"expected one of {expected}"
            )

    def _difference(self, text: str) -> Difference:
        expected = []
        for world in self._worlds[:5]:
            outboxes = {n: client.outbox for n, client in enumerate(world.clients) if client.outbox}
            waiting = {n: client.waiting.words for n, client in enumerate(world.clients) if client.waiting}
            expected.append(f"  expected replies {outboxes}, waiting {waiting}")
        lines = [text, f"{len(self._worlds)} possible worlds:", *expected]
        return Difference("\n".join(lines), self._number, list(self._done))


def shown(program: Program, steps: list[Step], last: int = 12) -> str:
    """Return the last steps as text."""
    lines = [f"clients: {dict(enumerate(program.clients))}"]
    for step in steps[-last:]:
        what = "; ".join(" ".join(map(_word, words)) for words in step.commands) or "(hangs up)"
        lines.append(f"  client {step.client} ({program.clients[step.client][0]}): {what}")
    return "\n".join(lines)


def _word(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)
