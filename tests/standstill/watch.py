"""Clients in another process that ask PING, put and take, and measure how long they wait.

A wait counts as long as the processes that serve it were running: on a busy machine, other programs make the
rest of it.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.support.waiters import packed

# The connections of each kind. Workers share them.
_CONNECTIONS = 4


class Worst(NamedTuple):
    """The longest waits, in seconds of work; and the longest by the clock."""

    ping: float = 0.0
    put_and_take: float = 0.0
    by_clock: float = 0.0


def _work(processes: Sequence[int]) -> list[float]:
    """Return the processor seconds that the main thread of each process has used."""
    used: list[float] = []
    for process in processes:
        try:
            used.append(int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9)
        except OSError:  # a worker that has been replaced
            used.append(0.0)
    return used


class _Asking:
    def __init__(self, port: int, request: bytes, lines: int) -> None:
        self._request, self._lines = request, lines
        self._socket = socket.create_connection(("127.0.0.1", port), 120)

    def ask(self) -> None:
        self._socket.sendall(self._request)
        received = b""
        while received.count(b"\n") < self._lines:
            data = self._socket.recv(4096)
            if not data:
                raise ConnectionResetError("an innocent client lost its connection")
            received += data


def _watch(port: int, servers: list[int], backend: int, control: Connection) -> None:
    pings = [_Asking(port, packed("PING"), 1) for _ in range(_CONNECTIONS)]
    # Its own queue for each, so that none takes another's message.
    puts = [
        _Asking(port, packed("RPUSH", f"watched{n}", "x") + packed("LPOP", f"watched{n}"), 3)
        for n in range(_CONNECTIONS)
    ]
    worst, turn = Worst(), 0
    control.send(None)
    while True:
        for asking, is_put in ((pings[turn % _CONNECTIONS], False), (puts[turn % _CONNECTIONS], True)):
            before, began = _work([*servers, backend]), time.perf_counter()
            asking.ask()
            seconds = time.perf_counter() - began
            spent = [after - was for after, was in zip(_work([*servers, backend]), before, strict=True)]
            at_work = min(seconds, max(spent[:-1]) + (spent[-1] if is_put else 0))
            worst = Worst(
                max(worst.ping, 0 if is_put else at_work),
                max(worst.put_and_take, at_work if is_put else 0),
                max(worst.by_clock, seconds),
            )
        turn += 1
        if control.poll(0.001):
            if control.recv() is None:
                return
            control.send(worst)
            worst = Worst()


@dataclass
class Watch:
    """The process with these clients."""

    process: multiprocessing.Process
    control: Connection

    @classmethod
    def start(cls, port: int, servers: list[int], backend: int) -> Watch:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.Process(target=_watch, args=(port, servers, backend, there), daemon=True)
        process.start()
        there.close()
        here.recv()
        return cls(process, here)

    def take(self) -> Worst:
        """Return the longest waits since this was called last."""
        self.control.send(True)
        worst: Worst = self.control.recv()
        return worst

    def stop(self) -> None:
        self.control.send(None)
        self.process.join(10)
