"""Plays programs: servers and reference do each step, and the replies are compared.

There may be several possible worlds. A reply rules out those in which it is not expected. A step ends when
one world is left in which all replies have come, and as many clients wait at each server as in that world.
Worlds that expect further replies stay possible. Steps that race are sent at the same time and end together.
Then the contents of all queues are compared: if clients may wait for each other, at the end of the program.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.simulate.commands import COMMANDS
from tests.simulate.native import Natives
from tests.simulate.possible import Sending, is_open
from tests.simulate.programs import NATIVE_KINDS, NOBODY, WITH_WAITS, Program, Step
from tests.simulate.resolve import JobId, Session, picked, shifted, spelt
from tests.simulate.stand import Stand
from tests.simulate.state import (
    difference_in_groups,
    difference_in_keys,
    difference_in_list,
    difference_in_tokens,
)
from tests.simulate.tables import FEW
from tests.simulate.wires import RespWire, Wire, wire
from tests.simulate.world import SHORT, Error, Fields, TooManyStatesError, Words, World, matches
from tests.support.programs import TIMEOUT
from tests.support.reference.jobs import DELAYED, RESERVED, STATES
from tests.support.reference.queues import IDS_OF_BLOCK

# Seconds within which an expected reply must come on a loaded machine, and between checks of waiting clients.
REPLY_TIMEOUT = 5.0
_POLL_INTERVAL = 0.002
# The most worlds that are followed from step to step.
_MAX_WORLDS = 24
# The queue of programs of lists, and its copy.
_LIST, _CLONE = "q", "clone"


class Difference(Exception):  # noqa: N818 -- a result of the search, not an error
    """A difference between servers and reference in step `number`. `steps` are the steps that were done."""

    def __init__(self, text: str, number: int, steps: list[Step]) -> None:
        super().__init__(text)
        self.number = number
        self.steps = steps


@dataclass
class Tally:
    """The numbers of programs, steps and commands played. By kind of client, and by command."""

    programs: int = 0
    steps: int = 0
    races: int = 0
    waits: int = 0
    given_up: int = 0
    commands: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        done = sum(self.commands.values())
        return (
            f"{self.programs} programs, {self.steps} steps, {done} commands of {len(self.commands)} kinds, "
            f"{self.races} races, {self.waits} waits; {self.given_up} programs had too many states"
        )


class Player:
    """Plays programs on a stand, one after the other."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.reply_timeout = REPLY_TIMEOUT
        self.tally = Tally()
        self.controls: dict[int, RespWire] = {}

    async def play(self, program: Program) -> None:
        """Play a program, unless it has native clients and the backend is a cluster. Raise Difference."""
        if self.stand.is_spread and not {kind for kind, _ in program.clients}.isdisjoint(NATIVE_KINDS):
            return
        if not self.controls:
            for server in self.stand.all_servers:
                self.controls[server.port] = RespWire(server.port)
            await asyncio.gather(*(control.connect() for control in self.controls.values()))
        playing = _Playing(program, self)
        try:
            await playing.run()
        finally:
            await playing.end()
            self.tally.programs += 1

    async def close(self) -> None:
        await asyncio.gather(*(control.close() for control in self.controls.values()))


async def _ask(control: RespWire, *words: Any) -> Any:
    return (await _ask_all(control, words))[0]


async def _ask_all(control: RespWire, *commands: Words) -> list[Any]:
    """Return the replies to some commands, in one round trip."""
    await control.send(commands)
    async with asyncio.timeout(TIMEOUT):
        while len(control.replies) < len(commands):
            event = asyncio.Event()
            control.on_reply = event.set
            await event.wait()
    return [control.replies.popleft() for _ in commands]


