"""Consumers: clients that take messages and note in the ledger which they have read.

Messages on their way to a connection that is cut are gone. So clients whose connections are cut move messages
to a queue of their own, and remove them there after reading them.
"""

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.caller import Caller
from tests.chaos.ledger import NamedLedger
from tests.chaos.messages import message
from tests.chaos.producers import Pace, Sender
from tests.chaos.tags import beside, together
from tests.support.ledger import Event
from tests.support.replies import Item
from tests.support.waiters import Words

# Ends of names: of queues that are closed and empty, and, followed by its own name, of the queue into which a
# reliable consumer moves messages.
CLOSED, OWN = "closed", "own-"
# Commands that take messages.
TAKING = ("SPOP", "LPOP", "RPOP", "BLPOP", "LMPOP", "BLMPOP", "get")
# Seconds for which a blocking get waits, and between two commands of a client that finds no message.
_WAIT = 0.2
IDLE = 0.02
# A reliable consumer looks into its queue after so many rounds at the latest. Moves that it asked for on a
# connection that was cut may be done late.
_ROUNDS = 20


@dataclass
class Receiver:
    """A client that tells the ledger which messages it has read."""

    caller: Caller
    ledger: NamedLedger

    def receive(self, items: Iterable[Item]) -> None:
        """Note messages that were read."""
        for item in items:
            self.ledger.read(item.data, self._receipt(item), item.flags)

    def see(self, items: Iterable[Item]) -> list[bytes]:
        """Note messages that were read, and that stay in their queue or are put back. Return their names."""
        names = [self.ledger.see(item.data, self._receipt(item), item.flags) for item in items]
        return [name for name in names if name]

    def receive_replies(self, commands: Sequence[Words], replies: Sequence[Any]) -> int:
        """Note the messages in the replies, the last of which may be missing. Return their number."""
        items = [
            item for words, reply in zip(commands, replies, strict=False) for item in items_in(words, reply)
        ]
        self.receive(items)
        return len(items)

    def _receipt(self, item: Item) -> Event:
        queue = item.key.partition("/")[0]
        return Event(self.caller.name, queue, self.caller.proxy, time.monotonic())


def items_in(words: Words, reply: Any) -> list[Item]:
    """Return the messages of a reply, none if the command takes nothing. Redis replies have no flags."""
    if reply is None or isinstance(reply, Exception) or words[0] not in TAKING:
        return []
    if words[0] == "get":
        return reply if isinstance(reply, list) else []
    queue, data = reply if words[0] in ("BLPOP", "LMPOP", "BLMPOP") else (str(words[1]).encode(), reply)
    return [Item(queue.decode(), None, one) for one in (data if isinstance(data, list) else [data])]


@dataclass
class Consumer(Receiver, ABC):
    """A client that takes messages from queues."""

    queues: list[str]
    chance: random.Random

    async def work(self) -> None:
        """Run rounds until cancelled."""
        while True:
            if not await self.round():
                await asyncio.sleep(IDLE)

    @abstractmethod
    async def round(self) -> bool:
        """Send commands and note the messages. Return False to rest before the next round."""


class Taker(Consumer):
    """Takes by `SPOP`, `LPOP`, `RPOP`, `BLPOP` and `BLMPOP`, one command or several in one write."""

    async def round(self) -> bool:
        commands = [self._command() for _ in range(self.chance.choice((1, 1, 4)))]
        replies = await self.caller.ask(*commands, waits=_total_wait(commands))
        return self.receive_replies(commands, replies) > 0

    def _command(self) -> Words:
        queue = self.chance.choice(self.queues)
        forms: list[Words] = [
            ("SPOP", queue),
            ("SPOP", queue, self.chance.randint(2, 30)),
            ("LPOP", queue),
            ("RPOP", queue, self.chance.randint(2, 30)),
            ("BLPOP", queue, _WAIT),
            ("BLPOP", *self.chance.sample(self.queues, 2), _WAIT),
            ("BLMPOP", _WAIT, 2, *self.chance.sample(self.queues, 2), "LEFT", "COUNT", 10),
        ]
        return self.chance.choice(forms)


