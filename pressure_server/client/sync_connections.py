"""The connections of a synchronous client to a pressure-server, by redis-py."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any
from weakref import WeakSet

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from pressure_server.client.connecting import patient, settings
from pressure_server.client.requests import Request, Result, exception_for
from pressure_server.errors import PressureError


class Connections:
    """Connections that threads share, and some for one request that waits each. Nothing is retried.

    Raises ValueError for a URL that redis-py cannot parse.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        own = settings(options, parse_url(url), Retry(NoBackoff(), 0))  # type: ignore[no-untyped-call] # it has none
        # Any: redis-py's commands have no usable types.
        self._shared: Any = redis.Redis.from_pool(redis.ConnectionPool(**own))
        # Clients with one connection each, for requests that wait. A reserved job keeps its own.
        self._patient = patient(own)
        self._idle: list[Any] = []
        self._opened: WeakSet[Any] = WeakSet()
        self._opening = Lock()

    def do(self, request: Request[Result]) -> Result:
        """Send a request, and return its result. One that waits has a connection of its own so long."""
        if not request.waits:
            return self.do_on(None, request)
        result, client = self.do_alone(request)
        self.give_back(client)
        return result

    def do_alone(self, request: Request[Result]) -> tuple[Result, Any]:
        """Send a request on a connection that no other uses. Return the client with that connection, too."""
        try:
            client = self._idle.pop()
        except IndexError:
            client = self._open()
        try:
            result = self.do_on(client, request)
        except PressureError:
            self.give_back(client)
            raise
        except BaseException:
            # A job may have been reserved: it returns to the queue.
            client.connection_pool.disconnect()
            raise
        return result, client

    def do_on(self, client: Any | None, request: Request[Result]) -> Result:
        """Send a request by this client of do_alone; by the shared one if it is None."""
        client = self._shared if client is None else client
        try:
            reply = client.execute_command(*request.words)
        except redis.ResponseError as error:
            raise exception_for(error) from None
        return request.parse(reply)

    def give_back(self, client: Any) -> None:
        """Let other requests use the connection of do_alone."""
        self._idle.append(client)

    def disconnect(self) -> None:
        """Close the connections. The next request opens new ones."""
        self._shared.connection_pool.disconnect()
        with self._opening:
            opened = list(self._opened)
        for client in opened:
            client.connection_pool.disconnect()

    def _open(self) -> Any:
        client = redis.Redis.from_pool(redis.ConnectionPool(**self._patient))
        with self._opening:
            self._opened.add(client)
        return client
