"""The backend's address: parse its URL as redis-py does, open connections to it."""

from __future__ import annotations

import asyncio
from ssl import SSLError
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, urlsplit, urlunsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pressure_server.errors import BackendError
from pressure_server.keepalive import DEFAULT, Keepalive
from pressure_server.text import reason_of

if TYPE_CHECKING:
    from pressure_server.backend.resp import BackendConnection

CONNECT_TIMEOUT = 5.0
# A Redis without TLS waits for the end of the handshake, whose bytes are a command without an end to it.
_IS_IT_TLS = "; if that port does not speak TLS, write redis:// instead of rediss://"
SCHEMES = ("redis", "rediss", "unix")


class Address:
    """The address of a backend, from its URL. Raises ValueError if the URL is invalid.

    A URL is `redis://[user:password@]host:port/db`, the same with `rediss://` (TLS, with redis-py's `ssl_…`
    options in the query), or `unix://[user:password@]/path?db=n`.
    """

    def __init__(self, url: str, keepalive: Keepalive = DEFAULT) -> None:
        """Parse the URL. `keepalive` is for the connections."""
        parts = split_url(url)
        try:
            # Reading `port` validates it. The resolver encodes the host as IDNA, too.
            self._port = parts.port or 6379
            (parts.hostname or "").encode("idna")
        except ValueError:
            raise _invalid_host() from None
        if parts.scheme not in SCHEMES:
            raise ValueError(
                "its URL must be embedded:, or begin with redis://, rediss://, unix://, redis+sentinel:// or "
                "redis+cluster://"
            )
        if parts.scheme == "unix" and not parts.path:
            raise ValueError("the socket's path is missing: write unix:///path/to/socket")
        if parts.scheme != "unix" and parts.path.strip("/") and not parts.path.strip("/").isdigit():
            raise ValueError("invalid database: only its number may follow the port")
        try:
            pool: Any = ConnectionPool.from_url(url)
            connection = pool.make_connection()
        except (TypeError, ValueError, RedisError) as error:
            raise ValueError(f"invalid option in the URL: {error}") from error
        self._path: str | None = getattr(connection, "path", None)
        self.host: str = getattr(connection, "host", "")
        self._connection = connection
        self._url = url
        self._keepalive = keepalive
        self.username: str | None = connection.username
        self.password: str | None = connection.password
        self.database = int(connection.db)

    def __str__(self) -> str:
        """Return the address without user, password, database and options."""
        if self._path:
            return f"unix://{self._path}"
        scheme = "rediss" if self.is_tls else "redis"
        return f"{scheme}://{_in_brackets(self.host)}:{self._port}"

    @property
    def is_tls(self) -> bool:
        """Whether connections to the backend use TLS."""
        return hasattr(self._connection, "ssl_context")

    def __eq__(self, other: object) -> bool:
        """Return whether this is the address of the same node and database."""
        return isinstance(other, Address) and self._url == other._url

    def __hash__(self) -> int:
        """Return the hash that goes with `__eq__`."""
        return hash(self._url)

    def at(self, host: str, port: int) -> Address:
        """Return the address of another node, with the same user, password, database and options."""
        parts = urlsplit(self._url)
        login, at, _ = parts.netloc.rpartition("@")
        url = urlunsplit(parts._replace(netloc=f"{login}{at}{_in_brackets(host)}:{port}"))
        return Address(url, self._keepalive)

    async def open(self, protocol: BackendConnection | asyncio.Protocol) -> asyncio.WriteTransport:
        """Open a connection and return its transport.

        Raises BackendError if that fails or takes longer than CONNECT_TIMEOUT seconds.
        """
        loop, called = asyncio.get_running_loop(), cast(asyncio.Protocol, protocol)
        hint = _IS_IT_TLS if self.is_tls else ""
        tls = self._connection.ssl_context.get() if self.is_tls else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                if self._path:
                    transport, _ = await loop.create_unix_connection(lambda: called, self._path)
                else:
                    transport, _ = await loop.create_connection(
                        lambda: called, self.host, self._port, ssl=tls
                    )
                    self._keepalive.set_on(transport.get_extra_info("socket"))
        except TimeoutError as error:
            raise BackendError(f"no connection to {self} within {CONNECT_TIMEOUT:g} seconds{hint}") from error
        except OSError as error:
            is_other_protocol = isinstance(error, ConnectionResetError) or (
                isinstance(error, SSLError) and error.reason == "WRONG_VERSION_NUMBER"
            )
            why = reason_of(error) + (hint if is_other_protocol else "")
            raise BackendError(f"no connection to {self}: {why}") from error
        return transport

    def client(self, number: int) -> Redis:
        """Return a redis-py client for a database. It has no socket timeout and retries nothing.

        It is slower than a Link: use it for rare commands only.
        """
        pool: Any = ConnectionPool.from_url(self._url)
        pool.connection_kwargs |= {"db": number, "retry": Retry(NoBackoff(), 0), "socket_timeout": None}
        if not self._path and self._keepalive.seconds:
            options = self._keepalive.tcp_options
            pool.connection_kwargs |= {"socket_keepalive": True, "socket_keepalive_options": options}
        return Redis.from_pool(pool)


def split_url(url: str) -> SplitResult:
    """Return the parts of a backend's URL. Raises ValueError if it has none.

    The error quotes neither the URL nor urllib's message: in a mistyped URL, any part may be the password.
    """
    try:
        url.encode()
        return urlsplit(url)
    except ValueError:
        raise _invalid_host() from None


def _invalid_host() -> ValueError:
    return ValueError(
        "invalid host or port: write redis://[user:password@]host:port/db, "
        "and special characters of the password as %XX"
    )


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
