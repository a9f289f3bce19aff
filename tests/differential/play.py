"""Playing a program: each step is sent to the servers and done by the model, and the replies are compared.

The model may allow several worlds. A reply drops those in which it was not expected. A step is over when one
world is left in which all replies have come, and as many clients wait at each server as in that world. Other
worlds, which expect further replies, stay possible.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from tests.differential.model import COMMANDS, TooManyStatesError, Words, World, matches
from tests.differential.program import Program, Step
from tests.differential.wires import RespWire, Wire, wire
from tests.support.programs import TIMEOUT, Server, Valkey

SERVERS = 3
# Seconds until a reply that is expected has to be there, in a loaded machine; and between looks at how many
# clients wait.
PATIENCE = 5.0
_LOOK = 0.002
# At most so many worlds are followed from step to step.
_MOST_WORLDS = 24


class Difference(Exception):  # noqa: N818 -- it is what is looked for
    """What servers and model disagree about; `steps` are those that were done."""

    def __init__(self, text: str, number: int, steps: list[Step]) -> None:
        super().__init__(text)
        self.number = number
        self.steps = steps


@dataclass
class Tally:
    """How much was played."""

    programs: int = 0
    steps: int = 0
    commands: int = 0
    waits: int = 0
    given_up: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)


class Stand:
    """A backend with servers on it, which all programs use."""

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
        """Whether no log tells of an error."""
        return not any(word in server.log for server in self.servers for word in ("ERROR", "Traceback"))


class Player:
    """Plays programs on a stand, one after the other."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        # Seconds until a reply that is expected has to be there.
        self.patience = PATIENCE
        self.tally = Tally()
        self.controls: list[RespWire] = []

    async def play(self, program: Program) -> None:
        """Raises Difference."""
        if not self.controls:
            self.controls = [RespWire(server.port, 2) for server in self.stand.servers]
            await asyncio.gather(*(control.connect() for control in self.controls))
        playing = _Playing(program, self)
        try:
            await playing.through()
        finally:
            await playing.end()
            self.tally.programs += 1

    async def close(self) -> None:
        await asyncio.gather(*(control.close() for control in self.controls))


def _names_several_queues(commands: tuple[Words, ...]) -> bool:
    """Whether it is a pipeline for several queues, which servers may do in another order than it was sent.

    Only others that go on meanwhile with several queues see that.
    """
    known = [words for words in commands if words[0] in COMMANDS]
    names = {name for words in known for name in COMMANDS[words[0]].names(words)}
    return len(known) == len(commands) > 1 and len(names) > 1


async def _ask(control: RespWire, *words: Any) -> Any:
    await control.send((words,))
    async with asyncio.timeout(TIMEOUT):
        while not control.replies:
            event = asyncio.Event()
            control.on_reply = event.set
            await event.wait()
    return control.replies.popleft()


