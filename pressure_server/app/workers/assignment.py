"""What the supervisor gives a worker: its number, its settings, and the sockets on which it listens."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace

from pressure_server.app.settings import Settings
from pressure_server.net.listener import BoundSockets, ListenerUrl


@dataclass(frozen=True)
class Assignment:
    """The assignment of one of `workers` workers; they are numbered from 1.

    `listening` has the URL of each listener, and the file descriptors of its sockets in the worker.
    """

    number: int
    workers: int
    settings: Settings
    listening: tuple[tuple[ListenerUrl, tuple[int, ...]], ...]

    def sockets(self) -> list[BoundSockets]:
        """Return the sockets of the listeners, for the worker. Call it once."""
        return [
            BoundSockets(listen, [socket.socket(fileno=one) for one in files])
            for listen, files in self.listening
        ]


def numbers_of(number: int, workers: int) -> tuple[int, int]:
    """Return the first number that a process gives to what is numbered over all, and the step.

    The supervisor has the number 0; a server that is one process numbers by ones.
    """
    return (1, 1) if workers == 1 and not number else (number or workers + 1, workers + 1)


def share_of(settings: Settings, memory: int) -> Settings:
    """Return the settings of each worker: its share of the limits, on a machine with `memory` bytes."""
    workers = settings.workers
    return replace(
        settings,
        workers=1,
        http=None,
        max_clients=_part(settings.max_clients, workers),
        max_waiting=_part(settings.max_waiting, workers),
        max_buffered_bytes=_part(settings.buffered_bytes(memory), workers),
    )


def _part(limit: int, workers: int) -> int:
    return -(-limit // workers)
