"""The route to the node that has the keys: given, where a cluster redirects to, or what Sentinels name.

A link leads: if it cannot use a node, or is redirected, the route changes, and all other connections follow.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from redis.crc import key_slot
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from pressure_server.backend.address import Address, BackendAddress, ClusterAddress, SentinelAddress
from pressure_server.backend.resp import BackendConnection, redirection
from pressure_server.errors import BackendError, BackendRefusedError

logger = logging.getLogger(__name__)

# Seconds between questions to the Sentinels, and for which they may answer.
_ASK_EVERY = 0.25
_ANSWER_TIMEOUT = 1.0
# A Sentinel wants another password, or does not know the master's name.
_REFUSALS = (AuthenticationError, ResponseError)
_CHECK = "; check the master's name, sentinel_username and sentinel_password in --backend"
_IS_NONE = "it is no Sentinel; give a Redis as redis://HOST:PORT"

Connection = TypeVar("Connection", bound=BackendConnection)


class MovedError(BackendError):
    """The keys are on another node: at this address."""

    def __init__(self, address: Address) -> None:
        super().__init__(f"the queues are on {address}")
        self.address = address


class Route:
    """The route to a backend that is one node, or to the node of a cluster that has the keys."""

    fails_over = False  # whether another node takes over if this one dies
    subject = "the queues are"  # what the log says is on a node

    def __init__(self, *given: Address, is_cluster: bool = False) -> None:
        """`is_cluster` says that `given` are nodes of a cluster. Otherwise it is one, which may be in one."""
        self.address = given[0]
        self.is_cluster = is_cluster
        self.fails_over = is_cluster or self.fails_over
        # These stay: all others may have gone one day.
        self._given = given if is_cluster else ()
        # The nodes of the cluster, as far as they are known: if one does not serve, the next one is tried.
        self.nodes = list(given)
        self._turn = 0
        self._served: Address | None = None  # the node that a link has used last
        # How often nodes have redirected requests, by the word of their error; and how often another one has
        # come to serve.
        self.redirects: Counter[str] = Counter()
        self.changes = 0
        self._connections: dict[BackendConnection, Address] = {}
        self._followers: list[Callable[[], None]] = []

    def __str__(self) -> str:
        """Return the node's address."""
        return str(self.address)

    def follow(self, moved: Callable[[], None]) -> None:
        """Call `moved` whenever another node has the keys: connections to others are of no use."""
        self._followers.append(moved)

    async def connect(
        self, connection: Connection, greet: Callable[[Connection, Address], Awaitable[None]]
    ) -> Connection:
        """Open a connection to the node, greet it and return it; abort it when another node has the keys.

        Raises BackendError, and what `greet` raises.
        """
        address = self.address
        try:
            await address.open(connection)
            await greet(connection, address)
        except BaseException:
            connection.close()
            raise
        self.abort_if_moved(connection, address)
        return connection

    def abort_if_moved(self, connection: BackendConnection, address: Address) -> None:
        """Abort a connection to this address if another node has the keys, now or later."""
        self._note(connection, address)
        if address != self.address:
            connection.abort(BackendError(f"{self.subject} on {self} now"))

    def _note(self, connection: BackendConnection, address: Address) -> None:
        """Note where a connection leads. Forget those that have ended."""
        used = self._connections.items()
        self._connections = {one: at for one, at in used if not one.ended.is_set()} | {connection: address}

    async def find(self) -> Address:
        """Return the address of the node that has the keys, as far as is known."""
        return self.address

    async def start(self) -> None:
        """Begin to look for changes in the background."""

    async def close(self) -> None:
        """Stop looking for changes."""

    def failed(self) -> None:
        """Note that the node does not serve: another one may know which node has the keys."""
        self._turn += 1
        self.address = self.nodes[self._turn % len(self.nodes)]

    def redirected(self, error: Exception) -> bool:
        """Follow an error that names another node. Return False if it is another error."""
        if isinstance(error, MovedError):
            self.move(error.address)
            return True
        target = redirection(error)
        if target is None:
            return False
        self.redirects["MOVED"] += 1
        host, port = target
        self.move(self.address.at(host or self.address.host, port))
        return True

    def move(self, address: Address) -> None:
        """Note that another node has the keys now."""
        if address not in self.nodes:
            self.nodes.append(address)
        self.address = address
        for connection, at in list(self._connections.items()):
            self.abort_if_moved(connection, at)
        for moved in self._followers:
            moved()

    def serves(self, connection: BackendConnection, address: Address) -> None:
        """Note that a link uses a connection to this node now. Abort it when another node has the keys."""
        self._note(connection, address)
        before, self._served = self._served, address
        if before is not None and before != address:
            self.changes += 1
            logger.info("%s on %s now, no longer on %s", self.subject, address, before)
            self.move(address)

    def note_cluster(self, at: Address, slots: list[Any], key: bytes) -> None:
        """Note the nodes of a cluster, from the reply to CLUSTER SLOTS of the node `at` this address.

        Raises MovedError if another one has the slot of `key`, by that reply.
        """
        self.fails_over = True
        slot, owner = key_slot(key), at
        known = [at]
        for first, last, *nodes in slots:
            # A node that knows no other name of itself sends an empty one.
            found = [at.at(node[0].decode() if node[0] else at.host, node[1]) for node in nodes]
            known += found
            if first <= slot <= last:
                owner = found[0]
        self.nodes = list(dict.fromkeys([*known, *self._given]))
        if owner != at:
            raise MovedError(owner)