class _Playing:
    """One program in progress."""

    def __init__(self, program: Program, player: Player) -> None:
        self._program = program
        self._stand = player.stand
        servers = self._stand.servers(program.flavour)
        self._controls = [player.controls[server.port] for server in servers]
        self._tally = player.tally
        self._reply_timeout = player.reply_timeout
        self._waits = program.flavour in WITH_WAITS
        blocks = {"blocks": self._waits}
        numbers = [server for _, server in program.clients]
        last_block = self._stand.last_block()
        self._first_id = IDS_OF_BLOCK * last_block
        self._worlds = [World(COMMANDS, numbers, last_block, **blocks)]
        self._follows_lives = program.flavour == "lists"
        self._natives = Natives(self._stand, follows_lives=self._follows_lives)
        self._sessions = [Session() for _ in program.clients]
        self._wires: list[Wire] = []
        self._has_replies = asyncio.Event()
        self._number = 0
        self._done: list[Step] = []
        self._servers = sorted({server for _, server in program.clients})

    async def run(self) -> None:
        for number in range(len(self._program.clients)):
            self._wires.append(await self._connect(number))
        for server in self._servers:
            await self._await_clients(server)
        for steps in self._races():
            self._number += len(steps)
            if not await self._do(steps):
                self._tally.given_up += 1
                return
        if self._waits:
            await self._compare_contents()
        else:
            await self._check()
            await self._compare_jobs()
            # What they have reserved comes back.
            for number in range(len(self._program.clients)):
                await self._do([Step(number, ())])

    async def end(self) -> None:
        """Disconnect all clients and delete all queues."""
        await asyncio.gather(*(wire.close() for wire in self._wires))
        end = time.monotonic() + TIMEOUT
        for server, control in enumerate(self._controls):
            while await self._blocked(server) and time.monotonic() < end:  # noqa: ASYNC110 -- there is no event
                await asyncio.sleep(_POLL_INTERVAL)
            await self._await_count(control, 0)
        if self._waits:
            await _ask(self._controls[0], "FLUSHALL")
        self._stand.forget_all()

    async def _connect(self, number: int) -> Wire:
        kind, server = self._program.clients[number]
        made = wire(kind, self._stand.servers(self._program.flavour)[server], self._stand.backend)
        await made.connect()
        made.on_reply = self._has_replies.set
        self._sessions[number] = Session()
        return made

    # Steps

    def _races(self) -> Iterator[list[Step]]:
        """Yield the steps that are done at the same time: one, or several of different clients."""
        steps: list[Step] = []
        for step in self._program.steps:
            if steps and not (steps[-1].races and self._may_race(step, steps)):
                yield steps
                steps = []
            steps.append(step)
        if steps:
            yield steps

    def _may_race(self, step: Step, others: list[Step]) -> bool:
        """Return whether this is a step of a server's client that has none among the others."""
        return (
            step.client not in (NOBODY, *(other.client for other in others))
            and self._program.clients[step.client][0] not in NATIVE_KINDS
        )

    async def _do(self, steps: list[Step]) -> bool:
        """Do steps at the same time, if they are possible. Return False if there are too many worlds."""
        step = steps[0]
        if step.client == NOBODY:
            await self._do_without_client(step)
            return True
        *others, last = steps
        if others and not (last.commands or self._is_idle(last.client)):
            # What a client gets that hangs up while it waits is open: it does that after the others.
            return await self._do(others) and await self._do([last])
        if not (last.commands or self._may_hang_up(last.client)):
            return True
        done = len(self._done)
        sent = [
            (step, commands)
            for step in steps
            if step.commands and (commands := self._begin(step, len(steps) > 1))
        ]
        leaving = [] if last.commands else [last]
        for step in leaving:
            self._begin_to_leave(step)
        if not (sent or leaving):
            return True
        self._done[done:-1] = [one._replace(races=True) for one in self._done[done:-1]]
        deletes = bool(sent) and self._deletes_list(sent[0][1])
        if not self._think():
            return False
        self._tally.races += len(sent) + len(leaving) > 1
        for step, commands in sent:
            self._count(step, commands)
        await asyncio.gather(
            *(self._wires[step.client].send(tuple(commands)) for step, commands in sent),
            *(self._leave(step) for step in leaving),
        )
        await self._settle()
        await self._check()
        if deletes and not self._worlds[0].home.as_it_is(_LIST).has_keys:
            self._check_that_no_key_is_left()
        return len(self._worlds) <= _MAX_WORLDS

    def _deletes_list(self, commands: list[Words]) -> bool:
        is_deletion = self._follows_lives and commands[-1][0] == "DEL"
        return is_deletion and self._worlds[0].queue(_LIST) is not None

    def _check_that_no_key_is_left(self) -> None:
        if left := self._stand.keys(_LIST):
            raise self._difference(f"keys are left: {left}")

    def _begin(self, step: Step, races: bool) -> list[Words]:
        """Let a client of all worlds begin a step. Return its commands, or none if the step is impossible."""
        if not self._is_idle(step.client):
            return []
        kind = self._program.clients[step.client][0]
        world, session = self._worlds[0], deepcopy(self._sessions[step.client])
        some = [shifted(words, self._first_id) for words in step.commands]
        some = [one for words in some for one in picked(words, world, step.client, kind)]
        commands = [one for words in some for one in spelt(words, world, session)]
        sending = Sending(commands, self._worlds, races, self._waits, self._stand.is_spread)
        if not commands or is_open(sending) or not self._natives.allow(commands, world):
            return []
        self._sessions[step.client] = session
        self._note_done(step.client, *some)
        self._natives.note_commands(commands)
        for world in self._worlds:
            if self._follows_lives:
                world.home.actor = self._stand.identities[self._program.clients[step.client][1]]
            world.clients[step.client].pending = list(commands)
            world.clients[step.client].last_put = ()
        return commands

    def _note_done(self, client: int, *commands: Words) -> None:
        self._done.append(Step(client, tuple(shifted(words, -self._first_id) for words in commands)))

    def _think(self) -> bool:
        """Let the worlds go on. Return False if there are too many."""
        try:
            worlds = {world.key(): world for before in self._worlds for world in before.outcomes()}
        except TooManyStatesError:
            return False
        self._worlds = list(worlds.values())
        return True

    def _is_idle(self, client: int) -> bool:
        return all(world.clients[client].is_idle for world in self._worlds)

    def _may_hang_up(self, client: int) -> bool:
        clients = [world.clients[client] for world in self._worlds]
        return not any(client.outbox and not client.held_back for client in clients)

    def _begin_to_leave(self, step: Step) -> None:
        self._done.append(step)
        for world in self._worlds:
            world.hang_up(step.client)

    async def _leave(self, step: Step) -> None:
        """Let a client hang up and reconnect."""
        number = step.client
        server = self._program.clients[number][1]
        await self._wires[number].close()
        await self._await_clients(server, without=number)
        names = sorted({name for world in self._worlds for name in world.names()})
        # What the connection gives up comes before these commands in the server's lanes.
        await _ask_all(self._controls[server], *(("SCARD", name) for name in names * 2))
        self._wires[number] = await self._connect(number)
        await self._await_clients(server)
        self._tally.steps += 1

    async def _do_without_client(self, step: Step) -> None:
        """Let a native client go on, or the time of a job end."""
        (world,) = self._worlds
        (words,) = step.commands
        if words[0] == "time ends":
            some = [
                (name, job)
                for name, job in world.jobs(DELAYED, RESERVED)
                if not job.is_due and (job.state == DELAYED or job.time_to_run) and "+" not in name
            ]
            place = words[1]
            if isinstance(place, JobId):
                some = [one for one in some if one[1].id == self._first_id + place]
            if some:
                name, job = some[place % len(some)]
                # Long ago, in the order in which times end.
                world.clock += 1
                self._stand.end_time(name, job.state, job.id, world.clock)
                job.is_due, job.place = True, world.clock - 1_000_000_000
                self._note_done(NOBODY, ("time ends", JobId(job.id)))
            return
        if self._natives.do(words, world):
            self._done.append(step)
            if difference := self._difference_now() or await self._difference_in_mirror():
                raise self._difference(difference)

    def _count(self, step: Step, commands: list[Words]) -> None:
        self._tally.steps += 1
        self._tally.waits += any(world.clients[step.client].waiting for world in self._worlds)
        for words in commands:
            self._tally.commands[words[0]] = self._tally.commands.get(words[0], 0) + 1

    # Replies

    async def _settle(self) -> None:
        """Return when the servers are in the state of one of the worlds. Raise Difference."""
        if any(world.short_times for world in self._worlds):
            # The time begins when the command gets to the backend, which may be late on a busy machine.
            await asyncio.sleep(10 * SHORT)
            for world in self._worlds:
                world.short_times = 0
        end = time.monotonic() + self._reply_timeout
        blocked: list[int] = []
        while True:
            self._has_replies.clear()
            self._read()
            settled = [world for world in self._worlds if world.is_settled]
            if settled and not self._waits:
                return
            if settled:
                blocked = await asyncio.gather(*map(self._blocked, self._servers))
                possible = [[world.blocked(server) for server in self._servers] for world in settled]
                if blocked in possible and not self._has_replies.is_set():
                    return
            if time.monotonic() > end:
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
                        world.learn(outbox.pop(0), reply)
                        possible.append(world)
                if not possible:
                    raise self._difference(f"client {number} got the reply {reply!r}")
                self._worlds = list({world.key(): world for world in possible}.values())

    async def _blocked(self, server: int) -> int:
        return await self._figure(self._controls[server], "blocked_clients")

    @staticmethod
    async def _figure(control: RespWire, name: str) -> int:
        about = await _ask(control, "INFO", "clients")
        for line in about.decode().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.partition(":")[2])
        raise AssertionError(about)

    async def _await_clients(self, server: int, without: int = -1) -> None:
        """Wait until a server knows which clients of the program are connected: all but one."""
        kinds = [
            kind
            for number, (kind, its_server) in enumerate(self._program.clients)
            if its_server == server and number != without and kind not in NATIVE_KINDS
        ]
        await self._await_count(self._controls[server], len(kinds))

    async def _await_count(self, control: RespWire, count: int) -> None:
        end = time.monotonic() + TIMEOUT
        # Each look is a round trip; a pause between them would take longer than the server does.
        while await self._figure(control, "connected_clients") != count + 1:
            assert time.monotonic() < end, f"the server does not have {count} clients besides this one"

    # Contents

    async def _check(self) -> None:
        """Raise Difference unless the queues are as expected, if one command is done at a time."""
        if self._waits:
            return
        (world,) = self._worlds
        if not self._follows_lives:
            # A command that finds nothing by an id need not come to the queue. Here all see what is due.
            await _ask_all(self._controls[0], *(("SCARD", name) for name in world.names()))
            for name in world.names():
                world.home[name].begin()
        text = self._difference_now() or await self._difference_in_mirror()
        if text := text or await self._difference_in_logs(world):
            raise self._difference(text)

    async def _difference_in_logs(self, world: World) -> str:
        """Return how a log or a group differs, or nothing."""
        control, other = self._controls[:2]
        for name, log in world.logs.items():
            log.begin()
            asked = [("PRESSURE.PENDING", f"{name}+{group}") for group in log.groups]
            told, *found = await _ask_all(control, ("PRESSURE.GROUP", "LIST", name), *asked)
            if isinstance(told, Error):
                return f"{name} should be a log, and is none"
            pending = dict(zip(log.groups, found, strict=True))
            messages = await _ask(other, "LRANGE", name, 0, -1)
            if difference := difference_in_groups(log, told, pending, messages):
                return difference
        return ""

    def _difference_now(self) -> str:
        """Return how the keys differ, or nothing. Then let the reference know the tokens."""
        (world,) = self._worlds
        names = [_LIST] if self._follows_lives else world.names()
        queues = {name: world.home.as_it_is(name) for name in names}
        keys = self._stand.read(names)
        text = difference_in_keys(queues, keys) or difference_in_tokens(queues, keys, self._natives)
        if self._follows_lives:
            found, servers = keys[_LIST].queue, self._stand.identities
            text = text or difference_in_list(queues[_LIST], found, servers, self._natives.undefined)
        self._natives.note(world, keys)
        return text

    async def _difference_in_mirror(self) -> str:
        """Return which messages a server finds in a copy of the list, or does not, by mistake.

        A read may change the mirror, so the list is not asked itself.
        """
        queue = self._worlds[0].home.as_it_is(_LIST)
        if not self._follows_lives or not queue.exists:
            return ""
        self._stand.copy(_LIST, _CLONE)
        found = await _ask(self._controls[self._number % 2], "SMISMEMBER", _CLONE, *FEW)
        return (
            "" if found == queue.contains(FEW) else f"the mirror finds {found} of {FEW} in {queue.messages}"
        )

    async def _compare_jobs(self) -> None:
        """Raise Difference unless all that is told of jobs is right."""
        (world,) = self._worlds
        some = [(name, job) for name, job in world.jobs(*STATES) if "+" not in name]
        asked = [("PRESSURE.JOB", name, job.id) for name, job in some]
        for (name, job), reply in zip(some, await _ask_all(self._controls[0], *asked), strict=True):
            expected = world.home.by_name[name].describe(job.id)
            if not matches(Fields(expected or {}), reply):
                raise self._difference(f"job {job.id} of {name} is {reply}, expected {expected}")

    async def _compare_contents(self) -> None:
        """Raise Difference unless all queues are as in one of the worlds."""
        worlds = [world for world in self._worlds if world.is_settled]
        differences = [await self._difference_in_logs(world) for world in worlds]
        if all(differences):
            raise self._difference(f"at the end: {differences[0]}")
        worlds = [world for world, found in zip(worlds, differences, strict=True) if not found]
        logs = {name for world in worlds for name in world.logs}
        names = sorted(
            name for world in worlds for name in world.home.births if name.partition("+")[0] not in logs
        )
        found: dict[str, Any] = {}
        for name in names:
            control = self._controls[self._servers[0]]
            about = await _ask(control, "PRESSURE.INFO", name)
            if isinstance(about, list):
                info = dict(zip(about[::2], about[1::2], strict=True))
                figures = ("bound", "closed", "produced_messages", "consumed_messages", "reserved", "buried")
                contents = await _ask(control, "LRANGE", name, 0, -1)
                found[name] = (*(info[figure.encode()] for figure in figures), contents)
        expected = [
            {
                name: (
                    queue.bound, int(queue.is_closed), queue.counters.produced, queue.counters.consumed,
                    len(queue.in_state("reserved")), len(queue.in_state("buried")), queue.visible,
                )
                for name, queue in ((name, world.home[name]) for name in world.names())
            }
            for world in worlds
        ]  # fmt: skip
        if found not in expected:
            raise self._difference(
                "at the end the queues (bound, closed, produced, consumed, reserved, buried, messages) are "
                f"{found}, expected one of {expected}"
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
    lines = [f"{program.flavour}; clients: {dict(enumerate(program.clients))}"]
    for step in steps[-last:]:
        what = "; ".join(" ".join(map(_word, words)) for words in step.commands) or "(hangs up)"
        what += " (at the same time as the next)" if step.races else ""
        kind = "" if step.client == NOBODY else f"client {step.client} ({program.clients[step.client][0]}): "
        lines.append(f"  {kind}{what}")
    return "\n".join(lines)


def _word(word: Any) -> str:
    return repr(word) if isinstance(word, bytes) else str(word)
