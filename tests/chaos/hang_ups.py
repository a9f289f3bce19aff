"""Clients that hang up before they have read the reply to a command that takes messages.

A client that reads nothing has received nothing. Its messages must arrive at another client; otherwise they
are lost. A reply that is in the client's kernel when the client closes is gone, as in Redis
(docs/reliability.md, "The last hop"). The clients here avoid that case:

* `HangUps`: clients send and close while the backend is stopped, when the server has nothing to send;
* a `HalfCloser` closes only its sending side, at any moment, and reads all that arrives.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from tests.chaos.beanstalk import BeanstalkCaller
from tests.chaos.caller import Caller
from tests.chaos.consumers import IDLE, TAKING, Receiver
from tests.chaos.journal import Journal
from tests.chaos.ledger import NamedLedger
from tests.chaos.memcached import MemcachedCaller
from tests.chaos.messages import message
from tests.chaos.producers import Put, Sender
from tests.chaos.stand import Proxy
from tests.support.waiters import Words

# Seconds for which a command waits for a message.
_WAIT = 1
# The number of clients on each path in one stall, and the share of all that close by RST.
_CLIENTS = 3
_RESETS = 0.15
# Seconds for which a half-closer keeps its connection open, on average, if it does not close at once.
_MEAN_STAY = 0.005
# The most messages that the collector takes by one command.
_MOST = 20
# Commands that reserve a message. It goes back if the client hangs up, even after reading it.
_RESERVING = ("PRESSURE.RESERVE", "reserve-with-timeout")


class Path(NamedTuple):
    """A way to take messages. In `commands`, the text `{queue}` stands for the queue."""

    name: str
    commands: tuple[Words, ...]
    protocol: type[Caller] = Caller

    @property
    def queue(self) -> str:
        """The queue from which only clients on this path take in a stall."""
        return f"left-by-{self.name}"

    @property
    def takes(self) -> int:
        """The number of messages that a client on this path takes."""
        return sum(words[0] in (*TAKING, *_RESERVING) for words in self.commands)

    def on(self, queue: str) -> list[Words]:
        """Return the commands for that queue."""
        return [
            tuple(word.format(queue=queue) if isinstance(word, str) else word for word in words)
            for words in self.commands
        ]


_SPOP: Words = ("SPOP", "{queue}")
_GET: Words = ("get", "{queue}")
_RESERVE: Words = ("reserve-with-timeout", _WAIT)
PATHS = (
    Path("LMPOP", (("LMPOP", 1, "{queue}", "LEFT"),)),
    Path("BLMPOP", (("BLMPOP", _WAIT, 1, "{queue}", "LEFT"),)),
    Path("BLPOP-of-2", (("BLPOP", "nobody-puts-here", "{queue}", _WAIT),)),
    Path("SPOP-SMEMBERS", (_SPOP, ("SMEMBERS", "{queue}"))),
    Path("SPOP-50-PING", (_SPOP, *[("PING",)] * 50)),
    Path("8-SPOP-SCARD", (_SPOP, ("SCARD", "{queue}")) * 8),
    Path("5-SPOP", (_SPOP,) * 5),
    Path("20-SPOP", (_SPOP,) * 20),
    Path("get-t", (("get", f"{{queue}}/t={1000 * _WAIT}"),), MemcachedCaller),
    Path("get-of-2", (("get", "nobody-puts-here", "{queue}"),), MemcachedCaller),
    Path("8-get", (_GET,) * 8, MemcachedCaller),
    Path("RESERVE", (("PRESSURE.RESERVE", "{queue}", "TIMEOUT", _WAIT),)),
    Path("RESERVE-of-2", (("PRESSURE.RESERVE", "nobody-puts-here", "{queue}", "TIMEOUT", _WAIT),)),
    Path("5-reserve", (("watch", "{queue}"), ("ignore", "default"), *[_RESERVE] * 5), BeanstalkCaller),
    Path("reserve-of-2", (("watch", "{queue}"), _RESERVE), BeanstalkCaller),
)


@dataclass
class HangUps:
    """Clients that send and close while the backend is stopped. Each path has a queue of its own.

    `sender` puts messages there before. `collector` takes what is left at all other times.
    """

    proxies: list[Proxy]
    ledger: NamedLedger
    journal: Journal
    sender: Sender
    collector: Caller

    def __post_init__(self) -> None:
        # Keeps the collector from taking while clients hang up.
        self._lock = asyncio.Lock()
        self._clients: list[tuple[Path, Caller]] = []

    @asynccontextmanager
    async def prepared(self, place: int) -> AsyncIterator[None]:
        """Put messages and connect clients to the proxy of that number, before the backend is stopped."""
        proxy = self.proxies[place]
        async with self._lock:
            puts: list[Put] = []
            for path in PATHS:
                names = self.sender.new(path.queue, _CLIENTS * path.takes)
                puts.append((("SADD", path.queue, *map(message, names)), names))
            await self.sender.put(puts)
            self._clients = [
                (path, _caller(path, f"hangs-up-{path.name}", proxy, self.journal))
                for path in PATHS
                for _ in range(_CLIENTS)
            ]
            await asyncio.gather(*(client.send() for _, client in self._clients))
            try:
                yield
            finally:
                for _, client in self._clients:
                    client.close()

    async def send_and_close(self, seconds: float, chance: random.Random) -> None:
        """Let each client send its commands and close, at once or later. Return after `seconds`."""
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
        commands = path.on(path.queue)
        await client.send(*commands)
        if chance.random() < 0.7:
            await asyncio.sleep(chance.uniform(0, seconds / 2))
        replies = client.hang_up(reset=chance.random() < _RESETS)
        Receiver(client, self.ledger).receive_replies(commands, replies)
        self.journal.hang_ups[f"in a stall, {path.name}"] += 1

    async def collect(self) -> None:
        """Take the messages that clients have left, until cancelled."""
        receiver = Receiver(self.collector, self.ledger)
        commands: list[Words] = [("SPOP", path.queue, _MOST) for path in PATHS]
        while True:
            async with self._lock:
                replies = await self.collector.ask(*commands)
            if not receiver.receive_replies(commands, replies):
                await asyncio.sleep(IDLE)


@dataclass
class HalfCloser:
    """Sends commands on a new connection each time and closes its sending side, at once or a little later."""

    name: str
    proxy: Proxy
    ledger: NamedLedger
    journal: Journal
    queues: list[str]
    chance: random.Random

    async def work(self) -> None:
        """Run one client after the other until cancelled."""
        while True:
            path, queue = self.chance.choice(PATHS), self.chance.choice(self.queues)
            client = _caller(path, self.name, self.proxy, self.journal)
            commands = path.on(queue)
            await client.send(*commands)
            if self.chance.random() < 0.5:
                await asyncio.sleep(self.chance.expovariate(1 / _MEAN_STAY))
            replies = await client.half_close()
            Receiver(client, self.ledger).receive_replies(commands, replies)
            self.journal.hang_ups[f"at any moment, {path.name}"] += 1
            await asyncio.sleep(IDLE)


def _caller(path: Path, name: str, proxy: Proxy, journal: Journal) -> Caller:
    return path.protocol(name, proxy, journal, relayed=False)
