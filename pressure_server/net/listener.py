"""Listeners: their URLs, and listening sockets, TCP or Unix, with or without TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from ssl import SSLContext
from urllib.parse import parse_qsl, urlencode, urlsplit

from pressure_server.net.handshakes import Handshakes

# Aliases that are familiar to Redis users.
_OTHER_SCHEMES = {"redis": "resp", "rediss": "resps"}
# Beanstalk clients are often configured without a port.
_DEFAULT_PORTS = {"beanstalk": 11300}

_BACKLOG = 1024


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
        scheme, _, transport = parts.scheme.partition("+")
        scheme = _OTHER_SCHEMES.get(scheme, scheme)
        handler, tls = scheme.removesuffix("s"), scheme.endswith("s")
        port = _DEFAULT_PORTS.get(handler) if port is None else port
        if transport == "unix" and parts.path.startswith("/") and not parts.netloc:
            return cls(handler, path=parts.path, tls=tls, options=options)
        if not handler or transport or parts.hostname is None or port is None or parts.path.strip("/"):
            raise SettingsError(form)
        return cls(handler, host=parts.hostname, port=port, tls=tls, options=options)


class Listener:
    """One listening socket. `listen` is its URL, with the chosen port if port 0 was requested."""

    def __init__(self, server: asyncio.Server, listen: ListenerUrl, handshakes: Handshakes | None) -> None:
        self._server = server
        self._handshakes = handshakes
        self.listen = listen
        self._file = _file_at(listen.path)

    @classmethod
    async def open(
        cls, listen: ListenerUrl, connect: Callable[[], asyncio.BaseProtocol], tls: Callable[[], SSLContext]
    ) -> Listener:
        """ListenerUrl, and create a connection with `connect` for each client. Raise OSError.

        If the listener uses TLS, `tls` returns the SSL context for each handshake.
        """
        loop = asyncio.get_running_loop()
        handshakes = Handshakes(tls, connect) if listen.tls else None
        begin = handshakes.greet if handshakes is not None else connect
        if listen.path:
            _remove_stale_socket(listen.path)
            server = await loop.create_unix_server(begin, listen.path, backlog=_BACKLOG)
        else:
            server = await loop.create_server(begin, listen.host, listen.port, backlog=_BACKLOG)
            listen = replace(listen, port=server.sockets[0].getsockname()[1])
        return cls(server, listen, handshakes)

    def close(self) -> None:
        """Stop accepting clients, cancel handshakes, and remove the socket file. May be called again."""
        # Remove the file while listening: no other server takes the path before, but one may do so after.
        if self._file is not None and self._file == _file_at(self.listen.path):
            os.unlink(self.listen.path)
        self._file = None
        self._server.close()
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