def _total_wait(commands: list[Words]) -> float:
    """Return the seconds for which the commands may wait for messages in total."""
    return _WAIT * sum(str(words[0]).startswith("BL") for words in commands)


class TransactionConsumer(Consumer):
    """Takes in transactions that name a closed, empty queue before an open one."""

    async def round(self) -> bool:
        queue = self.chance.choice(self.queues)
        forms: list[Words] = [
            ("BLPOP", beside(queue, CLOSED), queue, 0.1),
            ("LMPOP", 2, beside(queue, CLOSED), queue, "LEFT", "COUNT", 2),
        ]
        commands = [self.chance.choice(forms)]
        self.receive_replies(commands, await self._transaction(commands))
        return False

    async def _transaction(self, commands: list[Words]) -> list[Any]:
        """Run a transaction. Return the replies to its commands, none if it was not executed."""
        replies = await self.caller.ask(("MULTI",), *commands, ("EXEC",))
        done = replies[-1] if len(replies) == len(commands) + 2 else None
        if not isinstance(done, list):
            return []
        assert len(done) == len(commands)
        return done


@dataclass
class Exchanger(TransactionConsumer):
    """Takes and puts in one transaction. After the pace is over, it only takes."""

    sender: Sender
    pace: Pace

    async def round(self) -> bool:
        source, sink = self.chance.sample(self.chance.choice(together(self.queues)), 2)
        names = [] if self.pace.is_over else self.sender.new(sink, 3)
        puts: list[Words] = [("SADD", sink, *map(message, names))] if names else []
        gets: list[Words] = [("SPOP", source, 5), ("LPOP", source)]
        replies = await self._transaction([*puts, *gets])
        if replies and puts:
            self.sender.note_reply(puts[0], names, replies.pop(0))
        self.receive_replies(gets, replies)
        return False


@dataclass
class ReliableConsumer(Consumer):
    """Moves messages from queues with the same tag to one of its own, and removes them after reading them.

    After an error or a break it looks into its own queue first.
    """

    def __post_init__(self) -> None:
        self.queues = self.chance.choice(together(self.queues))
        self._own = beside(self.queues[0], OWN + self.caller.name)
        # Messages that were read, and may still be in the queue.
        self._read: set[bytes] = set()
        self._must_look = True
        self._rounds = 0

    async def round(self) -> bool:
        self._rounds += 1
        if self._must_look or self._rounds % _ROUNDS == 0:
            await self._look()
            return True
        return await self._move() > 0

    async def _look(self) -> None:
        (found,) = await self.caller.ask(("LRANGE", self._own, 0, -1)) or [None]
        self._must_look = not isinstance(found, list)
        if isinstance(found, list):
            self._read &= set(found)  # the others have been removed
            self._receive_moved(data for data in found if data not in self._read)
            await self._remove(found)

    async def _move(self) -> int:
        commands: list[Words] = []
        for _ in range(self.chance.choice((1, 10))):
            queue = self.chance.choice(self.queues)
            forms: list[Words] = [
                ("LMOVE", queue, self._own, "LEFT", "RIGHT"),
                ("RPOPLPUSH", queue, self._own),
                ("BLMOVE", queue, self._own, "LEFT", "RIGHT", _WAIT),
            ]
            commands.append(self.chance.choice(forms))
        replies = await self.caller.ask(*commands, waits=_total_wait(commands))
        moved = [reply for reply in replies if isinstance(reply, bytes)]
        if len(replies) < len(commands) or any(isinstance(reply, Exception) for reply in replies):
            self._must_look = True
        self._receive_moved(moved)
        await self._remove(moved)
        return len(moved)

    def _receive_moved(self, messages: Iterable[bytes]) -> None:
        self.receive(Item(self._own, None, data) for data in messages)

    async def _remove(self, messages: list[bytes]) -> None:
        self._read.update(messages)
        if messages:
            replies = await self.caller.ask(("SREM", self._own, *messages))
            if not replies or isinstance(replies[0], Exception):
                self._must_look = True
            else:
                self._read.difference_update(messages)
