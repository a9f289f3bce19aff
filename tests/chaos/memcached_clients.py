"""Memcached clients that put and take."""

from __future__ import annotations

import asyncio
import random
import time

from tests.chaos.consumers import IDLE, Receiver
from tests.chaos.ledger import NamedLedger
from tests.chaos.memcached import MemcachedCaller
from tests.chaos.messages import message
from tests.chaos.producers import Pace, Sender
from tests.support.waiters import Words

_MOST_FLAGS = 2**32 - 1
# Seconds, behind the end of any run: from now on, and since 1970 (memcached's limit is 30 days).
_HOUR = 3600
_QUARTER = 90 * 24 * 3600


class Setter:
    """Puts by `set` and `add`, until the pace is over. Full queues say so at once."""

    def __init__(
        self,
        caller: MemcachedCaller,
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
        """One command after the other, or several in one write: some like the one before but for the data."""
        while await self._pace.next():
            await self._put(self._chance.choice((1, 1, 5, 20)))
        self._caller.close()

    async def _put(self, count: int) -> None:
        puts: list[tuple[Words, list[bytes]]] = []
        begins = self._beginning()
        for _ in range(count):
            if self._chance.random() < 0.3:
                begins = self._beginning()
            command, queue, flags, expires = begins
            names = self._sender.new(queue, 1, flags)
            puts.append(((command, queue, flags, expires, message(names[0])), names))
        replies = await self._caller.ask(*(words for words, _ in puts))
        # Those that have no reply are unsure.
        for (words, names), reply in zip(puts, replies, strict=False):
            self._sender.replied(words, names, reply)

    def _beginning(self) -> tuple[str, str, int, int]:
        """A command, a queue, flags, and when what is put expires: never, or too late for anybody to see."""
        return (
            self._chance.choice(("set", "set", "add")),
            self._chance.choice(self._queues),
            self._chance.choice((0, 1, self._chance.randint(2, _MOST_FLAGS))),
            self._chance.choice((0, _HOUR, int(time.time()) + _QUARTER)),
        )


class Reader:
    """Takes from these queues, and tells the ledger of what it has read."""

    def __init__(
        self, caller: MemcachedCaller, ledger: NamedLedger, queues: list[str], chance: random.Random
    ) -> None:
        self._caller = caller
        self._receiver = Receiver(caller, ledger)
        self._queues = queues
        self._chance = chance


class Getter(Reader):
    """Takes by `get`, of one queue or several, on a connection that is not cut."""

    async def work(self) -> None:
        """One command after the other, or several in one write, until cancelled."""
        while True:
            commands = [self._command()] * self._chance.choice((1, 1, 4))
            if self._chance.random() < 0.5:
                commands.append(self._command())
            replies = await self._caller.ask(*commands)
            items = [item for reply in replies if isinstance(reply, list) for item in reply]
            for item in items:
                self._receiver.receive_item(item, item.key)
            if not items:
                await asyncio.sleep(IDLE)

    def _command(self) -> Words:
        return ("get", *self._chance.sample(self._queues, self._chance.choice((1, 1, 2, 3))))
