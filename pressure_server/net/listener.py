"""Listeners: sockets opened for handlers, and removed again."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from ssl import SSLContext

from pressure_server.net.connection import Connection
from pressure_server.net.handshakes import Handshakes
from pressure_server.net.listen import Listen

_BACKLOG = 1024


class Listener:
    """One open socket. `listen` is where: with the port that was picked, where 0 was asked for."""

    def __init__(self, server: asyncio.Server, listen: Listen, handshakes: Handshakes | None) -> None:
        self._server = server
        self._handshakes = handshakes
        self.listen = listen
        self._file = _file_at(listen.path)

    @classmethod
    async def open(
        cls, listen: Listen, connect: Callable[[], Connection], tls: Callable[[], SSLContext]
    ) -> Listener:
        """Listen, and make a connection by `connect` for each client. Raises OSError.

        `tls` is asked for the context of each handshake, where there are any.
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
        """Accept no more clients, nor those in a handshake, and remove the socket's file. Does so once."""
        # While we still listen nobody else takes the path; later the file may be our successor's.
        if self._file is not None and self._file == _file_at(self.listen.path):
            os.unlink(self.listen.path)
        self._file = None
        self._server.close()
        if self._handshakes is not None:
            self._handshakes.close()


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file is there, by device and inode; None for none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _remove_stale_socket(path: str) -> None:
    """Remove a socket on which nobody listens. Raises OSError where somebody does, or it is no socket."""
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise FileExistsError(f"{path} exists and is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise FileExistsError(f"somebody listens on {path} already")
