"""Listeners: their URLs, their listening sockets, TCP or Unix, and TLS handshakes."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from ssl import SSLContext, SSLError
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from pressure_server.auth.peer_address import address_of
from pressure_server.keepalive import DEFAULT, Keepalive
from pressure_server.log_limits import LogThrottle

if TYPE_CHECKING:
    from pressure_server.net.connection import Connection

logger = logging.getLogger(__name__)

# What asyncio calls for each client. A compiled class such as Connection cannot have a base of asyncio.
_Connect = Callable[[], asyncio.BaseProtocol]

# Aliases that are familiar to Redis users.
_OTHER_SCHEMES = {"redis": "resp", "rediss": "resps"}
# Beanstalk clients are often configured without a port.
_DEFAULT_PORTS = {"beanstalk": 11300}

# Hosts that stand for more addresses than the resolver returns. A socket for `::` takes no IPv4 clients, so
# that their addresses look the same on all listeners.
_MORE_HOSTS = {"localhost": ("127.0.0.1", "::1"), "::": ("0.0.0.0",)}  # noqa: S104 -- the user's choice
# The system has no such address, or not this family of addresses.
_NO_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
# A family of addresses, a host, and what follows the port in an IPv6 address.
_Address = tuple[socket.AddressFamily, str, tuple[Any, ...]]
# How many ports are tried if any will do, and the one that is free at the first address is in use at another.
_PORT_ATTEMPTS = 20

_BACKLOG = 1024
# The most handshakes in progress on one listener, and seconds for one handshake.
MAX_HANDSHAKES = 256
_HANDSHAKE_TIMEOUT = 10.0
# Seconds for a client to answer a TLS close notification.
_SHUTDOWN_TIMEOUT = 2.0


class SettingsError(ValueError):
    """An invalid value of a setting; the text names the setting."""


@dataclass(frozen=True)
class ListenerUrl:
    """A listener's URL in parts: `HANDLER://HOST:PORT` or `HANDLER+unix:///PATH`.

    An "s" after the handler's name (`resps://…`) means TLS. `options` (`?NAME=VALUE&…` at the end) are for
    the handler. `redis` is an alias for `resp`.
    """

    handler: str
    host: str = ""
    port: int = 0
    path: str = ""
    tls: bool = False
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        scheme = self.handler + "s" * self.tls
        options = f"?{urlencode(self.options)}" if self.options else ""
        if self.path:
            return f"{scheme}+unix://{self.path}{options}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{options}"

    def options_by_name(self, *known: str) -> dict[str, str]:
        """Return the options. Raise SettingsError if one is not `known`, or is given twice."""
        for name, _ in self.options:
            if name not in known:
                choice = f"option is {known[0]}" if len(known) == 1 else f"options are {', '.join(known)}"
                raise SettingsError(f"{self}: unknown option '{name}': the {choice}")
        found = dict(self.options)
        if len(found) < len(self.options):
            raise SettingsError(f"{self}: an option is given twice")
        return found

    @classmethod
    def parse(cls, url: str) -> ListenerUrl:
        """Parse a URL. Raise SettingsError if it is invalid."""
        form = f"invalid listener URL '{url}': write HANDLER://HOST:PORT or HANDLER+unix:///PATH"
        if url and "://" not in url:
            likely = f"resp+unix://{url}" if url.startswith("/") else f"resp://{url}"
            raise SettingsError(f"listener URL '{url}' has no handler: did you mean {likely}?")
        try:
            url.encode()
            parts = urlsplit(url)
            port = parts.port
            # The resolver encodes the name in the same way later, and would fail then.
            (parts.hostname or "").encode("idna")
            options = tuple(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError as error:
            raise SettingsError(f"{form} ({error})") from error
        if parts.fragment:
            raise SettingsError(form)
        if "@" in parts.netloc:
            raise SettingsError("a listener's URL has no user or password: set --users or --password-file")
        scheme, _, transport = parts.scheme.partition("+")
        scheme = _OTHER_SCHEMES.get(scheme, scheme)
        handler, tls = scheme.removesuffix("s"), scheme.endswith("s")
        port = _DEFAULT_PORTS.get(handler) if port is None else port
        if transport == "unix" and parts.path.startswith("/") and not parts.netloc:
            return cls(handler, path=parts.path, tls=tls, options=options)
        if not handler or transport or parts.hostname is None or port is None or parts.path.strip("/"):
            raise SettingsError(form)
        return cls(handler, host=parts.hostname, port=port, tls=tls, options=options)


async def _bind_host(host: str, port: int, leave: Collection[str] = ()) -> list[socket.socket]:
    """Return sockets at all addresses of a host except `leave`, with the same port. Raise OSError."""
    addresses: dict[_Address, None] = {}
    for name in (host, *_MORE_HOSTS.get(host, ())):
        infos = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        for family, _, _, _, (address, _, *scope) in infos:
            if address not in leave:
                addresses[family, str(address), tuple(scope)] = None
    for _ in range(0 if port else _PORT_ATTEMPTS):
        try:
            return _bind_each(list(addresses), 0)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _bind_each(list(addresses), port)


def _bind_each(addresses: Sequence[_Address], port: int) -> list[socket.socket]:
    """Return a socket for each address that the system has, which must be at least one. Raise OSError."""
    bound: list[socket.socket] = []
    missing: OSError | None = None
    with ExitStack() as opened:
        for family, host, scope in addresses:
            try:
                one = opened.enter_context(socket.socket(family))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind((host, bound[0].getsockname()[1] if bound else port, *scope))
            except OSError as error:
                if error.errno not in _NO_ADDRESS:
                    raise
                missing = error
            else:
                bound.append(one)
        if not bound and missing is not None:
            raise missing
        opened.pop_all()
    return bound


class BoundSockets:
    """The sockets at a listener's addresses. Only the process that has bound them removes a file.

    `listen` is the URL, with the chosen port if port 0 was requested.
    """

    def __init__(self, listen: ListenerUrl, sockets: Sequence[socket.socket]) -> None:
        self.listen = listen
        self.sockets = sockets
        self._file: tuple[int, int] | None = None

    @classmethod
    async def bind(
        cls, listen: ListenerUrl, keepalive: Keepalive = DEFAULT, *, leave: Collection[str] = ()
    ) -> BoundSockets:
        """Bind sockets, which queue clients from now on. `leave` are addresses not to bind. Raise OSError.

        The connections of clients inherit `keepalive` from these sockets.
        """
        if listen.path:
            _remove_stale_socket(listen.path)
            bound = cls(listen, [socket.socket(socket.AF_UNIX)])
            bound.sockets[0].bind(listen.path)
            bound._file = _file_at(listen.path)
        else:
            sockets = await _bind_host(listen.host, listen.port, leave)
            bound = cls(replace(listen, port=sockets[0].getsockname()[1]), sockets)
        for one in bound.sockets:
            keepalive.set_on(one)
            one.listen(_BACKLOG)
        return bound

    @property
    def is_reachable(self) -> bool:
        """Whether clients on other machines may reach it."""
        return any(
            one.family != socket.AF_UNIX and not ip_address(one.getsockname()[0]).is_loopback
            for one in self.sockets
        )

    def remove_file(self) -> None:
        """Remove the socket file. May be called again."""
        if self._file is not None and self._file == _file_at(self.listen.path):
            os.unlink(self.listen.path)
        self._file = None

    def close(self) -> None:
        """Close the sockets, and remove the socket file. May be called again."""
        self.remove_file()
        for one in self.sockets:
            one.close()


class Listener:
    """The listener at one URL: it accepts the clients of its sockets."""

    def __init__(
        self, bound: BoundSockets, servers: Sequence[asyncio.Server], handshakes: Handshakes | None
    ) -> None:
        self._bound = bound
        self._servers = servers
        self._handshakes = handshakes
        self.listen = bound.listen

    @classmethod
    async def open(
        cls,
        bound: BoundSockets,
        connect: Callable[[], Connection | asyncio.BaseProtocol],
        tls: Callable[[], SSLContext],
        max_handshakes: int = MAX_HANDSHAKES,
    ) -> Listener:
        """Accept clients, and create a connection with `connect` for each. Raise OSError.

        With TLS, `tls` returns the SSL context for each handshake.
        """
        loop, begin = asyncio.get_running_loop(), cast(_Connect, connect)
        handshakes = Handshakes(tls, begin, max_handshakes) if bound.listen.tls else None
        if handshakes is not None:
            begin = partial(_Greeting, handshakes)
        create = loop.create_unix_server if bound.listen.path else loop.create_server
        servers = [await create(begin, sock=one, backlog=_BACKLOG) for one in bound.sockets]
        return cls(bound, servers, handshakes)

    @property
    def is_reachable(self) -> bool:
        """Whether clients on other machines may reach it."""
        return self._bound.is_reachable

    def close(self) -> None:
        """Stop accepting clients, cancel handshakes, and remove the socket file. May be called again."""
        # Remove the file while listening: no other server takes the path before, but one may do so after.
        self._bound.remove_file()
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.close()


def _file_at(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the file at the path; None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _remove_stale_socket(path: str) -> None:
    """Remove a socket file without a listener. Raise OSError if it has one, or is not a socket."""
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise FileExistsError(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise FileExistsError(f"another process already listens on {path}")


class Handshakes:
    """The handshakes in progress on one listener: at most `most`, because each costs a socket and memory.

    A client counts as connected only after its handshake: then `connect` creates its connection. `context`
    returns the SSL context that is in force when a handshake begins.
    """

    def __init__(self, context: Callable[[], SSLContext], connect: _Connect, most: int) -> None:
        self._context = context
        self._connect = connect
        self._most = most
        # With the addresses of their clients; the oldest first.
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._log = LogThrottle(logger, "failed TLS handshake")

    def begin(self, client: socket.socket, address: str) -> None:
        """Start a handshake with a client. If too many are in progress, cancel the oldest."""
        if len(self._under_way) >= self._most:
            oldest = next(iter(self._under_way))
            other = self._under_way.pop(oldest)
            self._log.warn(f"TLS handshake with {other} cancelled: too many at once", {"client": other})
            oldest.cancel()
        task = asyncio.create_task(self._shake(client, address))
        self._under_way[task] = address
        task.add_done_callback(lambda _: self._under_way.pop(task, None))

    def close(self) -> None:
        """Cancel all handshakes in progress."""
        for task in self._under_way:
            task.cancel()

    async def _shake(self, client: socket.socket, address: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connect,
                client,
                ssl=self._context(),
                ssl_handshake_timeout=_HANDSHAKE_TIMEOUT,
                ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT,
            )
        except asyncio.CancelledError:
            # uvloop would keep the socket open until the timeout.
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            raise
        except OSError as error:
            reason = (error.reason if isinstance(error, SSLError) else None) or type(error).__name__
            fields = {"client": address, "error": reason}
            self._log.warn(f"TLS handshake with {address} failed: {reason}", fields)


class _Greeting(asyncio.Protocol):
    """A protocol that takes a client's socket from its transport: uvloop's start_tls would lose data."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client has connected; nothing has been read yet."""
        copy = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        copy.setblocking(False)
        self._handshakes.begin(copy, address_of(transport))
        transport.abort()  # type: ignore[attr-defined] # asyncio passes a Transport
