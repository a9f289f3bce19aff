"""A client whose messages must all come, once and in order, whatever becomes of the backend."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio

from tests.support.cluster import Cluster
from tests.support.nodes import wait_until
from tests.support.programs import Server, StartServer

# The prefix of servers on a cluster, and a key in its slot.
PREFIX, KEY = "{p}", b"{p}:traffic"
# Seconds: a failover takes the node timeout, an election and 2 seconds until the new master serves.
NODE_TIMEOUT, OUTAGE = 1.0, 4.0


def start_on_cluster(start_server: StartServer, cluster: Cluster, *options: str) -> Server:
    """Return a server on a cluster."""
    url = f"redis://127.0.0.1:{cluster.nodes[0].port}"
    return start_server("--backend", url, "--prefix", PREFIX, "--backend-timeout", "1", *options)


class Traffic:
    """A client that puts messages and takes them, one after the other, and what has become of them."""

    def __init__(self, server: Server) -> None:
        self._client: Any = redis.asyncio.Redis(port=server.port, socket_timeout=None)
        self.put: list[bytes] = []
        self.got: list[bytes] = []
        # Puts of which it is not known whether they are safe: they are done, and may come. And how many
        # messages went back, because it was not known of their takes.
        self.unsure: set[bytes] = set()
        self.went_back = 0
        self.longest = 0.0
        self.takes = True
        self.is_to_end = False

    async def run(self) -> None:
        """Go on until `is_to_end`."""
        while not self.is_to_end:
            message = b"%d" % len(self.put)
            began = time.monotonic()
            self.put.append(message)
            try:
                assert await self._client.rpush("traffic", message)
            except redis.ResponseError as error:
                _check_unsafe(error)
                self.unsure.add(message)
            if self.takes and len(self.put) % 3:
                await self._take()
            self.longest = max(self.longest, time.monotonic() - began)

    async def goes_on(self) -> None:
        """Return when some more messages have been put."""
        count = len(self.put)

        async def has_more() -> bool:
            return len(self.put) > count + 20

        await wait_until(has_more, "traffic")

    async def _take(self) -> bool:
        try:
            message = await self._client.lpop("traffic")
        except redis.ResponseError as error:
            _check_unsafe(error)
            self.went_back += 1
            return True
        if message is not None:
            self.got.append(message)
        return message is not None

    async def end(self) -> None:
        """End. Every message must have come once, and in order if nothing went back."""
        while await self._take():
            pass
        await self._client.aclose()
        sure = [message for message in self.got if message not in self.unsure]
        expected = [message for message in self.put if message not in self.unsure]
        lost = set(expected) - set(sure)
        assert not lost
        assert sorted(sure, key=int) == expected, "some came twice"
        if not (self.unsure or self.went_back):
            first = next((at for at, got in enumerate(self.got) if got != self.put[at]), len(self.got))
            assert self.got[first:] == self.put[first:], "they are not in order"


def _check_unsafe(error: redis.ResponseError) -> None:
    if "not known to be safe" not in str(error):
        raise error


async def _reserved(client: Any) -> Any:
    """Put a job and reserve it. Return its id; None if the replica was too busy to confirm that."""
    try:
        await client.rpush("jobs", "job")
        _, job, *_ = await client.execute_command("PRESSURE.RESERVE", "jobs", "TIMEOUT", "1")
    except redis.ResponseError as error:
        _check_unsafe(error)
        return None
    return job


@asynccontextmanager
async def under_traffic(server: Server) -> AsyncIterator[Traffic]:
    """Yield the traffic, with a client that waits and one that has reserved a job beside it; check all."""
    # Any: redis-py's commands are typed as synchronous or asynchronous.
    client: Any = redis.asyncio.Redis(port=server.port, socket_timeout=None)
    waiting: Any = redis.asyncio.Redis(port=server.port, socket_timeout=None)
    job = None
    while job is None:
        job = await _reserved(client)
    waits = asyncio.create_task(waiting.blpop(["waited for"], 0))
    traffic = Traffic(server)
    running = asyncio.create_task(traffic.run())
    await traffic.goes_on()
    yield traffic
    await traffic.goes_on()
    traffic.is_to_end = True
    await running
    await traffic.end()
    await client.rpush("waited for", "message")
    assert await asyncio.wait_for(waits, 10) == (b"waited for", b"message")
    assert await client.execute_command("PRESSURE.ACK", "jobs", job) == 1
    for one in (client, waiting):
        await one.aclose()


async def said(server: Server, text: str) -> bool:
    """Return whether the log has a text."""
    return text in server.log
