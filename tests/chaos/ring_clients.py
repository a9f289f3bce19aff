"""Clients of a ring, a log that keeps the newest messages, whose groups come and go.

What a group misses, and what nobody has read when it is deleted, is not lost, so there is no ledger. But a
message has one offset, whoever reads it, and a command that cannot be done has one of the known errors.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.caller import Caller
from tests.chaos.journal import Journal
from tests.chaos.maker import Maker
from tests.chaos.messages import make_name, message, name_of
from tests.support.waiters import Words

# With a tag, so that both are in one shard.
RING, _DEAD = "{ring}", "{ring}-dead"
_BOUND = 200
_GROUPS = ("one", "two", "three")
_CLIENTS = 4
# The longest time between two commands, in seconds.
_INTERVAL = 0.05
_MOST_READ = 100
# The server refuses wider ranges of ids, which a group reads after it has fallen far behind.
_WIDEST_RANGE = 64_000
# Errors that a command may have because other clients make and delete groups, and because of faults.
_ERRORS = ("NOGROUP", "EXISTS", "GONE", "AHEAD", "NOQUEUE", "BACKEND", "STOPPING", "TYPE")


@dataclass
class _Ring:
    """The offsets of messages, and the messages at offsets, as replies have had them."""

    journal: Journal
    offsets: dict[bytes, int] = field(default_factory=dict)
    names: dict[int, bytes] = field(default_factory=dict)

    def find(self, data: bytes, offset: int, by: str) -> None:
        """Note a message that was read, or put, with its offset."""
        try:
            name = name_of(data)
        except ValueError:
            self.journal.complain(f"{by} got {data[:60]!r} from the ring, which nobody put")
            return
        if self.offsets.setdefault(name, offset) != offset or self.names.setdefault(offset, name) != name:
            self.journal.contradict(
                f"{by} found {name!r} at {offset}: {self.offsets[name]}, {self.names[offset]!r}"
            )


@dataclass
class RingClient:
    """Puts, reads, acknowledges, takes over, and changes groups, in any order."""

    caller: Caller
    number: int
    ring: _Ring
    chance: random.Random

    def __post_init__(self) -> None:
        self._made = 0
        # By group, the ids that this client has read last.
        self._read: dict[str, list[int]] = {}

    async def work(self) -> None:
        """Work until cancelled."""
        steps = [self._put] * 6 + [self._take] * 6 + [self._end] * 6 + [self._change]
        while True:
            await asyncio.sleep(self.chance.uniform(0, _INTERVAL))
            await self.chance.choice(steps)()

    async def _ask(self, *words: Any) -> Any:
        """Return the reply, None if there is none, or an error that is known."""
        replies = await self.caller.ask(words)
        reply = replies[0] if replies else None
        if isinstance(reply, Exception):
            if not str(reply).startswith(_ERRORS) or "user_function" in str(reply):
                self.ring.journal.complain(f"{words!r}: {reply}")
            return None
        return reply

    async def _put(self) -> None:
        for _ in range(self.chance.randint(1, 30)):
            self._made += 1
            data = message(make_name(self.number, self._made))
            offset = await self._ask("PRESSURE.PUT", RING, data, "OFFSET")
            if offset is not None:
                self.ring.find(data, offset, self.caller.name)

    async def _take(self) -> None:
        group, consumer = self._group(), self.caller.name
        count, ttr = self.chance.randint(1, _MOST_READ), self.chance.choice((0.1, 1, 5))
        if self.chance.random() < 0.8:
            words: Words = ("PRESSURE.READ", RING, "GROUP", group, consumer, "COUNT", count, "TTR", ttr)
        else:
            words = ("PRESSURE.CLAIM", f"{RING}+{group}", consumer, "COUNT", count, "TTR", ttr)
        found = await self._ask(*words) or []
        for _, data, _, offset in found:
            self.ring.find(data, offset, self.caller.name)
        if found:
            self._read[group] = [one[0] for one in found]

    async def _end(self) -> None:
        group = self._group()
        ids = self._read.pop(group, None)
        if not ids:
            return
        queue, some = f"{RING}+{group}", self._some(sorted(ids))
        token = ("TOKEN", self.caller.name)
        match self.chance.choice(("ack", "ack", "ids", "touch", "release", "bury")):
            case "ack":
                await self._ask("PRESSURE.ACK", queue, "FROM", some[0], "TO", some[-1], *token)
            case "ids":
                await self._ask("PRESSURE.ACK", queue, *some, *token)
            case "touch":
                await self._ask("PRESSURE.TOUCH", queue, "FROM", some[0], "TO", some[-1], *token)
                self._read[group] = ids
            case "release":
                await self._ask("PRESSURE.RELEASE", queue, some[0], *token)
            case _:
                await self._ask("PRESSURE.BURY", queue, some[0], *token)
        await self._ask("PRESSURE.PENDING", queue)

    async def _change(self) -> None:
        group = self._group()
        start = self.chance.choice(("head", "tail"))
        match self.chance.choice(("create", "create", "seek", "kick", "limit", "delete")):
            case "create":
                await self._ask("PRESSURE.GROUP", "CREATE", RING, group, "FROM", start)
            case "seek":
                await self._ask("PRESSURE.GROUP", "SEEK", RING, group, "FROM", start)
            case "kick":
                await self._ask("PRESSURE.KICK", f"{RING}+{group}", 20)
            case "limit":
                await self._ask(
                    "PRESSURE.ALTER", f"{RING}+{group}", "MAX-DELIVERIES", 3, "DEAD-LETTER", _DEAD
                )
            case _:
                await self._ask("PRESSURE.GROUP", "DELETE", RING, group)
                self._read.pop(group, None)

    def _group(self) -> str:
        return self.chance.choice(_GROUPS)

    def _some(self, ids: Sequence[int]) -> Sequence[int]:
        """Return neighbours among the ids, as many as one range may have."""
        first = self.chance.randrange(len(ids))
        some = ids[first : first + self.chance.randint(1, len(ids))]
        return [one for one in some if one - some[0] < _WIDEST_RANGE]


class RingClients:
    """Makes the clients, and the ring, which is deleted when the other queues are drained."""

    def __init__(self, maker: Maker, journal: Journal) -> None:
        self._maker = maker
        self._ring = _Ring(journal)

    def clients(self) -> list[RingClient]:
        """Return the clients."""
        made: list[RingClient] = []
        for _ in range(_CLIENTS):
            caller = self._maker.caller("ring")
            made.append(RingClient(caller, self._maker.made, self._ring, self._maker.chance()))
        return made

    async def create(self, caller: Caller) -> None:
        """Create the ring, and the queue of its groups' dead letters."""
        await caller.ask(
            ("PRESSURE.CREATE", RING, "BOUND", _BOUND, "OVERFLOW", "OVERWRITE", "TYPE", "LOG"),
            ("PRESSURE.CREATE", _DEAD),
            *(("PRESSURE.GROUP", "CREATE", RING, group) for group in _GROUPS),
        )

    async def delete(self) -> None:
        """Delete both queues, and with the ring its groups."""
        caller = self._maker.caller("ring-end")
        while await caller.ask(("EXISTS", RING, _DEAD)) != [0]:
            await caller.ask(("DEL", RING, _DEAD))
        caller.close()