class _Playing:
    def __init__(self, program: Program, player: Player) -> None:
        self._program = program
        self._stand = player.stand
        self._controls = player.controls
        self._tally = player.tally
        self._patience = player.patience
        self._worlds = [World([server for _, server in program.clients])]
        self._wires: list[Wire] = []
        self._come = asyncio.Event()
        self._number = 0
        self._done: list[Step] = []
        self._servers = sorted({server for _, server in program.clients})

    async def through(self) -> None:
        for number in range(len(self._program.clients)):
            self._wires.append(await self._connect(number))
        for number, step in enumerate(self._program.steps):
            self._number = number
            if not await self._step(step):
                return
        await self._compare_contents()

    async def end(self) -> None:
        """Leave nothing to the next program."""
        await asyncio.gather(*(wire.close() for wire in self._wires))
        end = monotonic() + TIMEOUT
        for server in range(SERVERS):
            while await self._blocked(server) and monotonic() < end:  # noqa: ASYNC110 -- the server tells nobody
                await asyncio.sleep(_LOOK)
        await _ask(self._controls[0], "FLUSHALL")

    async def _connect(self, number: int) -> Wire:
        kind, server = self._program.clients[number]
        made = wire(kind, self._stand.servers[server], self._stand.backend)
        await made.connect()
        made.on_reply = self._come.set
        return made

    async def _step(self, step: Step) -> bool:
        """Do a step; whether there can be another. One whose client is busy is passed over."""
        if not step.commands:
            clients = [world.clients[step.client] for world in self._worlds]
            if any(client.outbox and not client.held for client in clients):
                return True
            self._done.append(step)
            await self._wires[step.client].close()
            for world in self._worlds:
                world.hang_up(step.client)
            self._wires[step.client] = await self._connect(step.client)
        else:
            if not all(world.clients[step.client].is_idle for world in self._worlds):
                return True
            if _names_several_queues(step.commands) and (
                any(w.moves_wait for w in self._worlds) or self._others_go_on()
            ):
                return True
            if step.commands[0][0] == "native delete" and self._others_go_on():
                return True
            name = step.commands[0][1] if step.commands[0][0] == "native put" else ""
            if any(world.moves_within(name) for world in self._worlds):
                return True
            self._done.append(step)
            for world in self._worlds:
                world.clients[step.client].pending = list(step.commands)
                world.clients[step.client].last_put = ()
        try:
            worlds = {world.key(): world for before in self._worlds for world in before.outcomes()}
        except TooManyStatesError:
            self._tally.given_up += 1
            return False
        self._worlds = list(worlds.values())
        self._count(step)
        if step.commands:
            await self._wires[step.client].send(step.commands)
        await self._settle()
        if len(self._worlds) > _MOST_WORLDS:
            self._tally.given_up += 1
            return False
        return True

    def _others_go_on(self) -> bool:
        """Whether a client would send more when its wait ends.

        A native Delete ends with the list. What is put just before that, when no other key is left, goes too.
        """
        return any(client.waiting and client.pending for world in self._worlds for client in world.clients)

    def _count(self, step: Step) -> None:
        kind = self._program.clients[step.client][0]
        self._tally.steps += 1
        self._tally.commands += len(step.commands)
        self._tally.waits += any(world.clients[step.client].waiting for world in self._worlds)
        self._tally.by_kind[kind] = self._tally.by_kind.get(kind, 0) + len(step.commands)

    async def _settle(self) -> None:
        """Return when one of the worlds is what the servers are in. Raises Difference."""
        end = monotonic() + self._patience
        blocked: dict[int, int] = {}
        while True:
            self._come.clear()
            self._read()
            settled = [world for world in self._worlds if world.is_settled]
            if settled:
                blocked = {server: await self._blocked(server) for server in self._servers}
                if (
                    any(
                        all(world.blocked(server) == blocked[server] for server in self._servers)
                        for world in settled
                    )
                    and not self._come.is_set()
                ):
                    return
            if monotonic() > end:
                raise self._difference(f"no further reply; at the servers so many clients wait: {blocked}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK if settled else 0.1):
                    await self._come.wait()

    async def _has_lengths_of(self, worlds: list[World]) -> bool:
        """Whether queues are as long as in one of the worlds: a put that waits may have been done in part."""
        if not any(world.waiting() for world in worlds):
            return bool(worlds)
        names = sorted({name for world in worlds for name in world.queues})
        lengths = [await _ask(self._controls[self._servers[0]], "LLEN", name) for name in names]
        return any(
            lengths == [len(world.queues[name].entries) if name in world.queues else 0 for name in names]
            for world in worlds
        )

    def _read(self) -> None:
        """Compare what has come, and drop worlds in which it was not expected."""
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
                    raise self._difference(f"client {number} was replied {reply!r}")
                self._worlds = list({world.key(): world for world in possible}.values())

    async def _blocked(self, server: int) -> int:
        about = await _ask(self._controls[server], "INFO", "clients")
        for line in about.decode().splitlines():
            if line.startswith("blocked_clients:"):
                return int(line.partition(":")[2])
        raise AssertionError(about)

    async def _compare_contents(self) -> None:
        """All queues are as in one of the worlds."""
        worlds = [world for world in self._worlds if world.is_settled]
        names = sorted({name for world in worlds for name in world.births})
        found: dict[str, Any] = {}
        for name in names:
            control = self._controls[self._servers[0]]
            about = await _ask(control, "PRESSURE.INFO", name)
            if isinstance(about, list):
                told = dict(zip(about[::2], about[1::2], strict=True))
                found[name] = (
                    told[b"bound"], told[b"closed"], told[b"produced_messages"], told[b"consumed_messages"],
                    await _ask(control, "LRANGE", name, 0, -1),
                )  # fmt: skip
        expected = [
            {
                name: (queue.bound, int(queue.closed), queue.produced, queue.consumed, queue.messages)
                for name, queue in world.queues.items()
            }
            for world in worlds
        ]
        if found not in expected:
            raise self._difference(
                f"in the end queues (bound, closed, produced, consumed, messages) are {found}, "
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
    """The last of the steps, for people."""
    lines = [f"clients: {dict(enumerate(program.clients))}"]
    for step in steps[-last:]:
        what = "; ".join(" ".join(map(_word, words)) for words in step.commands) or "(hangs up)"
        lines.append(f"  client {step.client} ({program.clients[step.client][0]}): {what}")
    return "\n".join(lines)


def _word(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


__all__ = ["Difference", "Player", "Stand", "Tally", "Words", "shown"]
