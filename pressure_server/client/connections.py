"""The connections of clients to a pressure-server, and what is common to all types of queues."""

from collections.abc import Coroutine, Mapping, Sequence
from threading import Lock
from typing import Any, Self
from weakref import WeakSet

from redis.exceptions import ResponseError

from pressure_server.client.arguments import Word, as_bytes
from pressure_server.client.redis_io import AsyncRedis
from pressure_server.client.replies import described, error_of
from pressure_server.client.synchronous import Synchronous, synchronous
from pressure_server.errors import PressureError
from pressure_server.queues.names import base_key
from pressure_server.text import printable

# The address of a server that runs with the defaults.
SERVER_URL = "redis://127.0.0.1:4000"


class Connections:
    """Connections that threads or tasks share, and some for one request that waits each. Nothing is retried.

    Raises ValueError for a URL that redis-py cannot parse.
    """

    def __init__(self, url: str, options: Mapping[str, Any], redis_class: type[AsyncRedis]) -> None:
        self._url, self._options = url, options
        self.redis_class = redis_class
        self._shared = redis_class(url, options)
        # Clients with one connection each, for requests that wait. A reserved job keeps its own.
        self._idle: list[AsyncRedis] = []
        self._opened: WeakSet[AsyncRedis] = WeakSet()
        self._opening = Lock()

    async def do(self, *words: Word, waits: bool = False) -> Any:
        """Send a command, and return its reply. One that waits has a connection of its own so long."""
        if not waits:
            return await self.do_on(None, *words)
        reply, client = await self.do_alone(*words)
        self.give_back(client)
        return reply

    async def do_alone(self, *words: Word) -> tuple[Any, AsyncRedis]:
        """Send a command on a connection that no other uses. Return the client with that connection, too."""
        try:
            client = self._idle.pop()
        except IndexError:
            client = self._open()
        try:
            reply = await self.do_on(client, *words)
        except PressureError:
            self.give_back(client)
            raise
        except BaseException:
            # A job may have been reserved: it returns to the queue.
            await client.disconnect()
            raise
        return reply, client

    async def do_together(self, client: AsyncRedis, *commands: Sequence[Word]) -> Any:
        """Send commands in one write, by a client of do_alone. Return the replies; errors are among them."""
        try:
            return await client.execute_together(commands)
        except BaseException:
            # A job may have been reserved: it returns to the queue.
            await client.disconnect()
            raise

    async def do_on(self, client: AsyncRedis | None, *words: Word) -> Any:
        """Send a command by this client of do_alone; by the shared one if it is None."""
        try:
            return await (client or self._shared).execute(*words)
        except ResponseError as error:
            raise error_of(error) from None

    def give_back(self, client: AsyncRedis) -> None:
        """Let other requests use the connection of do_alone."""
        self._idle.append(client)

    async def disconnect(self) -> None:
        """Close the connections. The next request opens new ones."""
        await self._shared.disconnect()
        with self._opening:
            opened = list(self._opened)
        for client in opened:
            await client.disconnect()

    def _open(self) -> AsyncRedis:
        client = self.redis_class.alone(self._url, self._options)
        with self._opening:
            self._opened.add(client)
        return client


class AsyncServerQueue:
    """A queue in a pressure-server: the methods that all types of queues have."""

    _redis_class: type[AsyncRedis] = AsyncRedis

    def __init__(self, name: str | bytes, url: str, options: Mapping[str, Any]) -> None:
        self._key = as_bytes(name, "a queue's name")
        base_key(b"", self._key)
        self._connections = Connections(url, options, self._redis_class)

    async def length(self) -> int:
        """Return the number of messages; of jobs, those that are ready or delayed.

        Raises QueueDoesNotExistError.
        """
        return int(await self._do("LENGTH"))

    async def info(self) -> dict[str, Any]:
        """Return the fields of PRESSURE.INFO.

        A log has `head_offset`, and `tail_offset` for the next put. Raises QueueDoesNotExistError.
        """
        return described(await self._do("INFO"))

    async def disconnect(self) -> None:
        """Close the connections: jobs that are reserved, except by a token, return to the queue.

        The next method call opens new connections.
        """
        await self._connections.disconnect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.disconnect()

    @property
    def _printable(self) -> str:
        """The queue's name for texts."""
        return printable(self._key)

    def _do(self, name: str, *words: Word, waits: bool = False) -> Coroutine[Any, Any, Any]:
        """Send a command for the queue; see Connections.do."""
        return self._connections.do(f"PRESSURE.{name}", self._key, *words, waits=waits)


class ServerQueue(Synchronous):
    """The synchronous client of a queue in a pressure-server: see AsyncServerQueue."""

    length = synchronous(AsyncServerQueue.length)
    info = synchronous(AsyncServerQueue.info)
    disconnect = synchronous(AsyncServerQueue.disconnect)
