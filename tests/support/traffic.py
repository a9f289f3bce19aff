"""Clients whose messages must all come, once and in order, whatever becomes of the backend."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio

from tests.support.cluster import Cluster
from tests.support.ledger import Event, Ledger
from tests.support.nodes import addresses_of, wait_until
from tests.support.programs import Server, StartServer

# The prefix of servers on a cluster, and a key in its slot.
PREFIX, KEY = "{p}", b"{p}:traffic"
# Seconds: a failover takes the node timeout, an election and 2 seconds until the new master serves; more on a
# busy machine, but far less than the 20 seconds after which requests fail.
NODE_TIMEOUT, OUTAGE = 1.0, 10.0
_SOME = 20


def start_on_cluster(start_server: StartServer, cluster: Cluster, *options: str) -> Server:
    """Return a server on a cluster."""
    url = f"redis://{addresses_of(cluster.nodes[:1])}"
    return start_server("--backend", url, "--prefix", PREFIX, "--backend-timeout", "1", *options)


async def _if_safe(request: Any) -> Any:
    """Return the reply to a request; False if the server does not know whether the change is safe."""
    try:
        return await request
    except redis.ResponseError as error:
        if "not known to be safe" not in str(error):
            raise
        return False


def _client_of(server: Server) -> Any:  # redis-py's commands are typed as synchronous or asynchronous
    return redis.asyncio.Redis(port=server.port, socket_timeout=None)


class Traffic:
    """Puts and takes of one client for each of the queues, one after the other."""

    def __init__(self, server: Server, queues: Sequence[str]) -> None:
        # Any: redis-py's commands are typed as synchronous or asynchronous.
        self._clients: list[Any] = [
            redis.asyncio.Redis(port=server.port, socket_timeout=None) for _ in queues
        ]
        self._queues = queues
        self._everywhere = range(len(queues))
        self.ledger = Ledger()
        self.takes = True
        # Whether a message may have gone back, because it was not known whether its take is safe.
        self._went_back = False
        # By queue: how many turns have ended, when the present one began, and the longest one in seconds.
        self._turns = [0] * len(queues)
        self._began = [math.inf] * len(queues)
        self._longest = [0.0] * len(queues)
        self._is_to_end = False

    def slowest(self, numbers: Collection[int] = ()) -> float:
        """Return the longest turn in the queues with these numbers, or in all, also if it has not ended."""
        now = time.monotonic()
        return max(max(self._longest[one], now - self._began[one]) for one in numbers or self._everywhere)

    async def go_on(self, numbers: Collection[int] = ()) -> None:
        """Return when each of the queues with these numbers, or of all, has served some more turns."""
        wanted = [(one, self._turns[one] + _SOME) for one in numbers or self._everywhere]
        await wait_until(lambda: all(self._turns[one] >= turns for one, turns in wanted), "traffic")

    async def _run(self, one: int) -> None:
        client, queue = self._clients[one], self._queues[one]
        while not self._is_to_end:
            self._began[one] = time.monotonic()
            message = b"%d-%d" % (one, self._turns[one])
            self.ledger.send([message], Event(queue=queue))
            if await _if_safe(client.rpush(queue, message)):
                self.ledger.acknowledge([message])
            if self.takes and self._turns[one] % 3:
                await self._take(one)
            self._longest[one] = max(self._longest[one], time.monotonic() - self._began[one])
            self._began[one] = math.inf
            self._turns[one] += 1

    async def _take(self, one: int) -> bool:
        """Take a message. Return whether the queue may have more."""
        message = await _if_safe(self._clients[one].lpop(self._queues[one]))
        if message is False:
            self._went_back = True
        elif message is not None:
            self.ledger.receive([message])
        return message is not None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run until the block ends. Then each message must have been taken once, and in order."""
        async with asyncio.TaskGroup() as group:
            for one in self._everywhere:
                group.create_task(self._run(one))
            await self.go_on()
            self._longest = [0.0] * len(self._queues)
            yield
            await self.go_on()
            self._is_to_end = True
        for one, client in enumerate(self._clients):
            while await self._take(one):
                pass
            await client.aclose()
        self.ledger.check(in_order=not (self.ledger.unsure or self._went_back))


@asynccontextmanager
async def traffic_on(server: Server, queues: Sequence[str] = ("traffic",)) -> AsyncIterator[Traffic]:
    """Yield the traffic in these queues; check at the end that nothing is lost or doubled."""
    traffic = Traffic(server, queues)
    async with traffic.running():
        yield traffic


@asynccontextmanager
async def under_traffic(server: Server) -> AsyncIterator[Traffic]:
    """Yield the traffic, with a client that waits and one that has reserved a job beside it; check all."""
    client, waiting = _client_of(server), _client_of(server)
    reserved: Any = False
    while not reserved:  # the replica may be too busy to confirm the reservation
        if await _if_safe(client.rpush("jobs", "job")):
            reserved = await _if_safe(client.execute_command("PRESSURE.RESERVE", "jobs", "TIMEOUT", "1"))
    waits = asyncio.create_task(waiting.blpop(["waited for"], 0))
    async with traffic_on(server) as traffic:
        yield traffic
    await client.rpush("waited for", "message")
    assert await asyncio.wait_for(waits, 10) == (b"waited for", b"message")
    assert await client.execute_command("PRESSURE.ACK", "jobs", reserved[1]) == 1
    for one in (client, waiting):
        await one.aclose()
