"""Producers: clients that put new messages and note in the ledger which were acknowledged."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.chaos.caller import Caller
from tests.chaos.journal import Journal
from tests.chaos.ledger import NamedLedger
from tests.chaos.messages import make_name, message
from tests.support.ledger import Event
from tests.support.waiters import Words

_POLL_INTERVAL = 0.01

# A command that puts messages, and their names.
Put = tuple[Words, list[bytes]]


class Pace:
    """The rate of puts: producers put as fast as they can, until a `share` of the `total` is acknowledged.

    `count` returns how many messages are.
    """

    def __init__(self, count: Callable[[], int], total: float, share: Callable[[], float]) -> None:
        self._count = count
        self._total = total
        self._share = share
        self.is_over = False

    async def next(self) -> bool:
        """Wait until the next put is due. Return False if the pace is over."""
        while not self.is_over:
            if self._count() < self._total * self._share():
                return True
            await asyncio.sleep(_POLL_INTERVAL)
        return False


class Sender:
    """Makes new messages and tells the ledger of them. `number` is part of their names."""

    def __init__(self, number: int, caller: Caller, ledger: NamedLedger, journal: Journal) -> None:
        self._number = number
        self._caller = caller
        self._ledger = ledger
        self._journal = journal
        self._made = 0

    def new(self, queue: str, count: int, flags: int = 0) -> list[bytes]:
        """Return names of messages that are about to be put into the queue, with these flags."""
        names = [make_name(self._number, self._made + n, flags) for n in range(count)]
        self._made += count
        self._ledger.send(names, Event(self._caller.name, queue, self._caller.proxy, time.monotonic()))
        return names

    def new_job(self, queue: str, ttr: float) -> bytes:
        """Return the name of a job that is about to be put into the queue, with this time to run."""
        (name,) = self.new(queue, 1)
        self._ledger.send_job(name, ttr)
        return name

    async def put(self, puts: Sequence[Put]) -> None:
        """Send puts in one write. Messages whose put gets no reply stay unsure."""
        replies = await self._caller.ask(*(words for words, _ in puts))
        for (words, names), reply in zip(puts, replies, strict=False):
            self.note_reply(words, names, reply)

    def note_reply(self, words: Words, names: list[bytes], reply: Any) -> None:
        """Acknowledge the messages, unless the reply refuses them."""
        if isinstance(reply, Exception):
            return
        if reply == b"NOT_STORED" or (words[0] == "SADD" and reply != len(names)):
            self._journal.complain(
                f"{self._caller.name}: the reply to {words[0]!s} {words[1]!s} of {len(names)} new messages, "
                f"the first {names[0].decode()}, was {reply!r}"
            )
        if names and self._ledger.is_job(names[0]):
            job = reply if isinstance(reply, int) else int(reply.removeprefix(b"INSERTED "))
            self._ledger.inserted(names[0], job)
        elif reply != b"NOT_STORED":
            self._ledger.acknowledge(names)


@dataclass
class Producer:
    """Puts by `SADD`, `LPUSH` and `RPUSH`, one command or several in one write, until the pace is over."""

    # Numbers of commands in one write.
    batches: ClassVar[Sequence[int]] = (1, 1, 1, 5)

    caller: Caller
    sender: Sender
    queues: list[str]
    pace: Pace
    chance: random.Random

    async def work(self) -> None:
        while await self.pace.next():
            await self.sender.put(self._puts(self.chance.choice(self.batches)))
        self.caller.close()

    def _puts(self, count: int) -> list[Put]:
        puts: list[Put] = []
        for _ in range(count):
            queue = self.chance.choice(self.queues)
            command, most = self.chance.choice((("SADD", 1), ("SADD", 20), ("LPUSH", 1), ("RPUSH", 5)))
            names = self.sender.new(queue, self.chance.randint(1, most))
            puts.append(((command, queue, *map(message, names)), names))
        return puts
