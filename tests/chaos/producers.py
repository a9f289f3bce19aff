"""Producers: they put new messages, in each of the ways there are, and note which were acknowledged."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from tests.chaos.caller import Caller
from tests.chaos.journal import Journal
from tests.chaos.messages import message, name
from tests.support.ledger import Event, Ledger
from tests.support.waiters import Words

_LOOK_AGAIN = 0.01


class Pace:
    """How fast messages come: as `total` of them in `seconds` do; who is late goes as fast as it can."""

    def __init__(self, ledger: Ledger, total: int, seconds: float) -> None:
        self._ledger = ledger
        self._total = total
        self._seconds = max(seconds, 1.0)
        self._began = time.monotonic()
        self.is_over = False

    async def next(self) -> bool:
        """Return when the next message is due; whether there is any."""
        while not self.is_over:
            part = (time.monotonic() - self._began) / self._seconds
            if self._ledger.acknowledged < self._total * part:
                return True
            await asyncio.sleep(_LOOK_AGAIN)
        return False


class Sender:
    """Makes new messages, each once, and tells the ledger of them."""

    def __init__(self, number: int, caller: Caller, ledger: Ledger, journal: Journal) -> None:
        self._number = number
        self._caller = caller
        self._ledger = ledger
        self._journal = journal
        self._made = 0

    def new(self, queue: str, count: int, flags: int = 0) -> list[bytes]:
        """Names of messages that are about to be put into that queue, with these flags."""
        names = [name(self._number, self._made + n, flags) for n in range(count)]
        self._made += count
        self._ledger.send(names, Event(self._caller.name, queue, self._caller.proxy, time.monotonic()))
        return names

    def replied(self, words: Words, names: list[bytes], reply: Any) -> None:
        """What the put of these was answered."""
        if isinstance(reply, Exception):
            return
        if reply == b"NOT_STORED" or (words[0] == "SADD" and reply != len(names)):
            self._journal.complain(
                f"{self._caller.name}: {words[0]!s} {words[1]!s} of {len(names)} new messages, the first "
                f"{names[0].decode()}, was answered {reply!r}"
            )
        if reply != b"NOT_STORED":
            self._ledger.acknowledge(names)


class Producer:
    """One client that puts, until the pace is over."""

    def __init__(
        self,
        caller: Caller,
        sender: Sender,
        queues: list[str],
        pace: Pace,
        chance: random.Random,
    ) -> None:
        self._caller = caller
        self._sender = sender
        self._queues = queues
        self._pace = pace
        self._chance = chance

    async def work(self) -> None:
        """A command, or several in one write."""
        while await self._pace.next():
            await self._put(self._chance.choice((1, 1, 1, 5)))
        self._caller.close()

    async def _put(self, count: int) -> None:
        puts: list[tuple[Words, list[bytes]]] = []
        for _ in range(count):
            queue = self._chance.choice(self._queues)
            command, most = self._chance.choice((("SADD", 1), ("SADD", 20), ("LPUSH", 1), ("RPUSH", 5)))
            names = self._sender.new(queue, self._chance.randint(1, most))
            puts.append(((command, queue, *map(message, names)), names))
        replies = await self._caller.ask(*(words for words, _ in puts))
        # Those that have no reply are unsure.
        for (words, names), reply in zip(puts, replies, strict=False):
            self._sender.replied(words, names, reply)
