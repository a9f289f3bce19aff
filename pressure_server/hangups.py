"""Hang-ups: whether a client that waits, and is not read meanwhile, has closed its connection.

A transport that is not read does not notice. Linux tells by EPOLLRDHUP, whatever is unread; elsewhere it is
noticed when the reply cannot be written.
"""

from __future__ import annotations

import asyncio
import select
from contextlib import suppress
from typing import Protocol


class Waiter(Protocol):
    """A connection whose client waits."""

    transport: asyncio.Transport

    def break_off(self) -> None:
        """End the connection at once."""


class Hangups:
    """Aborts connections that are watched when their clients hang up."""

    def __init__(self) -> None:
        self._watched: dict[int, Waiter] = {}
        self._numbers: dict[Waiter, int] = {}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self.look)

    def __len__(self) -> int:
        """How many are watched."""
        return len(self._watched)

    def watch(self, waiter: Waiter) -> None:
        """Watch the connection until `unwatch`."""
        number = _file_number(waiter)
        self._watched[number] = waiter
        self._numbers[waiter] = number
        if self._epoll is not None and number >= 0:
            self._epoll.register(number, select.EPOLLRDHUP)

    def unwatch(self, waiter: Waiter) -> None:
        """Watch it no longer."""
        # Not asked of the transport: when that has been closed, its number may be another's by now.
        number = self._numbers.pop(waiter, None)
        if number is not None and self._watched.get(number) is waiter:
            del self._watched[number]
            if self._epoll is not None:
                with suppress(OSError, ValueError):
                    self._epoll.unregister(number)

    def look(self) -> None:
        """Abort those whose clients have hung up."""
        if self._epoll is None:
            return
        for number, _events in self._epoll.poll(0):
            waiter = self._watched.get(number)
            if waiter is not None:
                self.unwatch(waiter)
                waiter.break_off()

    def close(self) -> None:
        """Watch nobody any longer."""
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None


def _file_number(waiter: Waiter) -> int:
    connected = waiter.transport.get_extra_info("socket")
    return connected.fileno() if connected is not None else -1
