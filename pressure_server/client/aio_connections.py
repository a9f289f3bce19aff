"""The connections of an asyncio client to a pressure-server, by redis-py's asyncio client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from pressure_server.client.connecting import patient, settings
from pressure_server.client.requests import Request, Result, exception_for
from pressure_server.errors import PressureError


class AsyncConnections:
    """`Connections` whose methods are coroutines. Tasks may share them."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        own = settings(options, parse_url(url), Retry(NoBackoff(), 0))
        # Any: redis-py's commands have no usable types.
        self._shared: Any = redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(**own))
        # Clients with one connection each, for requests that wait. A reserved job keeps its own.
        self._patient = patient(own)
        self._idle: list[Any] = []
        self._opened: WeakSet[Any] = WeakSet()

    async def do(self, request: Request[Result]) -> Result:
        """Send a request, and return its result; see Connections.do."""
        if not request.waits:
            return await self.do_on(None, request)
        result, client = await self.do_alone(request)
        self.give_back(client)
        return result

    async def do_alone(self, request: Request[Result]) -> tuple[Result, Any]:
        """Send a request on a connection that no other uses. Return the client with that connection, too."""
        client = self._idle.pop() if self._idle else self._open()
        try:
            result = await self.do_on(client, request)
        except PressureError:
            self.give_back(client)
            raise
        except BaseException:
            # A job may have been reserved: it returns to the queue.
            await client.connection_pool.disconnect()
            raise
        return result, client

    async def do_on(self, client: Any | None, request: Request[Result]) -> Result:
        """Send a request by this client of do_alone; by the shared one if it is None."""
        client = self._shared if client is None else client
        try:
            reply = await client.execute_command(*request.words)
        except redis.ResponseError as error:
            raise exception_for(error) from None
        return request.parse(reply)

    def give_back(self, client: Any) -> None:
        """Let other requests use the connection of do_alone."""
        self._idle.append(client)

    async def disconnect(self) -> None:
        """Close the connections. The next request opens new ones."""
        await self._shared.connection_pool.disconnect()
        for client in list(self._opened):
            await client.connection_pool.disconnect()

    def _open(self) -> Any:
        client = redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(**self._patient))
        self._opened.add(client)
        return client
