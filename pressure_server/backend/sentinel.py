"""Sentinel: the address of a master that Sentinels name, and the route to it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from pressure_server.backend.address import Address, split_url
from pressure_server.backend.greeting import BackendRefusedError
from pressure_server.backend.route import Route
from pressure_server.errors import BackendError
from pressure_server.keepalive import DEFAULT, Keepalive

logger = logging.getLogger(__name__)

SCHEMES = ("redis+sentinel", "rediss+sentinel")
_PORT = "26379"
# The options of the URL that concern the connections to Sentinels begin with this.
_OF_SENTINELS = "sentinel_"
# Seconds between questions to the Sentinels, and for which they may answer.
_ASK_EVERY = 0.25
_ANSWER_TIMEOUT = 1.0
# A Sentinel wants another password, or does not know the master's name.
_REFUSALS = (AuthenticationError, ResponseError)
_CHECK = "; check the master's name, sentinel_username and sentinel_password in --backend"
_IS_NONE = "it is no Sentinel; give a Redis as redis://HOST:PORT"


class SentinelAddress:
    """The address of a master that Sentinels name, from its URL. Raises ValueError if the URL is invalid.

    A URL is `redis+sentinel://[user:password@]host:port,host:port/name/db`, with user and password of Redis;
    `rediss+sentinel://` uses TLS for Redis. Its query has redis-py's options for Redis. Those for Sentinels
    begin with `sentinel_`: sentinel_username, sentinel_password, sentinel_tls=yes, sentinel_ssl_ca_certs.
    """

    def __init__(self, url: str, keepalive: Keepalive = DEFAULT) -> None:
        parts = split_url(url)
        login, at, hosts = parts.netloc.rpartition("@")
        name, _, database = parts.path.strip("/").partition("/")
        if not hosts or not name:
            raise ValueError(
                "the Sentinels or the name of the master are missing: write "
                "redis+sentinel://host:26379,host:26379/mymaster/0"
            )
        options = parse_qsl(parts.query)
        of_sentinels = {
            key.removeprefix(_OF_SENTINELS): value for key, value in options if key.startswith(_OF_SENTINELS)
        }
        of_redis = urlencode([one for one in options if not one[0].startswith(_OF_SENTINELS)])
        scheme = parts.scheme.partition("+")[0]
        self.name = name
        # No node has this name: the Sentinels have not been asked yet.
        url = f"{scheme}://{login}{at}unknown.invalid:1/{database}?{of_redis}"
        self.unknown = Address(url, keepalive)
        self.sentinels = [
            Address(_sentinel_url(host, dict(of_sentinels)), keepalive) for host in hosts.split(",")
        ]
        self.password = self.unknown.password
        self.database = self.unknown.database
        self._shown = f"{parts.scheme}://{hosts}/{name}"

    def __str__(self) -> str:
        """Return the address without user, password, database and options."""
        return self._shown


def _sentinel_url(host: str, options: dict[str, str]) -> str:
    """Return the URL of a Sentinel at `host`, which may have a port."""
    scheme = "rediss" if options.pop("tls", "no") in ("yes", "true", "1") else "redis"
    user, password = options.pop("username", ""), options.pop("password", "")
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    port = "" if host.rpartition("]")[2].count(":") else f":{_PORT}"
    return f"{scheme}://{login}{host}{port}?{urlencode(options)}"


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