class SentinelRoute(Route):
    """The route to the master that most recently became one, as far as the Sentinels know."""

    fails_over = True

    def __init__(self, address: SentinelAddress) -> None:
        super().__init__(address.unknown)
        self._name, self._about, self._unknown = address.name, str(address), address.unknown
        # Any: redis-py's commands have no types.
        self._sentinels: list[Any] = [one.client(0) for one in address.sentinels]
        self._epoch = 0  # of the newest master: it grows with each failover
        self._is_silent = False  # whether the log says that no Sentinel names the master
        self._looking: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        """Return the master's address, or the Sentinels' before they have named one."""
        return self._about if self.address == self._unknown else str(self.address)

    async def find(self) -> Address:
        """Return the master's address: the last known one if no Sentinel answers.

        Raises BackendError if none has been known, BackendRefusedError if no Sentinel will ever name one.
        """
        try:
            self.address = await self._ask()
        except BackendError:
            if self.address == self._unknown:
                raise
        return self.address

    async def start(self) -> None:
        """See Route. Ask again and again: a message that the master has changed could be lost."""
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """See Route."""
        if self._looking is not None:
            self._looking.cancel()
        for sentinel in self._sentinels:
            await sentinel.aclose()

    def failed(self) -> None:
        """See Route: the Sentinels are asked for each connection."""

    def move(self, address: Address) -> None:
        """See Route. Former masters are not kept: a link would try once for each before it pauses."""
        super().move(address)
        self.nodes = [address]

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_ASK_EVERY)
            with suppress(BackendError):
                master = await self._ask()
                if self._served is not None and master != self.address:
                    self.move(master)

    async def _ask(self) -> Address:
        """Return the master that became one last. Some Sentinels may not have heard of it yet.

        Raises BackendError if no Sentinel names one, BackendRefusedError if none ever will.
        """
        told = await asyncio.gather(*map(self._ask_one, self._sentinels))
        found = [one for one in told if not isinstance(one, Exception)]
        if not found:
            raise self._silence([one for one in told if isinstance(one, Exception)])
        if self._is_silent:
            self._is_silent = False
            logger.info("the Sentinels of %s name the master again", self._about)
        newest = max(found, key=_epoch_of)
        if _epoch_of(newest) < self._epoch and len(found) < len(told):
            return self.address  # those that answer have not heard of it
        self._epoch = _epoch_of(newest)
        return self._unknown.at(newest["ip"], int(newest["port"]))

    def _silence(self, errors: list[Exception]) -> BackendError:
        refusals = [error for error in errors if isinstance(error, _REFUSALS)]
        are_refusing = len(refusals) == len(errors)
        first = (refusals or errors)[0]
        why = (str(first) or type(first).__name__) + (_CHECK if are_refusing else "")
        if str(first).startswith("unknown command"):
            why = _IS_NONE
        if not self._is_silent and self.address != self._unknown:
            self._is_silent = True
            logger.warning("no Sentinel of %s names the master (%s): the last one is used", self._about, why)
        error = BackendRefusedError if are_refusing else BackendError
        return error(f"no Sentinel of {self._about} names the master: {why}")

    async def _ask_one(self, sentinel: Any) -> dict[str, Any] | Exception:
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                about: dict[str, Any] = await sentinel.sentinel_master(self._name)
                return about
        except (RedisError, OSError, RuntimeError, TimeoutError) as error:
            logger.debug("a Sentinel of %s does not answer: %s", self._about, error)
            return error


def _epoch_of(told: dict[str, Any]) -> int:
    return int(told["config-epoch"])


def route_to(address: BackendAddress) -> Route:
    """Return a new route to the backend."""
    if isinstance(address, SentinelAddress):
        return SentinelRoute(address)
    return Route(*address.nodes, is_cluster=True) if isinstance(address, ClusterAddress) else Route(address)
