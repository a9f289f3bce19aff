"""Clients that hang up before they have read the reply of a command that takes messages.

A client that reads nothing has got nothing, so the ledger does not hear of it: its messages must arrive at
another client, or they are lost. A reply that is in the client's kernel when the client closes is gone, as
in Redis (docs/reliability.md, "The last hop"). No client here can meet that case:

* those of `HangUps` send and close while the backend stands still, when the server has nothing to send;
* a `Leaver` closes its sending side only, at any moment, and reads all that arrives until the server closes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.chaos.caller import Caller
from tests.chaos.consumers import IDLE, Receiver, read
from tests.chaos.journal import Journal
from tests.chaos.ledger import NamedLedger
from tests.chaos.memcached import MemcachedCaller
from tests.chaos.messages import message
from tests.chaos.producers import Sender
from tests.chaos.stand import Proxy
from tests.support.waiters import Words

# Seconds for which a command waits for a message.
_WAIT = 1
# How many clients hang up on each path in one stall, and how many of all hang up by RST.
_CLIENTS = 3
_RESETS = 0.15
# Seconds for which a leaver stays, on average, if it does not hang up at once.
_STAYS = 0.005
# How many messages the collector takes at most by one command.
_MOST = 20
_TAKING = ("SPOP", "LMPOP", "BLMPOP", "BLPOP", "get")


class Path(NamedTuple):
    """A way to take messages. In `commands` the text `{queue}` stands for the queue."""

    name: str
    commands: tuple[Words, ...]
    is_memcached: bool = False

    @property
    def queue(self) -> str:
        """The queue from which clients on this path take in a stall, and nobody else."""
        return f"left-by-{self.name}"

    @property
    def takes(self) -> int:
        """How many messages a client on this path takes."""
        return sum(words[0] in _TAKING for words in self.commands)

    def on(self, queue: str) -> list[Words]:
        """Return the commands for that queue."""
        return [
            tuple(word.format(queue=queue) if isinstance(word, str) else word for word in words)
            for words in self.commands
        ]


_SPOP: Words = ("SPOP", "{queue}")
_GET: Words = ("get", "{queue}")
PATHS = (
    Path("LMPOP", (("LMPOP", 1, "{queue}", "LEFT"),)),
    Path("BLMPOP", (("BLMPOP", _WAIT, 1, "{queue}", "LEFT"),)),
    Path("BLPOP-of-2", (("BLPOP", "nobody-puts-here", "{queue}", _WAIT),)),
    Path("SPOP-SMEMBERS", (_SPOP, ("SMEMBERS", "{queue}"))),
    Path("SPOP-50-PING", (_SPOP, *[("PING",)] * 50)),
    Path("8-SPOP-SCARD", (_SPOP, ("SCARD", "{queue}")) * 8),
    Path("5-SPOP", (_SPOP,) * 5),
    Path("20-SPOP", (_SPOP,) * 20),
    Path("get-t", (("get", f"{{queue}}/t={1000 * _WAIT}"),), is_memcached=True),
    Path("get-of-2", (("get", "nobody-puts-here", "{queue}"),), is_memcached=True),
    Path("8-get", (_GET,) * 8, is_memcached=True),
)


class HangUps:
    """Clients that send and close while the backend stands still, with queues of their own.

    `producer` puts messages there before, and `collector` takes what is left at all other times.
    """

    def __init__(
        self,
        proxies: list[Proxy],
        ledger: NamedLedger,
        journal: Journal,
        producer: Caller,
        sender: Sender,
        collector: Caller,
    ) -> None:
        self._proxies = proxies
        self._ledger = ledger
        self._journal = journal
        self._producer = producer
        self._sender = sender
        self._collector = collector
        # Held by whoever takes from the queues.
        self._lock = asyncio.Lock()
        self._clients: list[tuple[Path, Caller]] = []

    @asynccontextmanager
    async def prepared(self, place: int) -> AsyncIterator[None]:
        """Put messages and connect clients to the proxy of that number, before the backend is stopped."""
        proxy = self._proxies[place]
        async with self._lock:
            puts = [(path.queue, self._sender.new(path.queue, _CLIENTS * path.takes)) for path in PATHS]
            commands: list[Words] = [("SADD", queue, *map(message, names)) for queue, names in puts]
            replies = await self._producer.ask(*commands)
            for words, (_, names), reply in zip(commands, puts, replies, strict=False):
                self._sender.replied(words, names, reply)
            self._clients = [(path, self._client(path, proxy)) for path in PATHS for _ in range(_CLIENTS)]
            await asyncio.gather(*(client.send() for _, client in self._clients))
            try:
                yield
            finally:
                for _, client in self._clients:
                    client.close()

    async def send_and_close(self, seconds: float, chance: random.Random) -> None:
        """Let each client send its commands and close, at once or later; return after so many seconds."""
        await asyncio.gather(
            asyncio.sleep(seconds),
            *(
                self._send_and_close(path, client, random.Random(chance.random()), seconds)
                for path, client in self._clients
            ),
        )

    async def _send_and_close(
        self, path: Path, client: Caller, chance: random.Random, seconds: float
    ) -> None:
        await asyncio.sleep(chance.uniform(0, seconds / 2))
        await client.send(*path.on(path.queue))
        if chance.random() < 0.7:
            await asyncio.sleep(chance.uniform(0, seconds / 2))
        replies = client.hang_up(reset=chance.random() < _RESETS)
        _receive(Receiver(client, self._ledger), path, path.queue, replies)
        self._journal.hang_ups[f"in a stall, {path.name}"] += 1

    def _client(self, path: Path, proxy: Proxy) -> Caller:
        return _caller(path, f"hangs-up-{path.name}", proxy, self._journal)

    async def collect(self) -> None:
        """Take what clients have left, until cancelled."""
        receiver = Receiver(self._collector, self._ledger)
        while True:
            async with self._lock:
                commands: list[Words] = [("SPOP", path.queue, _MOST) for path in PATHS]
                replies = await self._collector.ask(*commands)
            taken = 0
            for words, reply in zip(commands, replies, strict=False):
                if isinstance(reply, list):
                    receiver.receive(reply, str(words[1]))
                    taken += len(reply)
            if not taken:
                await asyncio.sleep(IDLE)


class Leaver:
    """Sends commands on a new connection each time and closes its sending side, at once or a little later."""

    def __init__(
        self,
        name: str,
        proxy: Proxy,
        ledger: NamedLedger,
        journal: Journal,
        queues: list[str],
        chance: random.Random,
    ) -> None:
        self._name = name
        self._proxy = proxy
        self._ledger = ledger
        self._journal = journal
        self._queues = queues
        self._chance = chance

    async def work(self) -> None:
        """Run one client after the other until cancelled."""
        while True:
            path, queue = self._chance.choice(PATHS), self._chance.choice(self._queues)
            client = _caller(path, self._name, self._proxy, self._journal)
            await client.send(*path.on(queue))
            if self._chance.random() < 0.5:
                await asyncio.sleep(self._chance.expovariate(1 / _STAYS))
            replies = await client.half_close()
            _receive(Receiver(client, self._ledger), path, queue, replies)
            self._journal.hang_ups[f"at any moment, {path.name}"] += 1
            await asyncio.sleep(IDLE)


def _caller(path: Path, name: str, proxy: Proxy, journal: Journal) -> Caller:
    kind = MemcachedCaller if path.is_memcached else Caller
    return kind(name, proxy, journal, relayed=False)


def _receive(receiver: Receiver, path: Path, queue: str, replies: Iterable[Any]) -> None:
    """Tell the ledger of the messages in replies, of which the last may be missing."""
    for words, reply in zip(path.on(queue), replies, strict=False):
        if words[0] not in _TAKING or reply is None or isinstance(reply, Exception):
            continue
        if path.is_memcached:
            for item in reply:
                receiver.receive_item(item, queue)
        else:
            receiver.receive(read(words, reply)[1], queue)
