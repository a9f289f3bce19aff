"""What the supervisor gives a worker: its number, its settings, and the sockets on which it listens."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from pressure_server.app.settings import Settings
from pressure_server.net.listener import BoundSockets, ListenerUrl


@dataclass(frozen=True)
class Assignment:
    """The assignment of a worker. Workers are numbered from 1; with the supervisor they are `processes`.

    `listening` has the URL of each listener, and the file descriptors of its sockets in the worker.
    """

    number: int
    processes: int
    settings: Settings
    listening: tuple[tuple[ListenerUrl, tuple[int, ...]], ...]

    def sockets(self) -> list[BoundSockets]:
        """Return the sockets of the listeners, for the worker. Call it once."""
        return [
            BoundSockets(listen, [socket.socket(fileno=one) for one in files])
            for listen, files in self.listening
        ]
