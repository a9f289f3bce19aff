"""Listeners: listening sockets, TCP or Unix, with or without TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from ssl import SSLContext

from pressure_server.net.handshakes import Handshakes
from pressure_server.net.listen import ListenerUrl

_BACKLOG = 1024


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
