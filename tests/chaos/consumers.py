"""Consumers: whoever takes messages, and tells the ledger of those it has read.

What has been handed to a connection that is cut is gone: a plain get promises no more. So those whose
connections are cut move messages to a queue of their own, and remove them there when they have read them.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from tests.chaos.caller import Caller
from tests.chaos.ledger import NamedLedger
from tests.chaos.memcached import Item
from tests.chaos.messages import message
from tests.chaos.producers import Pace, Sender
from tests.support.ledger import Event
from tests.support.waiters import Words

# What names of queues begin with into which consumers move what they take.
OWN = "own-"
# Seconds for which a blocking get waits, and for which nobody asks where nothing was to be had.
_WAIT = 0.2
IDLE = 0.02
# A reliable consumer also looks after so many rounds: what it asked for on a connection that was cut may come
# to its queue late.
_ROUNDS = 20


class Receiver:
    """Tells the ledger what one client has read."""

    def __init__(self, caller: Caller, ledger: NamedLedger) -> None:
        self._caller = caller
        self._ledger = ledger

    def receive(self, messages: list[bytes], queue: str) -> None:
        """They have been read."""
        for data in messages:
            self._ledger.read(data, self._receipt(queue))

    def receive_item(self, item: Item, queue: str) -> None:
        """It has been read."""
        self._ledger.read(item.data, self._receipt(queue), item.flags)

    def see_item(self, item: Item, queue: str) -> None:
        """It has been read, and will be again: it stays in the queue, or goes back."""
        self._ledger.see(item.data, self._receipt(queue), item.flags)

    def _receipt(self, queue: str) -> Event:
        return Event(self._caller.name, queue, self._caller.proxy, time.monotonic())


class Taker:
    """Takes by `SPOP`, `LPOP`, `BLPOP` and `BLMPOP`, on a connection that is not cut."""

    def __init__(self, caller: Caller, ledger: NamedLedger, queues: list[str], chance: random.Random) -> None:
        self._caller = caller
        self._receiver = Receiver(caller, ledger)
        self._queues = queues
        self._chance = chance

    async def work(self) -> None:
        """One command after the other, or several in one write, until cancelled."""
        while True:
            commands = [self._command() for _ in range(self._chance.choice((1, 1, 4)))]
            replies = await self._caller.ask(*commands, waits=_waits(commands))
            taken = 0
            for words, reply in zip(commands, replies, strict=False):
                if reply is None or isinstance(reply, Exception):
                    continue
                queue, messages = read(words, reply)
                self._receiver.receive(messages, queue)
                taken += len(messages)
            if not taken:
                await asyncio.sleep(IDLE)

    def _command(self) -> Words:
        queue = self._chance.choice(self._queues)
        ways: list[Words] = [
            ("SPOP", queue),
            ("SPOP", queue, self._chance.randint(2, 30)),
            ("LPOP", queue),
            ("RPOP", queue, self._chance.randint(2, 30)),
            ("BLPOP", queue, _WAIT),
            ("BLPOP", *self._chance.sample(self._queues, 2), _WAIT),
            ("BLMPOP", _WAIT, 2, *self._chance.sample(self._queues, 2), "LEFT", "COUNT", 10),
        ]
        return self._chance.choice(ways)


def _waits(commands: list[Words]) -> float:
    """Seconds for which these may wait for messages, together."""
    return _WAIT * sum(str(words[0]).startswith("BL") for words in commands)


def read(words: Words, reply: Any) -> tuple[str, list[bytes]]:
    """The queue, and the messages."""
    if words[0] == "BLPOP":
        return reply[0].decode(), [reply[1]]
    if words[0] in ("LMPOP", "BLMPOP"):
        return reply[0].decode(), reply[1]
    return str(words[1]), reply if isinstance(reply, list) else [reply]


class Exchanger:
    """Takes and puts in one transaction, on a connection that is not cut; then, the pace over, only takes."""

    def __init__(
        self,
        caller: Caller,
        ledger: NamedLedger,
        sender: Sender,
        queues: list[str],
        pace: Pace,
        chance: random.Random,
    ) -> None:
        self._caller = caller
        self._receiver = Receiver(caller, ledger)
        self._sender = sender
        self._queues = queues
        self._pace = pace
        self._chance = chance

    async def work(self) -> None:
        """Transactions, until cancelled."""
        while True:
            source, sink = self._chance.sample(self._queues, 2)
            names = self._sender.new(sink, 3) if not self._pace.is_over else []
            puts: list[Words] = [("SADD", sink, *map(message, names))] if names else []
            gets: list[Words] = [("SPOP", source, 5), ("LPOP", source)]
            commands: list[Words] = [*puts, *gets]
            replies = await self._caller.ask(("MULTI",), *commands, ("EXEC",))
            done = replies[-1] if len(replies) == len(commands) + 2 else None
            if isinstance(done, list):
                self._are_done(commands, done, names)
            await asyncio.sleep(IDLE)

    def _are_done(self, commands: list[Words], replies: list[Any], names: list[bytes]) -> None:
        for words, reply in zip(commands, replies, strict=True):
            if words[0] == "SADD":
                self._sender.replied(words, names, reply)
            elif reply is not None and not isinstance(reply, Exception):
                queue, messages = read(words, reply)
                self._receiver.receive(messages, queue)


class BesideClosed:
    """Takes in transactions that name a closed, empty queue before an open one. Its connection is not cut."""

    def __init__(
        self, caller: Caller, ledger: NamedLedger, closed: str, queues: list[str], chance: random.Random
    ) -> None:
        self._caller = caller
        self._receiver = Receiver(caller, ledger)
        self._closed = closed
        self._queues = queues
        self._chance = chance

    async def work(self) -> None:
        """Run transactions until cancelled."""
        while True:
            queue = self._chance.choice(self._queues)
            ways: list[Words] = [
                ("BLPOP", self._closed, queue, 0.1),
                ("LMPOP", 2, self._closed, queue, "LEFT", "COUNT", 2),
            ]
            words = self._chance.choice(ways)
            replies = await self._caller.ask(("MULTI",), words, ("EXEC",))
            done = replies[-1] if len(replies) == 3 else None
            if isinstance(done, list) and isinstance(done[0], list):
                self._receiver.receive(read(words, done[0])[1], queue)
            await asyncio.sleep(IDLE)


class Reliable:
    """Moves messages to a queue of its own, and removes what it has read.

    Looks there first when it was broken off.
    """

    def __init__(self, caller: Caller, ledger: NamedLedger, queues: list[str], chance: random.Random) -> None:
        self.own = OWN + caller.name
        self._caller = caller
        self._receiver = Receiver(caller, ledger)
        self._queues = queues
        self._chance = chance
        # Read, and maybe not removed yet.
        self._read: set[bytes] = set()
        self._must_look = True
        self._rounds = 0

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            self._rounds += 1
            if self._must_look or self._rounds % _ROUNDS == 0:
                await self._look()
            elif not await self._move():
                await asyncio.sleep(IDLE)

    async def _look(self) -> None:
        (found,) = await self._caller.ask(("LRANGE", self.own, 0, -1)) or [None]
        self._must_look = not isinstance(found, list)
        if isinstance(found, list):
            # What was read before and is not there any longer has been removed.
            self._read &= set(found)
            self._receiver.receive([data for data in found if data not in self._read], self.own)
            await self._remove(found)

    async def _move(self) -> int:
        commands: list[Words] = []
        for _ in range(self._chance.choice((1, 10))):
            queue = self._chance.choice(self._queues)
            commands.append(
                self._chance.choice(
                    (
                        ("LMOVE", queue, self.own, "LEFT", "RIGHT"),
                        ("RPOPLPUSH", queue, self.own),
                        ("BLMOVE", queue, self.own, "LEFT", "RIGHT", _WAIT),
                    )
                )
            )
        replies = await self._caller.ask(*commands, waits=_waits(commands))
        moved = [reply for reply in replies if isinstance(reply, bytes)]
        if len(replies) < len(commands) or any(isinstance(reply, Exception) for reply in replies):
            self._must_look = True
        self._receiver.receive(moved, self.own)
        await self._remove(moved)
        return len(moved)

    async def _remove(self, messages: list[bytes]) -> None:
        self._read.update(messages)
        if messages:
            replies = await self._caller.ask(("SREM", self.own, *messages))
            if not replies or isinstance(replies[0], Exception):
                self._must_look = True
            else:
                self._read.difference_update(messages)
