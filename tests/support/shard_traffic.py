"""Clients that use a queue in each shard, and what has become of their messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio

from tests.support.ledger import Ledger
from tests.support.nodes import wait_until
from tests.support.programs import Server
from tests.support.sharded import SHARDS, queue_in

_SOME = 20


class ShardTraffic:
    """Puts and takes of one client for each shard, one after the other."""

    def __init__(self, server: Server) -> None:
        self._clients: list[Any] = [
            redis.asyncio.Redis(port=server.port, socket_timeout=None) for _ in range(SHARDS)
        ]
        self.queues = [queue_in(shard, "traffic") for shard in range(SHARDS)]
        self.ledger = Ledger()
        # By shard: how many turns have ended, and the longest one since the last `forget`, in seconds.
        self.turns = [0] * SHARDS
        self.longest = [0.0] * SHARDS
        self._began = [0.0] * SHARDS
        self._is_to_end = False

    def forget(self) -> None:
        """Begin to measure the longest turns anew."""
        self.longest = [0.0] * SHARDS

    def slowest(self, shards: set[int]) -> float:
        """Return the longest turn in these shards, also if it has not ended."""
        now = time.monotonic()
        return max(max(self.longest[shard], now - self._began[shard]) for shard in shards)

    async def go_on(self, shards: set[int]) -> None:
        """Return when each of these shards has served some more turns."""
        wanted = {shard: self.turns[shard] + _SOME for shard in shards}

        async def have_served() -> bool:
            return all(self.turns[shard] >= turns for shard, turns in wanted.items())

        await wait_until(have_served, "traffic in all these shards")

    async def _run(self, shard: int) -> None:
        while not self._is_to_end:
            self._began[shard] = time.monotonic()
            message = b"%d-%d" % (shard, self.turns[shard])
            self.ledger.send([message])
            if await self._is_safe(self._clients[shard].rpush(self.queues[shard], message)):
                self.ledger.acknowledge([message])
            if self.turns[shard] % 3:
                await self._take(shard)
            self.longest[shard] = max(self.longest[shard], time.monotonic() - self._began[shard])
            self.turns[shard] += 1

    async def _take(self, shard: int) -> bool:
        """Take a message. Return False if there is none."""
        try:
            message = await self._clients[shard].lpop(self.queues[shard])
        except redis.ResponseError as error:
            if "not known to be safe" not in str(error):
                raise
            return True  # it goes back
        if message is not None:
            self.ledger.receive([message])
        return message is not None

    async def _is_safe(self, put: Any) -> bool:
        try:
            await put
        except redis.ResponseError as error:
            if "not known to be safe" not in str(error):
                raise
            return False
        return True

    async def run(self) -> None:
        """Go on until `end`."""
        async with asyncio.TaskGroup() as group:
            for shard in range(SHARDS):
                group.create_task(self._run(shard))

    async def end(self, running: asyncio.Task[None]) -> None:
        """End. Each message must have been taken once."""
        self._is_to_end = True
        await running
        for shard in range(SHARDS):
            while await self._take(shard):
                pass
            await self._clients[shard].aclose()
        self.ledger.check()


@asynccontextmanager
async def traffic_on(server: Server) -> AsyncIterator[ShardTraffic]:
    """Yield the traffic, which runs in all shards; check at the end that nothing is lost or doubled."""
    traffic = ShardTraffic(server)
    running = asyncio.create_task(traffic.run())
    everywhere = set(range(SHARDS))
    await traffic.go_on(everywhere)
    traffic.forget()
    yield traffic
    await traffic.go_on(everywhere)
    await traffic.end(running)
