"""Addresses of backends, from their URLs: of one node, of a cluster, and of a master that Sentinels name."""

from __future__ import annotations

import asyncio
from ssl import SSLError
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

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
_SCHEMES = ("redis", "rediss", "unix")
_CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_SENTINEL_PORT = "26379"
# The options of the URL that concern the connections to Sentinels begin with this.
_OF_SENTINELS = "sentinel_"
_ONLY_DATABASE_0 = "a cluster has only database 0: write redis+cluster://host:7000,host:7000"


class Address:
    """The address of a backend that is one node. Raises ValueError if the URL is invalid.

    A URL is `redis://[user:password@]host:port/db`, the same with `rediss://` (TLS, with redis-py's `ssl_…`
    options in the query), or `unix://[user:password@]/path?db=n`. `keepalive` is for the connections.
    """

    def __init__(self, url: str, keepalive: Keepalive = DEFAULT) -> None:
        parts = _split(url)
        try:
            # Reading `port` validates it. The resolver encodes the host as IDNA, too.
            self._port = parts.port or 6379
            (parts.hostname or "").encode("idna")
        except ValueError:
            raise _invalid_host() from None
        if parts.scheme not in _SCHEMES:
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
            self._connection = connection = pool.make_connection()
        except (TypeError, ValueError, RedisError) as error:
            raise ValueError(f"invalid option in the URL: {error}") from error
        self._path: str | None = getattr(connection, "path", None)
        self.host: str = getattr(connection, "host", "")
        self._url = url
        self._keepalive = keepalive
        self.username: str | None = connection.username
        self.password: str | None = connection.password
        self.database = int(connection.db)
        self.is_tls = hasattr(connection, "ssl_context")

    def __str__(self) -> str:
        """Return the address without user, password, database and options."""
        if self._path:
            return f"unix://{self._path}"
        scheme = "rediss" if self.is_tls else "redis"
        return f"{scheme}://{_in_brackets(self.host)}:{self._port}"

    def __eq__(self, other: object) -> bool:
        """Return whether this is the address of the same node and database."""
        return isinstance(other, Address) and self._url == other._url

    def __hash__(self) -> int:
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


class ClusterAddress:
    """The address of a cluster: some of its nodes. Raises ValueError if the URL is invalid.

    A URL is `redis+cluster://[user:password@]host:port,host:port`, with redis-py's options for each node;
    `rediss+cluster://` uses TLS.
    """

    database = 0

    def __init__(self, url: str, keepalive: Keepalive = DEFAULT) -> None:
        parts = _split(url)
        login, at, hosts = parts.netloc.rpartition("@")
        if not all(hosts.split(",")):
            raise ValueError("a node of the cluster is missing: write redis+cluster://host:7000,host:7000")
        if parts.path.strip("/") not in ("", "0"):
            raise ValueError(_ONLY_DATABASE_0)
        scheme = parts.scheme.partition("+")[0]
        # As Address.at writes it, so that a node of the map is known to be the same.
        query = f"?{parts.query}" if parts.query else ""
        self.nodes = [
            Address(f"{scheme}://{login}{at}{host}/0{query}", keepalive) for host in hosts.split(",")
        ]
        if self.nodes[0].database:
            raise ValueError(_ONLY_DATABASE_0)
        self.password = self.nodes[0].password
        self._shown = f"{parts.scheme}://{hosts}"

    def __str__(self) -> str:
        """Return the address without user, password and options."""
        return self._shown


class SentinelAddress:
    """The address of a master that Sentinels name. Raises ValueError if the URL is invalid.

    A URL is `redis+sentinel://[user:password@]host:port,host:port/name/db`, with user and password of Redis;
    `rediss+sentinel://` uses TLS for Redis. Its query has redis-py's options for Redis. Those for Sentinels
    begin with `sentinel_`: sentinel_username, sentinel_password, sentinel_tls=yes, sentinel_ssl_ca_certs.
    """

    def __init__(self, url: str, keepalive: Keepalive = DEFAULT) -> None:
        parts = _split(url)
        login, at, hosts = parts.netloc.rpartition("@")
        self.name, _, database = parts.path.strip("/").partition("/")
        if not hosts or not self.name:
            raise ValueError(
                "the Sentinels or the name of the master are missing: write "
                "redis+sentinel://host:26379,host:26379/mymaster/0"
            )
        options = parse_qsl(parts.query)
        of_redis = urlencode([one for one in options if not one[0].startswith(_OF_SENTINELS)])
        of_sentinels = {
            key.removeprefix(_OF_SENTINELS): value for key, value in options if key.startswith(_OF_SENTINELS)
        }
        scheme = parts.scheme.partition("+")[0]
        # No node has this name: the Sentinels have not been asked yet.
        self.unknown = Address(f"{scheme}://{login}{at}unknown.invalid:1/{database}?{of_redis}", keepalive)
        self.sentinels = [
            Address(_sentinel_url(host, dict(of_sentinels)), keepalive) for host in hosts.split(",")
        ]
        self.password = self.unknown.password
        self.database = self.unknown.database
        self._shown = f"{parts.scheme}://{hosts}/{self.name}"

    def __str__(self) -> str:
        """Return the address without user, password, database and options."""
        return self._shown


BackendAddress: TypeAlias = Address | ClusterAddress | SentinelAddress


def address_of(url: str, keepalive: Keepalive = DEFAULT) -> BackendAddress:
    """Return the address in the URL of a backend, with `keepalive` for its connections. Raises ValueError."""
    scheme = url.partition("://")[0]
    if scheme in _SENTINEL_SCHEMES:
        return SentinelAddress(url, keepalive)
    return ClusterAddress(url, keepalive) if scheme in _CLUSTER_SCHEMES else Address(url, keepalive)


def _sentinel_url(host: str, options: dict[str, str]) -> str:
    """Return the URL of a Sentinel at `host`, which may have a port."""
    scheme = "rediss" if options.pop("tls", "no") in ("yes", "true", "1") else "redis"
    user, password = options.pop("username", ""), options.pop("password", "")
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    port = "" if host.rpartition("]")[2].count(":") else f":{_SENTINEL_PORT}"
    return f"{scheme}://{login}{host}{port}?{urlencode(options)}"


def _split(url: str) -> SplitResult:
    """Return the parts of a backend's URL.

    The ValueError quotes neither the URL nor urllib's message: in a mistyped URL, any part may be the
    password.
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
